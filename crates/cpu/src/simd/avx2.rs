//! The vector as two 256-bit registers.

use std::arch::x86_64::*;

use half::bf16;

use super::{Kernel, LANES, Vector};

/// Sixteen lanes in two `ymm` registers.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

/// Lane masks: eight ones, then eight zeros; a window of it enables `n` lanes.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn masks(n: usize) -> (__m256i, __m256i) {
    debug_assert!(n <= LANES);
    // SAFETY: both windows lie inside the table: their starts are at most 8.
    unsafe {
        let lo = WINDOW.as_ptr().add(8 - n.min(8));
        let hi = WINDOW.as_ptr().add(8 - n.saturating_sub(8));
        (_mm256_loadu_si256(lo.cast()), _mm256_loadu_si256(hi.cast()))
    }
}

#[inline(always)]
unsafe fn int(v: __m256) -> __m256i {
    // SAFETY: as the caller's; a cast of the register.
    unsafe { _mm256_castps_si256(v) }
}

#[inline(always)]
unsafe fn float(v: __m256i) -> __m256 {
    // SAFETY: as the caller's; a cast of the register.
    unsafe { _mm256_castsi256_ps(v) }
}

#[inline(always)]
unsafe fn widen(p: *const u16) -> __m256 {
    // SAFETY: eight halves are readable.
    unsafe {
        let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        float(_mm256_slli_epi32::<16>(words))
    }
}

/// An 8 x 8 transpose.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: as the caller's.
    unsafe {
        let mut t = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = [_mm256_setzero_ps(); 8];
        for i in 0..2 {
            let p = 4 * i;
            u[p] = _mm256_shuffle_ps::<0x44>(t[p], t[p + 2]);
            u[p + 1] = _mm256_shuffle_ps::<0xee>(t[p], t[p + 2]);
            u[p + 2] = _mm256_shuffle_ps::<0x44>(t[p + 1], t[p + 3]);
            u[p + 3] = _mm256_shuffle_ps::<0xee>(t[p + 1], t[p + 3]);
        }
        let mut out = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[4 + i]);
            out[4 + i] = _mm256_permute2f128_ps::<0x31>(u[i], u[4 + i]);
        }
        out
    }
}

macro_rules! both {
    ($f:ident, $a:expr, $b:expr) => {
        unsafe { Self($f($a.0, $b.0), $f($a.1, $b.1)) }
    };
}

macro_rules! both_bits {
    ($f:ident, $a:expr, $b:expr) => {
        unsafe { Self(float($f(int($a.0), int($b.0))), float($f(int($a.1), int($b.1)))) }
    };
}

/// The bits of bf16 `round_operand` in the high half of each word.
#[inline(always)]
unsafe fn round_operand(v: __m256) -> __m256 {
    // SAFETY: as the caller's.
    unsafe {
        let sign = _mm256_and_si256(int(v), _mm256_set1_epi32(i32::MIN));
        let magnitude = _mm256_xor_si256(int(v), sign);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(int(v)), _mm256_set1_epi32(1));
        let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_add_epi32(int(v), bias);
        // Magnitudes are positive integers: a signed comparison orders them.
        let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x0080_0000), magnitude);
        let nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f80_0000));
        let quiet = _mm256_or_si256(int(v), _mm256_set1_epi32(0x0040_0000));
        let word = _mm256_blendv_epi8(_mm256_blendv_epi8(rounded, sign, small), quiet, nan);
        float(_mm256_and_si256(word, _mm256_set1_epi32(-65_536)))
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn enabled<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features are enabled here.
    unsafe { kernel.run::<Avx2>() }
}

