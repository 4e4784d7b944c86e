//! Powers: rotary frequencies and bias corrections, where no vector version is wanted.

use super::{CANONICAL_NAN, ROUND_F64};

const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// `ln 2` in two parts; the first has 32 trailing zero bits, so its product with
/// any exponent is exact (fdlibm).
const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// High half of `sqrt(1/2)`: mantissas are brought to `[0.707, 1.414)`.
const SQRT_HALF_HIGH: u64 = 0x3fe6_a09e_0000_0000;
/// Beyond this magnitude of `y ln x` an `f32` result is infinite or zero.
const MAX_LN: f64 = 200.0;

/// `(ln((1+s)/(1-s)) - 2s) / s^3` in `s^2`, lowest first: FreeBSD msun `e_log.c`
/// (fdlibm), Lg1 to Lg7.
const L: [f64; 7] = [
    f64::from_bits(0x3fe5_5555_5555_5593),
    f64::from_bits(0x3fd9_9999_9997_fa04),
    f64::from_bits(0x3fd2_4924_9422_9359),
    f64::from_bits(0x3fcc_71c5_1d8e_78af),
    f64::from_bits(0x3fc7_4664_96cb_03de),
    f64::from_bits(0x3fc3_9a09_d078_c69f),
    f64::from_bits(0x3fc2_f112_df3e_5244),
];

/// `base^exponent` rounded to `f32`, within 0.501 ulp where the result is normal.
///
/// `base` must be positive and finite and `exponent` finite; any other argument
/// gives [`CANONICAL_NAN`]. `pow(x, 0) = 1`.
///
/// Order of operations: the product `exponent * ln(base)` in `f64`, then its
/// exponential in `f64`, then one rounding. The `f64` logarithm is fdlibm's
/// (`s = f / (2 + f)`, Horner in `s^2`) and the exponential a Taylor polynomial
/// of degree 13 on `|r| <= ln 2 / 2`.
#[must_use]
pub fn pow(base: f32, exponent: f32) -> f32 {
    if !(base > 0.0 && base < f32::INFINITY && exponent.is_finite()) {
        return CANONICAL_NAN;
    }
    let y = f64::from(exponent) * ln_f64(f64::from(base));
    exp_f64(y.clamp(-MAX_LN, MAX_LN)) as f32
}

/// `base^exponent` in `f64` by repeated squaring.
///
/// Order of operations: `r = 1`; for each bit of the exponent from the lowest,
/// `r = r * b` if it is set, then `b = b * b`. Used for `beta^step` in the
/// optimizer's bias corrections.
#[must_use]
pub fn powi(base: f64, exponent: u64) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

/// `ln x` for a positive, finite, normal `x` (every positive `f32` is one).
fn ln_f64(x: f64) -> f64 {
    let bits = x.to_bits();
    let k = (bits.wrapping_sub(SQRT_HALF_HIGH) as i64) >> 52;
    let f = f64::from_bits(bits.wrapping_sub((k as u64) << 52)) - 1.0;
    let e = k as f64;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut p = L[6];
    for &c in L[..6].iter().rev() {
        p = p.mul_add(z, c);
    }
    let half = 0.5 * f * f;
    let tail = s.mul_add(z.mul_add(p, half), e * LN2_LO);
    e.mul_add(LN2_HI, f - (half - tail))
}

/// `e^x` for `|x| <= 200`.
fn exp_f64(x: f64) -> f64 {
    /// Degree of the Taylor polynomial; the first term left out is below `2^-57`.
    const DEGREE: u32 = 13;
    let t = x.mul_add(LOG2_E, ROUND_F64);
    let n = t - ROUND_F64;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    let mut p = 1.0;
    for k in (1..=DEGREE).rev() {
        p = (p * r / f64::from(k)) + 1.0;
    }
    f64::from_bits(p.to_bits().wrapping_add(t.to_bits() << 52))
}
