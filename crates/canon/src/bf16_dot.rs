//! Products of profile `cpu-bf16`: what the processor's bf16 dot instruction
//! (`vdpbf16ps`) computes, in basic operations.
//!
//! Found by experiment, and held against the instruction by the tests of the
//! `cpu` crate on random operands of every exponent range. bf16 values are held
//! here as the `f32` of the same value.

/// Scale at which a result near the least normal number is rounded as if the
/// exponent had no lower bound.
const UNBOUND: f32 = 18_446_744_073_709_551_616.0; // 2^64

/// One step of a chain over pairs: `acc + a[1]·b[1] + a[0]·b[0]`.
///
/// Order of operations:
/// ```text
/// t   = fma(a1, b1, flush(acc))      the odd element first
/// acc = fma(a0, b0, t)
/// ```
/// Every subnormal input (operand or accumulator) is first replaced by a zero of
/// its sign, each of the two fused multiply-adds rounds to nearest even, and a
/// result that is tiny *after* rounding becomes a zero of its sign. The rounding
/// mode and flush flags of the thread do not matter. Operands must be bf16 values
/// (see [`round_operand`]).
#[inline]
#[must_use]
pub fn dot_pair(acc: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    let t = fma_flushed(flush(a[1]), flush(b[1]), flush(acc));
    fma_flushed(flush(a[0]), flush(b[0]), t)
}

/// Rounds to bf16 as the operands of profile `cpu-bf16` are rounded: a subnormal
/// becomes a zero of its sign, everything else goes to the nearest, ties to
/// even; a NaN stays one (made quiet).
#[inline]
#[must_use]
pub fn round_operand(x: f32) -> f32 {
    crate::rounding::round_to_bf16(flush(x))
}

/// A subnormal replaced by a zero of its sign.
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x }
}

/// A fused multiply-add of normal numbers and zeros whose tiny results flush.
fn fma_flushed(a: f32, b: f32, c: f32) -> f32 {
    let r = a.mul_add(b, c);
    // Above the least normal number nothing can be tiny.
    if r.is_nan() || r.abs() > f32::MIN_POSITIVE {
        return r;
    }
    // The least normal number itself may have come from below by rounding.
    let scaled = (a * UNBOUND).mul_add(b, c * UNBOUND);
    if scaled.abs() < f32::MIN_POSITIVE * UNBOUND { 0.0_f32.copysign(r) } else { r }
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