// Every method: the caller has AVX2 and FMA enabled and its pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx2 {
    const TILE_ROWS: usize = 6;
    const TILE_HEIGHTS: &'static [usize] = &[6, 2];
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        unsafe { enabled(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        unsafe {
            let (lo, hi) = masks(n);
            // A masked load touches no lane that is off, so the address of the
            // upper half may lie past the end.
            let upper = p.wrapping_add(8);
            Self(_mm256_maskload_ps(p, lo), _mm256_maskload_ps(upper, hi))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        unsafe {
            let (lo, hi) = masks(n);
            _mm256_maskstore_ps(p, lo, self.0);
            _mm256_maskstore_ps(p.wrapping_add(8), hi, self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe { Self(widen(p), widen(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_first(p: *const u16, n: usize) -> Self {
        let mut halves = [0_u16; LANES];
        unsafe {
            p.copy_to_nonoverlapping(halves.as_mut_ptr(), n.min(LANES));
            Self::load_bf16(halves.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_first(self, p: *mut u16, n: usize) {
        unsafe {
            let rounded = self.to_array().map(|x| bf16::from_f32(x).to_bits());
            rounded.as_ptr().copy_to_nonoverlapping(p, n.min(LANES));
        }
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        both!(_mm256_add_ps, self, o)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        both!(_mm256_sub_ps, self, o)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        both!(_mm256_mul_ps, self, o)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        both!(_mm256_div_ps, self, o)
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        unsafe { Self(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        both!(_mm256_max_ps, self, o)
    }

    #[inline(always)]
    unsafe fn select_less(self, o: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let lo = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, o.0);
            let hi = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, o.1);
            Self(_mm256_blendv_ps(no.0, yes.0, lo), _mm256_blendv_ps(no.1, yes.1, hi))
        }
    }
    #[inline(always)]
    unsafe fn select_equal(self, o: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let lo = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, o.0);
            let hi = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.1, o.1);
            Self(_mm256_blendv_ps(no.0, yes.0, lo), _mm256_blendv_ps(no.1, yes.1, hi))
        }
    }

    #[inline(always)]
    unsafe fn add_bits(self, o: Self) -> Self {
        both_bits!(_mm256_add_epi32, self, o)
    }
    #[inline(always)]
    unsafe fn sub_bits(self, o: Self) -> Self {
        both_bits!(_mm256_sub_epi32, self, o)
    }
    #[inline(always)]
    unsafe fn shl_bits<const N: u32>(self) -> Self {
        unsafe {
            let by = _mm_cvtsi32_si128(N as i32);
            let lo = _mm256_sll_epi32(int(self.0), by);
            Self(float(lo), float(_mm256_sll_epi32(int(self.1), by)))
        }
    }
    #[inline(always)]
    unsafe fn sar_bits<const N: u32>(self) -> Self {
        unsafe {
            let by = _mm_cvtsi32_si128(N as i32);
            let lo = _mm256_sra_epi32(int(self.0), by);
            Self(float(lo), float(_mm256_sra_epi32(int(self.1), by)))
        }
    }
    #[inline(always)]
    unsafe fn high_half(self) -> Self {
        unsafe {
            let mask = _mm256_set1_epi32(-65_536);
            let lo = _mm256_and_si256(int(self.0), mask);
            Self(float(lo), float(_mm256_and_si256(int(self.1), mask)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_far(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn int_to_float(self) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(int(self.0)), _mm256_cvtepi32_ps(int(self.1))) }
    }

    #[inline(always)]
    unsafe fn round_operand(self) -> Self {
        unsafe { Self(round_operand(self.0), round_operand(self.1)) }
    }

    #[inline(always)]
    unsafe fn transpose(r: &mut [Self; LANES]) {
        unsafe {
            let quarter = |half: fn(&Self) -> __m256, from: usize| {
                std::array::from_fn::<__m256, 8, _>(|i| half(&r[from + i]))
            };
            let (a, b) = (quarter(|v| v.0, 0), quarter(|v| v.1, 0));
            let (c, d) = (quarter(|v| v.0, 8), quarter(|v| v.1, 8));
            let (a, b, c, d) = (transpose8(a), transpose8(b), transpose8(c), transpose8(d));
            for i in 0..8 {
                r[i] = Self(a[i], c[i]);
                r[8 + i] = Self(b[i], d[i]);
            }
        }
    }
}
