//! The logistic function and the gate built from it.

use super::{CANONICAL_NAN, exp};

/// `1 / (1 + e^-x)`, within 2.5 ulp where the result is normal.
///
/// Order of operations: `d = 1 + exp(-x)`, `y = 1 / d`; NaN gives
/// [`CANONICAL_NAN`]. Below `-`[`EXP_OVERFLOW`](super::EXP_OVERFLOW) the result
/// is `+0`.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    let y = 1.0 / (1.0 + exp(-x));
    if x.is_nan() { CANONICAL_NAN } else { y }
}

/// `x / (1 + e^-x)`, the gate of a SwiGLU feed-forward, within 2.5 ulp where the
/// result is normal.
///
/// Order of operations: `d = 1 + exp(-x)`, `y = x / d`; a NaN result (from NaN
/// and from `-inf`, which has no value here) is [`CANONICAL_NAN`]. Finite
/// arguments below `-`[`EXP_OVERFLOW`](super::EXP_OVERFLOW) give `-0`.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    let y = x / (1.0 + exp(-x));
    if y.is_nan() { CANONICAL_NAN } else { y }
}
