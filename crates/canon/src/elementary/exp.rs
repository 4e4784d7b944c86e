//! `e^x` in `f32`.

use super::{CANONICAL_NAN, ROUND_F32};

/// Arguments below this give exactly `+0`: it is the least `f32` whose
/// exponential is a normal number, so no subnormal is ever produced.
pub const EXP_UNDERFLOW: f32 = f32::from_bits(0xc2ae_ac4f); // -87.33654

/// Arguments above this give `+inf`: it is the greatest `f32` whose exponential
/// is finite.
pub const EXP_OVERFLOW: f32 = f32::from_bits(0x42b1_7217); // 88.72283

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// `ln 2` in two parts. The first has ten significant bits, so its product with
/// any exponent is exact.
pub(super) const LN2_HI: f32 = f32::from_bits(0x3f31_8000); // 0.693_359_375
pub(super) const LN2_LO: f32 = f32::from_bits(0xb95e_8083); // -2.121_944_4e-4

/// `(e^r - 1 - r) / r^2` on `|r| <= ln 2 / 2`, lowest coefficient first;
/// weighted minimax fit, relative error of `e^r` below `2^-28.2`.
const Q: [f32; 5] = [
    f32::from_bits(0x3eff_fffe), // 0.499_999_94
    f32::from_bits(0x3e2a_aa49), // 0.166_665_21
    f32::from_bits(0x3d2a_ac56), // 0.041_668_26
    f32::from_bits(0x3c09_1cbe), // 0.008_368_669
    f32::from_bits(0x3ab5_289a), // 0.001_382_130_4
];

/// `e^x`, within 1.02 ulp (exhaustive over all `2^32` arguments).
///
/// Order of operations:
/// ```text
/// t = fma(x, LOG2_E, 1.5 * 2^23)        the low bits of t hold n = round(x / ln 2)
/// n = t - 1.5 * 2^23
/// r = fma(n, -LN2_HI, x)                exact
/// r = fma(n, -LN2_LO, r)
/// q = fma(fma(fma(fma(Q4, r, Q3), r, Q2), r, Q1), r, Q0)
/// p = 1 + fma(q, r * r, r)
/// y = bits(p) + (bits(t) << 23)         wrapping; multiplies by 2^n
/// ```
/// then three selects: `x < EXP_UNDERFLOW` gives `+0`, `x > EXP_OVERFLOW` gives
/// `+inf`, NaN gives [`CANONICAL_NAN`]. So `exp(-inf) = +0`, `exp(+inf) = +inf`
/// and `exp(±0) = 1`.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let t = x.mul_add(LOG2_E, ROUND_F32);
    let n = t - ROUND_F32;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let q = Q[4].mul_add(r, Q[3]);
    let q = q.mul_add(r, Q[2]);
    let q = q.mul_add(r, Q[1]);
    let q = q.mul_add(r, Q[0]);
    let p = 1.0 + q.mul_add(r * r, r);
    // The bits of 1.5 * 2^23 vanish under the shift, so only n is left.
    let y = f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
    let y = if x < EXP_UNDERFLOW { 0.0 } else { y };
    let y = if x > EXP_OVERFLOW { f32::INFINITY } else { y };
    if x.is_nan() { CANONICAL_NAN } else { y }
}
