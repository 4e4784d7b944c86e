//! `tanh x` in `f32`.

use super::{CANONICAL_NAN, exp};

/// Below this magnitude the polynomial is used, from it upwards the exponential.
const SMALL: f32 = 0.625;

/// `(tanh(x) / x - 1) / x^2` in `z = x^2` on `[0, 0.625^2]`, lowest coefficient
/// first; weighted minimax fit, relative error of `tanh` below `2^-27.7`.
const P: [f32; 5] = [
    f32::from_bits(0xbeaa_aa99), // -0.333_332_8
    f32::from_bits(0x3e08_837b), // 0.133_314_06
    f32::from_bits(0xbd5c_1ad2), // -0.053_736_515
    f32::from_bits(0x3ca8_fc67), // 0.020_628_167
    f32::from_bits(0xbbba_8672), // -0.005_692_296_7
];

/// The hyperbolic tangent, within 1.34 ulp (every argument).
///
/// Order of operations, with `a = |x|`:
/// ```text
/// z = a * a
/// p = fma(fma(fma(fma(P4, z, P3), z, P2), z, P1), z, P0)
/// s = fma(z * p, a, a)                  used when a < 0.625
/// l = 1 - 2 / (exp(a + a) + 1)          used otherwise
/// ```
/// The result takes the sign bit of `x` (so `tanh(-0) = -0`); NaN gives
/// [`CANONICAL_NAN`].
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = P[4].mul_add(z, P[3]);
    let p = p.mul_add(z, P[2]);
    let p = p.mul_add(z, P[1]);
    let p = p.mul_add(z, P[0]);
    let s = (z * p).mul_add(a, a);
    let l = 1.0 - 2.0 / (exp(a + a) + 1.0);
    let y = if a < SMALL { s } else { l };
    if x.is_nan() { CANONICAL_NAN } else { y.copysign(x) }
}
