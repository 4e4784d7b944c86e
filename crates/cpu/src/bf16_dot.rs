//! The arithmetic of profile `cpu-bf16` on bf16 values: what `vdpbf16ps` computes.
//!
//! The rule itself is [`canon::bf16_dot`]; it was found by experiment, and the test
//! here holds it against the instruction on random operands of every exponent
//! range.

use half::bf16;

/// `acc + a0 * b0 + a1 * b1` with the roundings and order of `vdpbf16ps`, see
/// [`canon::bf16_dot::dot_pair`].
#[inline]
#[must_use]
pub fn dot_bf16_pair(acc: f32, a0: bf16, b0: bf16, a1: bf16, b1: bf16) -> f32 {
    canon::bf16_dot::dot_pair(acc, [a0.to_f32(), a1.to_f32()], [b0.to_f32(), b1.to_f32()])
}

/// Rounds to bf16 as the operands of profile `cpu-bf16` are rounded, see
/// [`canon::bf16_dot::round_operand`].
#[inline]
#[must_use]
pub fn round_operand(x: f32) -> bf16 {
    // Exact: the value is a bf16 already.
    bf16::from_f32(canon::bf16_dot::round_operand(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_element_first() {
        // 1 + 2^24 (rounded: 1 is lost) - 2^24 differs from the other order.
        let big = bf16::from_f32(16_777_216.0);
        let one = bf16::ONE;
        let pair = dot_bf16_pair(1.0, -one, big, one, big);
        assert_eq!(pair, 0.0);
        assert_eq!(dot_bf16_pair(0.0, one, one, one, one), 2.0);
    }

    #[test]
    fn subnormals_flush() {
        let tiny = bf16::from_bits(0x0001);
        assert_eq!(dot_bf16_pair(0.0, tiny, bf16::from_f32(1e30), bf16::ZERO, bf16::ZERO), 0.0);
        let least = f32::from_bits(0x0000_0001);
        assert_eq!(dot_bf16_pair(least, bf16::ZERO, bf16::ZERO, bf16::ZERO, bf16::ZERO), 0.0);
        assert_eq!(round_operand(-least).to_bits(), 0x8000);
    }

    #[test]
    fn operands_round_to_nearest_even() {
        assert_eq!(round_operand(f32::from_bits(0x3f80_8000)).to_bits(), 0x3f80);
        assert_eq!(round_operand(f32::from_bits(0x3f81_8000)).to_bits(), 0x3f82);
        assert!(round_operand(f32::from_bits(0x7f80_0001)).is_nan());
        assert_eq!(round_operand(f32::MAX).to_bits(), 0x7f80);
    }

    /// The experiment itself: random operands in four exponent ranges, the
    /// instruction against the emulation.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn equals_the_instruction() {
        if !crate::isa::has_native_bf16_dot() {
            println!("skipped: equals_the_instruction because this processor has no avx512bf16");
            return;
        }
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for range in 0..4 {
            for _ in 0..500_000 {
                let (x, y) = (next(), next());
                let mut ops = [0_u16; 4];
                for (i, op) in ops.iter_mut().enumerate() {
                    let v = (x >> (16 * i)) as u16;
                    *op = match range {
                        0 => v,
                        1 => (v & 0x807f) | ((60 + (v >> 8) % 10) << 7),
                        2 => (v & 0x807f) | ((((v >> 7) & 3) * 21 + 40) << 7),
                        _ => (v & 0x807f) | ((125 + (v >> 8) % 4) << 7),
                    };
                }
                let exponent = match range {
                    0 => (y >> 23) as u32 & 0xff,
                    1 | 2 => (y >> 40) as u32 % 20,
                    _ => 120 + (y >> 40) as u32 % 12,
                };
                let acc = f32::from_bits((y as u32 & 0x807f_ffff) | (exponent << 23));
                let [a0, b0, a1, b1] = ops.map(bf16::from_bits);
                // SAFETY: the processor has avx512bf16 (checked above).
                let native = unsafe { native(acc, ops) };
                let soft = dot_bf16_pair(acc, a0, b0, a1, b1);
                assert!(
                    native.to_bits() == soft.to_bits() || native.is_nan() && soft.is_nan(),
                    "{acc:e} + {a0:e}*{b0:e} + {a1:e}*{b1:e}: {native:e}, emulated {soft:e}"
                );
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn native(acc: f32, ops: [u16; 4]) -> f32 {
        use std::arch::x86_64::*;
        let pair = |lo: u16, hi: u16| {
            let words = _mm512_set1_epi32((u32::from(lo) | (u32::from(hi) << 16)) as i32);
            // SAFETY: same size, any bit pattern is valid.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
        };
        let acc = _mm512_set1_ps(acc);
        _mm512_cvtss_f32(_mm512_dpbf16_ps(acc, pair(ops[0], ops[2]), pair(ops[1], ops[3])))
    }
}
