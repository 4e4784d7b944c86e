//! The vector as one 512-bit register.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Vector};

/// Sixteen lanes in a `zmm` register.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1_u32 << n) - 1) as __mmask16
}

#[inline(always)]
unsafe fn int(v: Avx512) -> __m512i {
    // SAFETY: as the caller's; a cast of the register.
    unsafe { _mm512_castps_si512(v.0) }
}

#[inline(always)]
unsafe fn float(v: __m512i) -> Avx512 {
    // SAFETY: as the caller's; a cast of the register.
    Avx512(unsafe { _mm512_castsi512_ps(v) })
}

/// bf16 bits (nearest even, NaN quiet) in the low half of each word. Subnormals
/// are kept: this is the storage rounding, not the operand rounding.
#[inline(always)]
unsafe fn round_bf16(v: Avx512) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let bits = int(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
        let quiet = _mm512_or_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(0x40));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v.0, v.0);
        _mm512_mask_mov_epi32(rounded, nan, quiet)
    }
}

/// `round_bf16` of the operand rounding: subnormals become zeros of their sign.
#[inline(always)]
unsafe fn round_operand(v: Avx512) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        let least = _mm512_set1_ps(f32::MIN_POSITIVE);
        let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(v.0), least);
        let sign = _mm512_and_si512(int(v), _mm512_set1_epi32(i32::MIN));
        round_bf16(float(_mm512_mask_mov_epi32(int(v), small, sign)))
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn plain<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features are enabled here.
    unsafe { kernel.run::<Avx512>() }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn with_bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the features are enabled here.
    unsafe { kernel.run::<Avx512>() }
}

// Every method: the caller has AVX-512 enabled and its pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512 {
    const TILE_ROWS: usize = 14;
    const TILE_HEIGHTS: &'static [usize] = &[14, 8, 4];
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output {
        unsafe { if K::BF16_DOT { with_bf16(kernel) } else { plain(kernel) } }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        unsafe { Self(_mm512_maskz_loadu_ps(mask(n), p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let halves = _mm256_loadu_si256(p.cast());
            float(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_first(p: *const u16, n: usize) -> Self {
        unsafe {
            let halves = _mm256_maskz_loadu_epi16(mask(n), p.cast());
            float(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_first(self, p: *mut u16, n: usize) {
        unsafe {
            let halves = _mm512_cvtepi32_epi16(round_bf16(self));
            _mm256_mask_storeu_epi16(p.cast(), mask(n), halves);
        }
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        unsafe { Self(_mm512_sqrt_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn select_less(self, o: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, o.0);
            Self(_mm512_mask_mov_ps(no.0, less, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn select_equal(self, o: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, o.0);
            Self(_mm512_mask_mov_ps(no.0, equal, yes.0))
        }
    }

    #[inline(always)]
    unsafe fn add_bits(self, o: Self) -> Self {
        unsafe { float(_mm512_add_epi32(int(self), int(o))) }
    }
    #[inline(always)]
    unsafe fn sub_bits(self, o: Self) -> Self {
        unsafe { float(_mm512_sub_epi32(int(self), int(o))) }
    }
    #[inline(always)]
    unsafe fn shl_bits<const N: u32>(self) -> Self {
        unsafe { float(_mm512_slli_epi32::<N>(int(self))) }
    }
    #[inline(always)]
    unsafe fn sar_bits<const N: u32>(self) -> Self {
        unsafe { float(_mm512_srai_epi32::<N>(int(self))) }
    }
    #[inline(always)]
    unsafe fn high_half(self) -> Self {
        unsafe { float(_mm512_and_si512(int(self), _mm512_set1_epi32(-65_536))) }
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
        unsafe { Self(_mm512_cvtepi32_ps(int(self))) }
    }

    #[inline(always)]
    unsafe fn pair_words(lo: Self, hi: Self) -> Self {
        unsafe {
            let hi = _mm512_slli_epi32::<16>(round_operand(hi));
            float(_mm512_or_si512(hi, round_operand(lo)))
        }
    }
    #[inline(always)]
    unsafe fn pack_words(first: Self, second: Self) -> Self {
        unsafe {
            let lo = _mm512_cvtepi32_epi16(round_operand(first));
            let hi = _mm512_cvtepi32_epi16(round_operand(second));
            float(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(lo), hi))
        }
    }
    #[inline(always)]
    unsafe fn pair_words_native(lo: Self, hi: Self) -> Self {
        unsafe {
            // Halves 0..16 of `lo`, then of `hi`; then one of each in turn.
            let order = _mm512_set_epi16(
                31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
            );
            float(_mm512_permutexvar_epi16(order, int(Self::pack_words_native(lo, hi))))
        }
    }
    #[inline(always)]
    unsafe fn pack_words_native(first: Self, second: Self) -> Self {
        unsafe {
            let words = _mm512_cvtne2ps_pbh(second.0, first.0);
            float(std::mem::transmute::<__m512bh, __m512i>(words))
        }
    }
    #[inline(always)]
    unsafe fn round_operand(self) -> Self {
        unsafe { float(_mm512_slli_epi32::<16>(round_operand(self))) }
    }
    #[inline(always)]
    unsafe fn dot_words(self, b: Self, acc: Self) -> Self {
        unsafe {
            let a = std::mem::transmute::<__m512, __m512bh>(self.0);
            let b = std::mem::transmute::<__m512, __m512bh>(b.0);
            Self(_mm512_dpbf16_ps(acc.0, a, b))
        }
    }

    #[inline(always)]
    unsafe fn transpose(r: &mut [Self; LANES]) {
        unsafe {
            // 4 x 4 blocks inside 128-bit lanes, then the lanes themselves.
            let mut t = [_mm512_setzero_ps(); LANES];
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i].0, r[2 * i + 1].0);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i].0, r[2 * i + 1].0);
            }
            let mut u = [_mm512_setzero_ps(); LANES];
            for i in 0..4 {
                let p = 4 * i;
                u[p] = _mm512_shuffle_ps::<0x44>(t[p], t[p + 2]);
                u[p + 1] = _mm512_shuffle_ps::<0xee>(t[p], t[p + 2]);
                u[p + 2] = _mm512_shuffle_ps::<0x44>(t[p + 1], t[p + 3]);
                u[p + 3] = _mm512_shuffle_ps::<0xee>(t[p + 1], t[p + 3]);
            }
            for i in 0..4 {
                t[i] = _mm512_shuffle_f32x4::<0x88>(u[i], u[4 + i]);
                t[4 + i] = _mm512_shuffle_f32x4::<0xdd>(u[i], u[4 + i]);
                t[8 + i] = _mm512_shuffle_f32x4::<0x88>(u[8 + i], u[12 + i]);
                t[12 + i] = _mm512_shuffle_f32x4::<0xdd>(u[8 + i], u[12 + i]);
            }
            for i in 0..4 {
                r[i] = Self(_mm512_shuffle_f32x4::<0x88>(t[i], t[8 + i]));
                r[8 + i] = Self(_mm512_shuffle_f32x4::<0xdd>(t[i], t[8 + i]));
                r[4 + i] = Self(_mm512_shuffle_f32x4::<0x88>(t[4 + i], t[12 + i]));
                r[12 + i] = Self(_mm512_shuffle_f32x4::<0xdd>(t[4 + i], t[12 + i]));
            }
        }
    }
}
