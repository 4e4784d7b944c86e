//! The vector in plain Rust.

use half::bf16;

use super::{Kernel, LANES, Vector};
use crate::bf16_dot::round_operand;

/// Sixteen lanes in an array.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

#[inline(always)]
fn zip(a: Portable, b: Portable, f: impl Fn(f32, f32) -> f32) -> Portable {
    Portable(std::array::from_fn(|i| f(a.0[i], b.0[i])))
}

#[inline(always)]
fn bits(a: Portable, f: impl Fn(u32) -> u32) -> Portable {
    Portable(a.0.map(|x| f32::from_bits(f(x.to_bits()))))
}

impl Vector for Portable {
    const TILE_ROWS: usize = 4;
    const TILE_HEIGHTS: &'static [usize] = &[4];
    const WIDE: bool = false;
    const FEW_ROWS: bool = !cfg!(target_arch = "x86_64");

    #[inline(never)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: needs no instruction set.
        unsafe { kernel.run::<Self>() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: sixteen lanes are readable.
        Self(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        // SAFETY: `n` lanes are readable.
        unsafe { p.copy_to_nonoverlapping(lanes.as_mut_ptr(), n.min(LANES)) };
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: sixteen lanes are writable.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: `n` lanes are writable.
        unsafe { self.0.as_ptr().copy_to_nonoverlapping(p, n.min(LANES)) };
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: sixteen lanes are readable.
        unsafe { Self::load_bf16_first(p, LANES) }
    }
    #[inline(never)]
    unsafe fn load_bf16_first(p: *const u16, n: usize) -> Self {
        let mut halves = [0_u16; LANES];
        // SAFETY: `n` lanes are readable.
        unsafe { p.copy_to_nonoverlapping(halves.as_mut_ptr(), n.min(LANES)) };
        Self(halves.map(|h| f32::from_bits(u32::from(h) << 16)))
    }
    #[inline(never)]
    unsafe fn store_bf16_first(self, p: *mut u16, n: usize) {
        let rounded = self.0.map(|x| bf16::from_f32(x).to_bits());
        // SAFETY: `n` lanes are writable.
        unsafe { rounded.as_ptr().copy_to_nonoverlapping(p, n.min(LANES)) };
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        zip(self, o, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        zip(self, o, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        zip(self, o, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        zip(self, o, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        zip(self, o, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn select_less(self, o: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < o.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    unsafe fn select_equal(self, o: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] == o.0[i] { yes.0[i] } else { no.0[i] }))
    }

    #[inline(always)]
    unsafe fn add_bits(self, o: Self) -> Self {
        zip(self, o, |a, b| f32::from_bits(a.to_bits().wrapping_add(b.to_bits())))
    }
    #[inline(always)]
    unsafe fn sub_bits(self, o: Self) -> Self {
        zip(self, o, |a, b| f32::from_bits(a.to_bits().wrapping_sub(b.to_bits())))
    }
    #[inline(always)]
    unsafe fn shl_bits<const N: u32>(self) -> Self {
        bits(self, |b| b << N)
    }
    #[inline(always)]
    unsafe fn sar_bits<const N: u32>(self) -> Self {
        bits(self, |b| ((b as i32) >> N) as u32)
    }
    #[inline(always)]
    unsafe fn high_half(self) -> Self {
        bits(self, |b| b & 0xffff_0000)
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_far(_: *const u8) {}
    #[inline(always)]
    unsafe fn int_to_float(self) -> Self {
        Self(self.0.map(|x| (x.to_bits() as i32) as f32))
    }

    #[inline(never)]
    unsafe fn round_operand(self) -> Self {
        Self(self.0.map(|x| round_operand(x).to_f32()))
    }

    #[inline(never)]
    unsafe fn transpose(block: &mut [Self; LANES]) {
        for i in 0..LANES {
            for j in 0..i {
                let swapped = block[i].0[j];
                block[i].0[j] = block[j].0[i];
                block[j].0[i] = swapped;
            }
        }
    }
}
