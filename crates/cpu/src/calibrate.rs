//! What one core can do at most: the yardstick of benchmarks and of cost models.

use crate::isa::Isa;
use crate::simd::{Kernel, Vector, dispatch};

/// Independent chains of sixteen lanes in [`fma_chains`].
pub const FMA_CHAINS: usize = 12;

struct Chains {
    steps: usize,
}

impl Kernel for Chains {
    type Output = f32;
    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: registers only.
        unsafe {
            let (a, b) = (V::splat(std::hint::black_box(0.5)), V::splat(1.5));
            let mut acc = [V::zero(); FMA_CHAINS];
            for _ in 0..self.steps {
                for chain in &mut acc {
                    *chain = a.fma(*chain, b);
                }
            }
            acc.iter().fold(0.0, |sum, chain| sum + chain.to_array()[0])
        }
    }
}

/// Runs `steps` steps of [`FMA_CHAINS`] independent chains of sixteen-lane fused
/// multiply-adds in registers and returns their sum (so that they are computed).
#[must_use]
pub fn fma_chains(isa: Isa, steps: usize) -> f32 {
    // SAFETY: the kernel touches no memory.
    unsafe { dispatch(isa, Chains { steps }) }
}

struct Read<'a> {
    data: &'a [f32],
}

impl Kernel for Read<'_> {
    type Output = f32;
    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        // SAFETY: registers only.
        let mut sums = [unsafe { V::zero() }; 4];
        for chunk in self.data.as_chunks::<64>().0 {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has sixty-four elements.
                *sum = unsafe { sum.add(V::load(chunk.as_ptr().add(16 * i))) };
            }
        }
        // SAFETY: registers only.
        sums.iter().fold(0.0, |all, sum| all + unsafe { sum.to_array() }[0])
    }
}

/// Reads `data` once (whole 64s of it) as fast as one core can, and returns a sum
/// that depends on all of it.
#[must_use]
pub fn read_all(isa: Isa, data: &[f32]) -> f32 {
    // SAFETY: the kernel stays inside the slice.
    unsafe { dispatch(isa, Read { data }) }
}
