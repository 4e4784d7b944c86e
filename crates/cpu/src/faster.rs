//! Faster kernels that an operation did not take, and why.

use std::fmt;

use arena::Kernel;

use crate::context::Arithmetic;
use crate::isa::{ISA_VARIABLE, Isa, has_native_bf16_dot};
use crate::tiles::has_native_tiles;

/// A kernel that is faster, at least on large shapes, and was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotChosen {
    /// Its name: an instruction set, or a way of products.
    pub kernel: &'static str,
    /// Why it was not.
    pub why: WhyNot,
}

/// Why a kernel was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// [`ISA_VARIABLE`] names a slower instruction set.
    Forced,
    /// The processor has no such instructions, or the system does not let them be used.
    Missing(&'static str),
    /// Another arithmetic profile, with bits of its own, was asked for.
    Profile(&'static str),
    /// A side of the product is too thin for it.
    Thin,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::Forced => write!(f, "{ISA_VARIABLE} says so"),
            WhyNot::Missing(what) => write!(f, "no {what} here"),
            WhyNot::Profile(name) => write!(f, "profile {name}, which has other bits"),
            WhyNot::Thin => f.write_str("the shape is too thin"),
        }
    }
}

/// What of a processor decides which kernels there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// The best instruction set.
    pub isa: Isa,
    /// Whether it has bf16 dots.
    pub dots: bool,
    /// Whether it has matrix tiles.
    pub tiles: bool,
}

impl Offers {
    /// Of this processor.
    #[must_use]
    pub fn here() -> Self {
        Self { isa: Isa::best(), dots: has_native_bf16_dot(), tiles: has_native_tiles() }
    }

    /// Faster kernels than the one that an operation took: none where it took the fastest.
    #[must_use]
    pub fn faster(self, taken: Kernel, arithmetic: Arithmetic) -> Vec<NotChosen> {
        let mut faster = Vec::new();
        if taken.device != self.isa.name() {
            faster.push(NotChosen { kernel: self.isa.name(), why: WhyNot::Forced });
        } else if self.isa != Isa::Avx512 {
            faster.push(NotChosen { kernel: Isa::Avx512.name(), why: WhyNot::Missing("AVX-512") });
        }
        // What has no way is no product: it is computed in f32 by every profile.
        if taken.way.is_empty() {
            return faster;
        }
        faster.extend(self.faster_words(arithmetic));
        if taken.way.starts_with("thin") || taken.way.starts_with("few rows") {
            faster.push(NotChosen { kernel: "packed", why: WhyNot::Thin });
        }
        faster
    }

    /// Faster instructions of products.
    fn faster_words(self, arithmetic: Arithmetic) -> Option<NotChosen> {
        const TILES: &str = "bf16 tiles";
        const DOTS: &str = "bf16 dots";
        let missing = |kernel, what| NotChosen { kernel, why: WhyNot::Missing(what) };
        let other = |kernel, profile| NotChosen { kernel, why: WhyNot::Profile(profile) };
        match arithmetic {
            Arithmetic::Bf16Tiles if self.tiles => None,
            Arithmetic::Bf16Tiles => Some(missing(TILES, "AMX-BF16")),
            Arithmetic::F32 | Arithmetic::Bf16 if self.tiles => {
                Some(other(TILES, "cpu-bf16-tiles"))
            }
            // Whether dots or multiply-adds serve the profile is measured: the faster one was chosen.
            Arithmetic::Bf16 if self.dots => None,
            Arithmetic::Bf16 => Some(missing(DOTS, "AVX512-BF16")),
            Arithmetic::F32 if self.dots => Some(other(DOTS, "cpu-bf16")),
            Arithmetic::F32 => Some(missing(DOTS, "AVX512-BF16")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offers = Offers { isa: Isa::Avx512, dots: true, tiles: true };
    const OLD: Offers = Offers { isa: Isa::Avx2, dots: false, tiles: false };

    fn said(
        offers: Offers,
        device: &'static str,
        way: &'static str,
        of: Arithmetic,
    ) -> Vec<String> {
        let faster = offers.faster(Kernel { device, way }, of);
        faster.iter().map(|one| format!("{} ({})", one.kernel, one.why)).collect()
    }

    #[test]
    fn the_fastest_has_none() {
        let none: [String; 0] = [];
        assert_eq!(said(ALL, "avx512", "packed bf16 tiles", Arithmetic::Bf16Tiles), none);
        assert_eq!(said(ALL, "avx512", "", Arithmetic::F32), none);
        let dots = Offers { tiles: false, ..ALL };
        assert_eq!(said(dots, "avx512", "packed bf16 on f32", Arithmetic::Bf16), none);
    }

    #[test]
    fn each_reason_is_said() {
        assert_eq!(
            said(ALL, "avx2", "thin f32", Arithmetic::F32),
            [
                "avx512 (SAMEBIT_ISA says so)",
                "bf16 tiles (profile cpu-bf16-tiles, which has other bits)",
                "packed (the shape is too thin)",
            ]
        );
        assert_eq!(said(ALL, "avx2", "", Arithmetic::F32), ["avx512 (SAMEBIT_ISA says so)"]);
        let dots = Offers { tiles: false, ..ALL };
        assert_eq!(
            said(dots, "avx512", "packed f32", Arithmetic::F32),
            ["bf16 dots (profile cpu-bf16, which has other bits)"]
        );
        assert_eq!(
            said(dots, "avx512", "packed bf16 tiles on f32", Arithmetic::Bf16Tiles),
            ["bf16 tiles (no AMX-BF16 here)"]
        );
        assert_eq!(
            said(OLD, "avx2", "few rows bf16 on f32", Arithmetic::Bf16),
            [
                "avx512 (no AVX-512 here)",
                "bf16 dots (no AVX512-BF16 here)",
                "packed (the shape is too thin)",
            ]
        );
    }
}
