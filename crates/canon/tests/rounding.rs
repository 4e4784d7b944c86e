//! The 16-bit conversions against the `half` crate.

use canon::rounding::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32, round_to_bf16};
use half::{bf16, f16};

#[test]
fn to_16_bits_is_half() {
    // A prime step, and every pattern whose low half is at or beside a tie.
    let sample = (0..=u32::MAX).step_by(257);
    let ties = (0..=0xffffu32).flat_map(|high| {
        [0x0000, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| high << 16 | low)
    });
    for bits in sample.chain(ties) {
        let x = f32::from_bits(bits);
        assert_eq!(bf16_from_f32(x), bf16::from_f32(x).to_bits(), "{bits:#x}");
        assert_eq!(f16_from_f32(x), f16::from_f32(x).to_bits(), "{bits:#x}");
    }
}

#[test]
fn from_16_bits_is_half() {
    for bits in 0..=u16::MAX {
        let wide = bf16_to_f32(bits).to_bits();
        let want = bf16::from_bits(bits).to_f32().to_bits();
        // `half` quiets a signalling NaN, a plain shift does not.
        let quiet = if bf16::from_bits(bits).is_nan() { 0x0040_0000 } else { 0 };
        assert_eq!(wide | quiet, want, "{bits:#x}");
        let wide = f16_to_f32(bits).to_bits();
        assert_eq!(wide, f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
    }
}

#[test]
fn specials() {
    assert_eq!(bf16_from_f32(-0.0), 0x8000);
    assert_eq!(bf16_from_f32(f32::MAX), 0x7f80);
    assert_eq!(bf16_from_f32(f32::from_bits(0x7f80_0001)), 0x7fc0);
    assert_eq!(f16_from_f32(65_519.996), 0x7bff);
    assert_eq!(f16_from_f32(65_520.0), 0x7c00);
    assert_eq!(f16_from_f32(f32::from_bits(0xff80_0001)), 0xfe00);
    assert_eq!(round_to_bf16(f32::from_bits(0x3f80_8000)).to_bits(), 1.0f32.to_bits());
}
