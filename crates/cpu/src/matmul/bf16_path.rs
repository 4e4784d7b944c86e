//! Two ways to one result of the bf16 profiles.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::isa::{Isa, has_native_bf16_dot};
use crate::simd::{Kernel, Vector, dispatch};

/// How the chains of the bf16 profiles are computed. The bits are the same. Of
/// `cpu-bf16`, which is faster differs: for one dot instruction's two products Zen 4 takes
/// as long as for one multiply-add, recent Intel processors four times as long. Matrix
/// tiles are always faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bf16Path {
    /// The instruction that the profile is defined by (bf16 dots, matrix tiles), where
    /// the instruction set is AVX-512 and the processor has it.
    Native,
    /// f32 multiply-adds, two for a pair, with subnormals flushed. Not on portable
    /// code, which emulates the instructions.
    Flush,
}

impl Bf16Path {
    /// The faster one of `cpu-bf16` on this processor, measured once (some 50 µs).
    #[must_use]
    pub fn fastest() -> Self {
        static FASTEST: OnceLock<Bf16Path> = OnceLock::new();
        *FASTEST.get_or_init(|| {
            if !has_native_bf16_dot() {
                return Self::Flush;
            }
            // A dot does two steps of k.
            if time::<true>() < 2 * time::<false>() { Self::Native } else { Self::Flush }
        })
    }
}

/// Independent chains, enough to hide the latency of either instruction.
const CHAINS: usize = 24;
/// Steps of a run: some microseconds.
const STEPS: usize = 500;
/// Runs; the shortest counts.
const RUNS: usize = 8;

/// Time of [`STEPS`] steps of dots or of multiply-adds.
fn time<const DOT: bool>() -> Duration {
    let run = || {
        let start = Instant::now();
        // SAFETY: the kernel touches no memory.
        std::hint::black_box(unsafe { dispatch(Isa::Avx512, Chains::<DOT>) });
        start.elapsed()
    };
    (0..RUNS).map(|_| run()).min().unwrap_or_default()
}

struct Chains<const DOT: bool>;

impl<const DOT: bool> Kernel for Chains<DOT> {
    const BF16_DOT: bool = DOT;
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: registers only.
        unsafe {
            // 1 and 1/2 as f32, a pair with 0 and 1 or 1/2 as words of bf16.
            let (a, b) = (V::splat(std::hint::black_box(1.0)), V::splat(0.5));
            let mut acc = [V::zero(); CHAINS];
            for _ in 0..STEPS {
                for chain in &mut acc {
                    *chain = if DOT { a.dot_words(b, *chain) } else { a.fma(b, *chain) };
                }
            }
            acc.iter().fold(0.0, |sum, chain| sum + chain.to_array()[0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_made_once() {
        let first = Bf16Path::fastest();
        println!("fastest here: {first:?}");
        assert!((0..10).all(|_| Bf16Path::fastest() == first));
    }
}
