//! Arithmetic in which numbers below the least normal one are zeros.
//!
//! The matrix instructions of x86 compute so whatever the flags of the thread say:
//! subnormal inputs count as zeros of their sign, every operation rounds to nearest
//! even, and a result that is tiny *after* rounding becomes a zero of its sign.

/// Scale at which a result near the least normal number is rounded as if the
/// exponent had no lower bound.
const UNBOUND: f32 = 18_446_744_073_709_551_616.0; // 2^64

/// A subnormal replaced by a zero of its sign.
#[inline]
#[must_use]
pub fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x }
}

/// `a · b + c` with one rounding, for bf16 values `a` and `b` (as `f32`) and any `c`.
#[inline]
#[must_use]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (flush(a), flush(b), flush(c));
    let r = a.mul_add(b, c);
    // Above the least normal number nothing can be tiny.
    if r.is_nan() || r.abs() > f32::MIN_POSITIVE {
        return r;
    }
    // The least normal number itself may have come from below by rounding.
    let scaled = (a * UNBOUND).mul_add(b, c * UNBOUND);
    if scaled.abs() < f32::MIN_POSITIVE * UNBOUND { 0.0_f32.copysign(r) } else { r }
}

/// `a + b`.
#[inline]
#[must_use]
pub fn add(a: f32, b: f32) -> f32 {
    // A tiny sum of normal numbers is exact.
    flush(flush(a) + flush(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: f32 = f32::MIN_POSITIVE;

    #[test]
    fn subnormal_inputs_are_zeros_of_their_sign() {
        let tiny = f32::from_bits(0x0001_0000);
        assert_eq!(fma(tiny, 1e30, 0.0), 0.0);
        assert_eq!(fma(0.0, 0.0, tiny), 0.0);
        assert_eq!(add(-tiny, -tiny).to_bits(), 0x8000_0000);
        assert_eq!(flush(LEAST), LEAST);
    }

    #[test]
    fn tiny_results_are_zeros_of_their_sign() {
        assert_eq!(fma(-LEAST, 0.5, 0.0).to_bits(), 0x8000_0000);
        assert_eq!(add(LEAST * 1.5, -LEAST), 0.0);
        assert_eq!(add(LEAST, LEAST), 2.0 * LEAST);
    }

    /// Both round to the least normal number as subnormals do. With no bound on the exponent the
    /// first rounds to the number below, which flushes.
    #[test]
    fn tiny_is_asked_after_rounding() {
        let [half, quarter] = [-75, -76].map(|exponent| 2.0_f32.powi(exponent));
        assert_eq!(fma(-1.5 * half, quarter, LEAST), 0.0);
        assert_eq!(fma(-quarter, quarter, LEAST), LEAST);
    }
}
