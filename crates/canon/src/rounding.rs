//! Conversions between `f32` and the 16-bit formats.
//!
//! To 16 bits: round to nearest, ties to even, subnormals kept, overflow to
//! infinity; NaN keeps its sign and the high bits of its payload and is made
//! quiet. From 16 bits: exact. The bits are those of the `half` crate, which the
//! tests compare over every 16-bit pattern and a dense sample of `f32`, with one
//! exception: [`bf16_to_f32`] moves a signalling NaN as it is.

/// `f32` to the bits of a bfloat16.
#[inline]
#[must_use]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    // Half of the last kept place, minus one when that place is even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x0040;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

/// The bits of a bfloat16 to `f32`, exactly.
#[inline]
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to the nearest bfloat16, as an `f32`.
#[inline]
#[must_use]
pub fn round_to_bf16(x: f32) -> f32 {
    bf16_to_f32(bf16_from_f32(x))
}

/// `f32` to the bits of an IEEE binary16.
#[inline]
#[must_use]
pub fn f16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = match magnitude {
        // NaN: quiet, high payload bits kept.
        0x7f80_0001.. => 0x7e00 | ((magnitude >> 13) & 0x03ff),
        // 65,520 and above, the midpoint to 2^16 included, and infinity.
        0x477f_f000.. => 0x7c00,
        // Normal, 2^-14 and above: rebias the exponent, round the 13 low bits.
        0x3880_0000.. => {
            let rebiased = magnitude - ((127 - 15) << 23);
            (rebiased + 0x0fff + ((rebiased >> 13) & 1)) >> 13
        }
        // Subnormal: adding 0.5 lines the last place 2^-24 of a half up with
        // the last place of the sum, and the addition rounds half to even.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    (sign | half) as u16
}

/// The bits of an IEEE binary16 to `f32`, exactly.
#[inline]
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let single = match magnitude {
        0x7c01.. => 0x7fc0_0000 | (magnitude << 13),
        0x7c00 => 0x7f80_0000,
        0x0400.. => (magnitude << 13) + ((127 - 15) << 23),
        // magnitude * 2^-24: both factors and the product are exact.
        _ => (magnitude as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
    };
    f32::from_bits(sign | single)
}
