//! Sine and cosine of an `f32` angle, for rotary embeddings.

use super::{CANONICAL_NAN, ROUND_F64};

/// Greatest magnitude of an angle, in radians, for which [`sin_cos`] has a value
/// (`2^30`: beyond it an `f32` no longer resolves a turn by far).
pub const MAX_ANGLE: f32 = 1_073_741_824.0;

const TWO_OVER_PI: f64 = f64::from_bits(0x3fe4_5f30_6dc9_c883);
/// `pi / 2` as the nearest `f64` and the nearest `f64` to what it leaves.
const PI_2_HI: f64 = f64::from_bits(0x3ff9_21fb_5444_2d18);
const PI_2_LO: f64 = f64::from_bits(0x3c91_a626_3314_5c07);

/// `(sin r - r) / r^3` in `r^2` on `|r| <= pi / 4`, lowest first: FreeBSD msun
/// `k_sin.c` (fdlibm), S1 to S6.
const S: [f64; 6] = [
    f64::from_bits(0xbfc5_5555_5555_5549),
    f64::from_bits(0x3f81_1111_1110_f8a6),
    f64::from_bits(0xbf2a_01a0_19c1_61d5),
    f64::from_bits(0x3ec7_1de3_57b1_fe7d),
    f64::from_bits(0xbe5a_e5e6_8a2b_9ceb),
    f64::from_bits(0x3de5_d93a_5acf_d57c),
];

/// `(cos r - 1 + r^2 / 2) / r^4` in `r^2` on `|r| <= pi / 4`, lowest first:
/// FreeBSD msun `k_cos.c` (fdlibm), C1 to C6.
const C: [f64; 6] = [
    f64::from_bits(0x3fa5_5555_5555_554c),
    f64::from_bits(0xbf56_c16c_16c1_5177),
    f64::from_bits(0x3efa_01a0_19cb_1590),
    f64::from_bits(0xbe92_7e4f_809c_52ad),
    f64::from_bits(0x3e21_ee9e_bdb4_b1c4),
    f64::from_bits(0xbda8_fae9_be88_38d4),
];

/// `(sin, cos)` of an angle in radians, each within 0.501 ulp for every
/// `|angle| <= `[`MAX_ANGLE`].
///
/// Order of operations, all in `f64`:
/// ```text
/// x = f64(angle)
/// t = fma(x, 2/pi, 1.5 * 2^52)          the low bits of t hold n
/// n = t - 1.5 * 2^52
/// r = fma(n, -PI_2_LO, fma(n, -PI_2_HI, x))
/// z = r * r
/// s = fma(r * z, poly(S, z), r)
/// c = fma(z * z, poly(C, z), fma(z, -0.5, 1))
/// ```
/// then `n mod 4` selects (0: `s, c`; 1: `c, -s`; 2: `-s, -c`; 3: `-c, s`) and
/// both are rounded to `f32` once. An angle beyond [`MAX_ANGLE`], infinite or NaN
/// gives [`CANONICAL_NAN`] twice. `sin_cos(±0) = (±0, 1)`.
#[inline(always)]
#[must_use]
pub fn sin_cos(angle: f32) -> (f32, f32) {
    let x = f64::from(angle);
    let t = x.mul_add(TWO_OVER_PI, ROUND_F64);
    let n = t - ROUND_F64;
    let r = n.mul_add(-PI_2_LO, n.mul_add(-PI_2_HI, x));
    let z = r * r;
    let s = (r * z).mul_add(poly(&S, z), r);
    let c = (z * z).mul_add(poly(&C, z), z.mul_add(-0.5, 1.0));
    let quadrant = t.to_bits() & 3;
    let (sin, cos) = if quadrant & 1 == 0 { (s, c) } else { (c, s) };
    let sin = if quadrant & 2 == 0 { sin } else { -sin };
    let cos = if (quadrant + 1) & 2 == 0 { cos } else { -cos };
    // fma(n, -HI, x) of -0 is +0; a zero angle is its own sine.
    let sin = if angle == 0.0 { angle } else { sin as f32 };
    if angle.abs() <= MAX_ANGLE { (sin, cos as f32) } else { (CANONICAL_NAN, CANONICAL_NAN) }
}

#[inline(always)]
fn poly(coefficients: &[f64; 6], z: f64) -> f64 {
    let mut p = coefficients[5];
    for &c in coefficients[..5].iter().rev() {
        p = p.mul_add(z, c);
    }
    p
}
