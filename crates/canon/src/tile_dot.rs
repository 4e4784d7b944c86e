//! Products of profile `cpu-bf16-tiles`: what the processor's matrix instruction for
//! bf16 tiles (`tdpbf16ps`) computes, in basic operations.
//!
//! Found by experiment, and held against the instruction by the tests of the `cpu`
//! crate on operands of every exponent range. bf16 values are held here as the `f32`
//! of the same value; operands are rounded by [`round_operand`].

pub use crate::bf16_dot::round_operand;
use crate::flush_to_zero::{add, fma};

/// Steps of `k` that one instruction takes: a run.
pub const RUN: usize = 32;

/// One run: `acc` plus the products of `operands(0)`, …, `operands(len − 1)`, `len` at most
/// [`RUN`]; what a shorter run lacks are products of zeros.
///
/// Order of operations:
/// ```text
/// even = fma(a30, b30, … fma(a2, b2, fma(a0, b0, +0)))
/// odd  = fma(a31, b31, … fma(a3, b3, fma(a1, b1, +0)))
/// acc  = acc + (even + odd)
/// ```
/// Each operation is one of [`crate::flush_to_zero`]. Operands must be bf16 values.
///
/// The zeros of a shorter run count: a chain that has become −0 is +0 after one.
///
/// # Panics
/// Where `len` is over [`RUN`].
#[inline]
#[must_use]
pub fn add_run(acc: f32, len: usize, operands: impl Fn(usize) -> (f32, f32)) -> f32 {
    assert!(len <= RUN, "{len} steps are more than a run");
    let chain = |first: usize| {
        let sum = (first..len).step_by(2).fold(0.0, |sum, k| {
            let (a, b) = operands(k);
            fma(a, b, sum)
        });
        // Any number of zeros does what one does.
        if len + 1 < RUN || len < RUN && first == 1 { fma(0.0, 0.0, sum) } else { sum }
    };
    add(acc, add(chain(0), chain(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: f32 = 16_777_216.0; // 2^24

    fn run(acc: f32, terms: &[(f32, f32)]) -> f32 {
        add_run(acc, terms.len(), |k| terms[k])
    }

    #[test]
    fn even_and_odd_steps_are_chains_of_their_own() {
        // One chain would lose the 1 in 2^24 before that is taken away.
        assert_eq!(run(0.0, &[(BIG, 1.0), (1.0, 1.0), (-BIG, 1.0)]), 1.0);
        assert_eq!(run(0.0, &[(BIG, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 1.0), (-BIG, 1.0)]), 0.0);
    }

    #[test]
    fn the_accumulator_comes_last() {
        assert_eq!(run(1.0, &[(BIG, 1.0), (-BIG, 1.0)]), 1.0);
        assert_eq!(run(BIG, &[(1.0, 1.0), (1.0, 1.0)]), BIG + 2.0);
    }

    #[test]
    fn missing_steps_are_products_of_zeros() {
        let least = f32::MIN_POSITIVE;
        // The even chain flushes to −0; a product of zeros makes it +0.
        assert_eq!(run(-0.0, &[(-least, 0.5)]).to_bits(), 0);
    }

    #[test]
    fn a_shorter_run_is_one_with_zeros() {
        let term =
            |k: usize| ([1e-20, -1.0, -f32::MIN_POSITIVE][k % 3], [0.5, 3e38, 0.0][k % 5 % 3]);
        for len in 0..=RUN {
            let zeros = |k| if k < len { term(k) } else { (0.0, 0.0) };
            for acc in [0.0, -0.0, 1e30] {
                assert_eq!(add_run(acc, len, term).to_bits(), add_run(acc, RUN, zeros).to_bits());
            }
        }
    }

    #[test]
    fn subnormals_flush() {
        assert_eq!(run(f32::from_bits(1), &[(f32::from_bits(0x0001_0000), 1e30)]), 0.0);
    }
}
