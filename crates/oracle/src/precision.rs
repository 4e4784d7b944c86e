//! The arithmetic profiles: how a chain of products is formed.

use canon::bf16_dot::{dot_pair, round_operand};
use canon::tile_dot::{RUN, add_run};

/// How the products of matrices and log-probs are formed; everything else, attention included, is f32 in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Profile `cpu-f32`: one fused multiply-add a product.
    F32,
    /// Profile `cpu-bf16`: operands rounded to bf16, products in pairs as the bf16 dot instruction forms them.
    Bf16,
    /// Profile `cpu-bf16-tiles`: operands rounded to bf16, products in runs of 32 as the bf16 tile instruction forms
    /// them.
    Bf16Tiles,
}

impl Precision {
    /// Continues a chain: `acc` then the products of `operands(0)`, `operands(1)`, … `operands(len − 1)`.
    ///
    /// F32: `acc = fma(a, b, acc)` for each. Bf16: for each pair (2i, 2i + 1), the missing half of an odd end being zero,
    /// one [`dot_pair`] of operands rounded by [`round_operand`]. Bf16Tiles: for each run of 32, one [`add_run`] of
    /// operands rounded likewise.
    pub(crate) fn chain(self, acc: f32, len: usize, operands: impl Fn(usize) -> (f32, f32)) -> f32 {
        match self {
            Precision::F32 => canon::fused((acc, len, operands), singles),
            Precision::Bf16 => canon::fused((acc, len, operands), pairs),
            Precision::Bf16Tiles => canon::fused((acc, len, operands), runs),
        }
    }
}

#[inline(always)]
fn singles((acc, len, operands): (f32, usize, impl Fn(usize) -> (f32, f32))) -> f32 {
    (0..len).fold(acc, |acc, k| {
        let (a, b) = operands(k);
        a.mul_add(b, acc)
    })
}

#[inline(always)]
fn pairs((acc, len, operands): (f32, usize, impl Fn(usize) -> (f32, f32))) -> f32 {
    (0..len).step_by(2).fold(acc, |acc, k| {
        let even = operands(k);
        let odd = if k + 1 < len { operands(k + 1) } else { (0.0, 0.0) };
        let [a, b] = [[even.0, odd.0], [even.1, odd.1]].map(|pair| pair.map(round_operand));
        dot_pair(acc, a, b)
    })
}

#[inline(always)]
fn runs((acc, len, operands): (f32, usize, impl Fn(usize) -> (f32, f32))) -> f32 {
    (0..len).step_by(RUN).fold(acc, |acc, first| {
        add_run(acc, RUN.min(len - first), |k| {
            let (a, b) = operands(first + k);
            (round_operand(a), round_operand(b))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_is_one_fused_multiply_add_a_product() {
        // The square of 1 + 2^-12 needs 25 bits: fused, the last one survives the subtraction.
        let x = 1.0 + 2.0f32.powi(-12);
        let terms = [(1.0, -(1.0 + 2.0f32.powi(-11))), (x, x)];
        assert_eq!(Precision::F32.chain(0.0, 2, |k| terms[k]), 2.0f32.powi(-24));
    }

    #[test]
    fn bf16_rounds_operands_and_pads_an_odd_end() {
        let x = 1.0 + 2.0f32.powi(-9);
        assert_eq!(Precision::Bf16.chain(0.0, 3, |_| (x, 1.0)), 3.0);
        assert_eq!(Precision::F32.chain(0.0, 3, |_| (x, 1.0)), 3.0 * x);
    }

    #[test]
    fn tiles_sum_runs_apart() {
        let x = 1.0 + 2.0f32.powi(-9);
        assert_eq!(Precision::Bf16Tiles.chain(0.0, 35, |_| (x, 1.0)), 35.0);
        // The second run's sum is 2 before it meets 2^24, to which two single ones add nothing.
        let terms = |k| (if k == 0 { 16_777_216.0 } else { f32::from(k >= 32) }, 1.0);
        assert_eq!(Precision::Bf16Tiles.chain(0.0, 34, terms), 16_777_218.0);
        assert_eq!(Precision::Bf16.chain(0.0, 34, terms), 16_777_216.0);
    }
}
