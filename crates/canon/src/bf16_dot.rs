//! Products of profile `cpu-bf16`: what the processor's bf16 dot instruction
//! (`vdpbf16ps`) computes, in basic operations.
//!
//! Found by experiment, and held against the instruction by the tests of the
//! `cpu` crate on random operands of every exponent range. bf16 values are held
//! here as the `f32` of the same value.

use crate::flush_to_zero::{flush, fma};

/// One step of a chain over pairs: `acc + a[1]·b[1] + a[0]·b[0]`.
///
/// Order of operations:
/// ```text
/// t   = fma(a1, b1, acc)      the odd element first
/// acc = fma(a0, b0, t)
/// ```
/// Both are [`crate::flush_to_zero::fma`]; the rounding mode and flush flags of the
/// thread do not matter. Operands must be bf16 values (see [`round_operand`]).
#[inline]
#[must_use]
pub fn dot_pair(acc: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    let t = fma(a[1], b[1], acc);
    fma(a[0], b[0], t)
}

/// Rounds to bf16 as the operands of profile `cpu-bf16` are rounded: a subnormal
/// becomes a zero of its sign, everything else goes to the nearest, ties to
/// even; a NaN stays one (made quiet).
#[inline]
#[must_use]
pub fn round_operand(x: f32) -> f32 {
    crate::rounding::round_to_bf16(flush(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_element_comes_first() {
        // 1 + 2^24 loses the 1, then 2^24 is taken away; in the other order the 1 survives.
        let big = 16_777_216.0;
        assert_eq!(dot_pair(1.0, [-1.0, 1.0], [big, big]), 0.0);
        assert_eq!(dot_pair(1.0, [1.0, -1.0], [big, big]), 1.0);
        assert_eq!(dot_pair(0.0, [1.0, 1.0], [1.0, 1.0]), 2.0);
    }

    #[test]
    fn subnormals_flush() {
        let tiny = f32::from_bits(0x0001_0000);
        assert_eq!(dot_pair(0.0, [tiny, 0.0], [1e30, 0.0]), 0.0);
        assert_eq!(dot_pair(f32::from_bits(1), [0.0; 2], [0.0; 2]), 0.0);
        assert_eq!(round_operand(-f32::from_bits(1)).to_bits(), 0x8000_0000);
    }

    #[test]
    fn operands_round_to_nearest_even() {
        assert_eq!(round_operand(f32::from_bits(0x3f80_8000)).to_bits(), 0x3f80_0000);
        assert_eq!(round_operand(f32::from_bits(0x3f81_8000)).to_bits(), 0x3f82_0000);
        assert!(round_operand(f32::from_bits(0x7f80_0001)).is_nan());
        assert_eq!(round_operand(f32::MAX), f32::INFINITY);
    }
}
