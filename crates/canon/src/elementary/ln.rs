//! `ln x` in `f32`.

use super::CANONICAL_NAN;
use super::exp::{LN2_HI, LN2_LO};

/// Bits of 2/3: mantissas are brought to `[2/3, 4/3)`, where `ln` is smallest
/// on both sides.
const TWO_THIRDS_BITS: u32 = 0x3f2a_aaab;

/// `2^23` brings every subnormal to a normal number.
const SUBNORMAL_SCALE: f32 = 8_388_608.0;

/// `(ln(1 + f) - f + f^2 / 2) / f^3` on `[-1/3, 1/3]`, lowest coefficient first;
/// weighted minimax fit, relative error of `ln(1 + f)` below `2^-27.6`.
const P: [f32; 8] = [
    f32::from_bits(0x3eaa_aa83), // 0.333_332_15
    f32::from_bits(0xbe7f_ff7d), // -0.249_998_05
    f32::from_bits(0x3e4c_e828), // 0.200_104_36
    f32::from_bits(0xbe2a_ce33), // -0.166_802_21
    f32::from_bits(0x3e0f_6ab1), // 0.140_055_43
    f32::from_bits(0xbdf9_995c), // -0.121_874_54
    f32::from_bits(0x3e0f_3665), // 0.139_855_94
    f32::from_bits(0xbe03_e245), // -0.128_792_84
];

/// The natural logarithm, within 0.89 ulp (exhaustive over all `2^32` arguments).
///
/// Order of operations (integers are 32-bit and wrap):
/// ```text
/// s = x < 2^-126                        a subnormal (or an argument the selects replace)
/// i = bits(s ? x * 2^23 : x)
/// k = (i - bits(2/3)) >> 23             arithmetic shift
/// f = from_bits(i - (k << 23)) - 1      in [-1/3, 1/3), exact
/// e = float(s ? k - 23 : k)
/// p = fma(...fma(fma(P7, f, P6), f, P5)..., f, P0)
/// w = fma(f, p, -0.5)
/// l = fma(f * f, w, e * LN2_LO)
/// y = fma(e, LN2_HI, f + l)
/// ```
/// then the selects: `±0` gives `-inf`, `+inf` gives `+inf`, a negative or NaN
/// argument gives [`CANONICAL_NAN`]. `ln(1) = +0`.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let i = if small { x * SUBNORMAL_SCALE } else { x }.to_bits();
    let k = (i.wrapping_sub(TWO_THIRDS_BITS) as i32) >> 23;
    let f = f32::from_bits(i.wrapping_sub((k as u32) << 23)) - 1.0;
    let e = if small { k - 23 } else { k } as f32;
    let mut p = P[7];
    for &c in P[..7].iter().rev() {
        p = p.mul_add(f, c);
    }
    let w = f.mul_add(p, -0.5);
    let l = (f * f).mul_add(w, e * LN2_LO);
    let y = e.mul_add(LN2_HI, f + l);
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { CANONICAL_NAN } else { y }
}
