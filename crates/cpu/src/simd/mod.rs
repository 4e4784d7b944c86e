//! One virtual vector: sixteen `f32` lanes, whatever the processor has.
//!
//! A kernel is a [`Kernel`]: a struct of arguments with one generic method. It is
//! compiled once for each instruction set by [`dispatch`], inside a function that
//! enables the features, so the `#[inline(always)]` bodies below become plain
//! instructions. Lanes never mix inside an operation, so the width of the real
//! registers cannot be seen in a result.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod elementary;
mod portable;

pub(crate) use elementary::{exp, ln};

use crate::isa::Isa;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen `f32` lanes (or sixteen 32-bit words in the same register).
///
/// # Safety
/// Every method may be called only where the instruction set of the implementing
/// type is enabled, which [`dispatch`] guarantees. Pointers need no alignment
/// and must be valid for the lanes named.
pub(crate) trait Vector: Copy {
    /// Rows of a matmul register tile.
    const TILE_ROWS: usize;
    /// Whether a register tile is two vectors wide where the output allows.
    const WIDE: bool;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n <= 16` lanes from memory, the others `+0`.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// Stores the first `n <= 16` lanes.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// Sixteen bf16 widened.
    unsafe fn load_bf16(p: *const u16) -> Self;
    unsafe fn load_bf16_first(p: *const u16, n: usize) -> Self;
    /// Rounds to bf16 (nearest even, NaN quiet) and stores the first `n` lanes.
    unsafe fn store_bf16_first(self, p: *mut u16, n: usize);

    unsafe fn add(self, o: Self) -> Self;
    unsafe fn sub(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn div(self, o: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// `self * b + c`, one rounding.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > o { self } else { o }` in each lane.
    unsafe fn max(self, o: Self) -> Self;

    /// The largest lane.
    unsafe fn max_across(self) -> f32;
    /// `if self < o { yes } else { no }` in each lane (false on NaN).
    unsafe fn select_less(self, o: Self, yes: Self, no: Self) -> Self;
    /// `if self == o { yes } else { no }` in each lane (false on NaN).
    unsafe fn select_equal(self, o: Self, yes: Self, no: Self) -> Self;

    /// Wrapping 32-bit sum of the bit patterns.
    unsafe fn add_bits(self, o: Self) -> Self;
    /// Wrapping 32-bit difference of the bit patterns.
    unsafe fn sub_bits(self, o: Self) -> Self;
    /// Bit patterns shifted left.
    unsafe fn shl_bits<const N: u32>(self) -> Self;
    /// Bit patterns shifted right, sign kept.
    unsafe fn sar_bits<const N: u32>(self) -> Self;
    /// The high half of each word, the low half cleared: the second bf16 of a pair.
    unsafe fn high_half(self) -> Self;
    /// Brings the cache line of `p` (any address) towards the processor.
    unsafe fn prefetch(p: *const u8);
    /// The same into the second-level cache only: what is needed some ten thousand
    /// bytes later.
    unsafe fn prefetch_far(p: *const u8);
    /// Bit patterns as signed integers, converted to `f32` (exact below 2^24).
    unsafe fn int_to_float(self) -> Self;

    /// Lane `i` becomes the bf16 pair (low half `lo[i]`, high half `hi[i]`), each
    /// rounded as [`crate::bf16_dot::round_operand`].
    unsafe fn pair_words(lo: Self, hi: Self) -> Self;
    /// Thirty-two consecutive elements (`first`, then `second`) rounded to bf16 and
    /// packed in order: lane `i` holds elements `2i` (low half) and `2i + 1`.
    unsafe fn pack_words(first: Self, second: Self) -> Self;
    /// One step of `vdpbf16ps`: words of `self` and `b` onto `acc`.
    unsafe fn dot_words(self, b: Self, acc: Self) -> Self;

    /// Transposes a 16 x 16 block of words.
    unsafe fn transpose(block: &mut [Self; LANES]);

    /// `+0` in every lane.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::splat(0.0) }
    }

    /// The lanes as an array.
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array has sixteen lanes.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }
}

/// A computation that [`dispatch`] compiles for every instruction set.
pub(crate) trait Kernel {
    /// Whether it needs the bf16 dot instruction to be fast.
    const BF16_DOT: bool = false;
    /// What it returns.
    type Output;
    /// # Safety
    /// The instruction set of `V` is enabled in the caller. Implementations are
    /// `#[inline(always)]` and state what else they need.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// Runs `kernel` on `isa`.
///
/// # Safety
/// What the kernel's own `run` needs. That the processor has `isa` is checked.
#[inline]
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn avx512<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the features are enabled here.
            unsafe { kernel.run::<avx512::Avx512>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        unsafe fn avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the features are enabled here.
            unsafe { kernel.run::<avx512::Avx512>() }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2<K: Kernel>(kernel: K) -> K::Output {
            // SAFETY: the features are enabled here.
            unsafe { kernel.run::<avx2::Avx2>() }
        }
        assert!(isa <= Isa::best(), "{isa} is not of this processor");
        match isa {
            Isa::Avx512 if K::BF16_DOT && crate::isa::has_native_bf16_dot() => {
                // SAFETY: the processor has the features (asserted or asked here).
                return unsafe { avx512_bf16(kernel) };
            }
            // SAFETY: the processor has the features (asserted).
            Isa::Avx512 if !K::BF16_DOT => return unsafe { avx512(kernel) },
            // SAFETY: AVX-512 implies AVX2 in `Isa::best`.
            Isa::Avx512 | Isa::Avx2 => return unsafe { avx2(kernel) },
            Isa::Portable => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    // SAFETY: needs no instruction set.
    unsafe { kernel.run::<portable::Portable>() }
}
