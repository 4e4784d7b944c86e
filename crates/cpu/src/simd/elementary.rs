//! `canon::exp` and `canon::ln`, sixteen at a time, with their bits.
//!
//! The operations and their order are those of the scalar definitions; the tests
//! compare every bit pattern of a dense sample.

use super::Vector;

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
const LN2_HI: f32 = f32::from_bits(0x3f31_8000); // 0.693_359_375
const LN2_LO: f32 = f32::from_bits(0xb95e_8083);
/// `1.5 * 2^23`.
const ROUND: f32 = 12_582_912.0;
/// `2^23`.
const SUBNORMAL_SCALE: f32 = 8_388_608.0;

/// `canon::exp` in each lane.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    const Q: [u32; 5] = [0x3eff_fffe, 0x3e2a_aa49, 0x3d2a_ac56, 0x3c09_1cbe, 0x3ab5_289a];
    // SAFETY: as the caller's.
    unsafe {
        let t = x.fma(V::splat(LOG2_E), V::splat(ROUND));
        let n = t.sub(V::splat(ROUND));
        let r = n.fma(V::splat(-LN2_HI), x);
        let r = n.fma(V::splat(-LN2_LO), r);
        let mut q = V::splat(f32::from_bits(Q[4]));
        for i in [3, 2, 1, 0] {
            q = q.fma(r, V::splat(f32::from_bits(Q[i])));
        }
        let p = V::splat(1.0).add(q.fma(r.mul(r), r));
        let y = p.add_bits(t.shl_bits::<23>());
        let y = x.select_less(V::splat(canon::elementary::EXP_UNDERFLOW), V::zero(), y);
        let over = V::splat(canon::elementary::EXP_OVERFLOW);
        let y = over.select_less(x, V::splat(f32::INFINITY), y);
        x.select_equal(x, y, V::splat(canon::elementary::CANONICAL_NAN))
    }
}

/// `canon::ln` in each lane.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
pub(crate) unsafe fn ln<V: Vector>(x: V) -> V {
    const TWO_THIRDS: u32 = 0x3f2a_aaab;
    const P: [u32; 8] = [
        0x3eaa_aa83,
        0xbe7f_ff7d,
        0x3e4c_e828,
        0xbe2a_ce33,
        0x3e0f_6ab1,
        0xbdf9_995c,
        0x3e0f_3665,
        0xbe03_e245,
    ];
    // SAFETY: as the caller's.
    unsafe {
        let least = V::splat(f32::MIN_POSITIVE);
        let i = x.select_less(least, x.mul(V::splat(SUBNORMAL_SCALE)), x);
        let k = i.sub_bits(V::splat(f32::from_bits(TWO_THIRDS))).sar_bits::<23>();
        let f = i.sub_bits(k.shl_bits::<23>()).sub(V::splat(1.0));
        let shifted = k.sub_bits(V::splat(f32::from_bits(23)));
        let e = x.select_less(least, shifted, k).int_to_float();
        let mut p = V::splat(f32::from_bits(P[7]));
        for j in [6, 5, 4, 3, 2, 1, 0] {
            p = p.fma(f, V::splat(f32::from_bits(P[j])));
        }
        let w = f.fma(p, V::splat(-0.5));
        let l = f.mul(f).fma(w, e.mul(V::splat(LN2_LO)));
        let y = e.fma(V::splat(LN2_HI), f.add(l));
        let y = x.select_equal(V::splat(f32::INFINITY), x, y);
        let y = x.select_equal(V::zero(), V::splat(f32::NEG_INFINITY), y);
        let nan = V::splat(canon::elementary::CANONICAL_NAN);
        let y = x.select_less(V::zero(), nan, y);
        x.select_equal(x, y, nan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Kernel, LANES, dispatch};

    struct Apply<'a> {
        x: &'a [f32; LANES],
        log: bool,
    }

    impl Kernel for Apply<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        unsafe fn run<V: Vector>(self) -> [f32; LANES] {
            // SAFETY: sixteen lanes are readable.
            unsafe {
                let x = V::load(self.x.as_ptr());
                (if self.log { ln(x) } else { exp(x) }).to_array()
            }
        }
    }

    /// Every 509th bit pattern (a prime, so all exponents and fractions mix) and
    /// the neighbourhood of every threshold.
    fn sample() -> Vec<f32> {
        let mut bits: Vec<u32> = (0..=u32::MAX / 509).map(|i| i * 509).collect();
        let edges = [0.0, 1.0, -0.0, 88.722_83, -87.336_54, f32::INFINITY, f32::MIN_POSITIVE];
        for edge in edges {
            for d in 0..64_u32 {
                bits.push(edge.to_bits().wrapping_add(d).wrapping_sub(32));
                bits.push((-edge).to_bits().wrapping_add(d).wrapping_sub(32));
            }
        }
        bits.into_iter().map(f32::from_bits).collect()
    }

    #[test]
    fn equal_to_the_canon_on_every_isa() {
        let mut sample = sample();
        sample.resize(sample.len().next_multiple_of(LANES), 0.0);
        let (blocks, _) = sample.as_chunks::<LANES>();
        for isa in Isa::available() {
            for x in blocks {
                for log in [false, true] {
                    // SAFETY: `Apply` needs nothing but the instruction set.
                    let got = unsafe { dispatch(isa, Apply { x, log }) };
                    for i in 0..LANES {
                        let scalar = if log {
                            canon::elementary::ln(x[i])
                        } else {
                            canon::elementary::exp(x[i])
                        };
                        assert_eq!(
                            got[i].to_bits(),
                            scalar.to_bits(),
                            "{isa} log={log} {:e}",
                            x[i]
                        );
                    }
                }
            }
        }
    }
}
