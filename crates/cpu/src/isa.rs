//! Which instruction set the kernels run on.
//!
//! Every kernel is written once over [`crate::simd::Vector`] and compiled for
//! each instruction set. All of them give the same bits; the choice is speed.

use std::fmt;
use std::str::FromStr;

/// Environment variable that forces an instruction set: `portable`, `avx2` or
/// `avx512`.
pub const ISA_VARIABLE: &str = "SAMEBIT_ISA";

/// An instruction set that the kernels are compiled for, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; `f32::mul_add` is a library call where the target has no FMA.
    Portable,
    /// AVX2 with FMA: a vector is two 256-bit registers.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: a vector is one 512-bit register.
    Avx512,
}

/// Why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none of the three.
    #[error("{ISA_VARIABLE}={0:?} is no instruction set: use portable, avx2 or avx512")]
    Unknown(String),
    /// This processor lacks it.
    #[error("{0} was asked for, but this processor offers at most {1}")]
    Unsupported(Isa, Isa),
}

impl Isa {
    /// The best instruction set of this processor.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// The instruction set that [`ISA_VARIABLE`] names, or the best one.
    ///
    /// # Errors
    /// The variable names no instruction set, or one that this processor lacks.
    pub fn detect() -> Result<Self, IsaError> {
        match std::env::var_os(ISA_VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => name.to_string_lossy().parse::<Self>()?.supported(),
        }
    }

    /// `self`, if this processor has it.
    ///
    /// # Errors
    /// [`IsaError::Unsupported`].
    pub fn supported(self) -> Result<Self, IsaError> {
        if self <= Self::best() { Ok(self) } else { Err(IsaError::Unsupported(self, Self::best())) }
    }

    /// [`Vector::FEW_ROWS`](crate::simd::Vector::FEW_ROWS) of the set's vectors.
    pub(crate) fn serves_few_rows(self) -> bool {
        self != Self::Portable || !cfg!(target_arch = "x86_64")
    }

    /// Every instruction set of this processor, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|isa| *isa <= Self::best())
            .collect()
    }
}

/// Whether this processor has the bf16 dot product that profile `cpu-bf16` is
/// defined by (`vdpbf16ps`). Without it the profile runs on the emulation of
/// [`crate::bf16_dot`], with the same bits and far slower.
#[must_use]
pub fn has_native_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        Isa::best() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

impl Isa {
    /// Its name, as [`ISA_VARIABLE`] takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        match name {
            "portable" => Ok(Self::Portable),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            other => Err(IsaError::Unknown(other.to_owned())),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        let error = "sse9".parse::<Isa>();
        assert_eq!(error, Err(IsaError::Unknown("sse9".into())));
    }

    #[test]
    fn portable_is_always_there() {
        assert_eq!(Isa::Portable.supported(), Ok(Isa::Portable));
        assert_eq!(Isa::available()[0], Isa::Portable);
    }
}
