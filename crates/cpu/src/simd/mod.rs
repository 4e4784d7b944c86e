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
mod flush;
mod portable;

pub(crate) use elementary::{exp, ln};
pub(crate) use flush::FlushMode;

use half::bf16;

use crate::bf16_dot::{dot_bf16_pair, round_operand};
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
    /// Heights of the tiles that are compiled, highest first: rows that fill no tile
    /// are computed in the lowest one that holds them.
    const TILE_HEIGHTS: &'static [usize];
    /// Whether a register tile is two vectors wide where the output allows.
    const WIDE: bool;
    /// Whether few rows are worth kernels of their own. Portable code on a processor
    /// that has better is there to be compared with.
    const FEW_ROWS: bool = true;

    /// Runs `kernel` in a function of its own that enables the instruction set: what
    /// is used in several places, or in many variants, is compiled once and apart.
    unsafe fn outlined<K: Kernel>(kernel: K) -> K::Output;

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
    #[inline(always)]
    unsafe fn pair_words(lo: Self, hi: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::load(paired(&lo.to_array(), &hi.to_array()).as_ptr()) }
    }
    /// Thirty-two consecutive elements (`first`, then `second`) rounded to bf16 and
    /// packed in order: lane `i` holds elements `2i` (low half) and `2i + 1`.
    #[inline(always)]
    unsafe fn pack_words(first: Self, second: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe {
            let halves = [first.to_array(), second.to_array()];
            let all = halves.as_flattened();
            let lo = std::array::from_fn(|i| all[2 * i]);
            let hi = std::array::from_fn(|i| all[2 * i + 1]);
            Self::load(paired(&lo, &hi).as_ptr())
        }
    }
    /// [`Vector::pair_words`] where the bf16 instructions are enabled.
    #[inline(always)]
    unsafe fn pair_words_native(lo: Self, hi: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::pair_words(lo, hi) }
    }
    /// [`Vector::pack_words`] where the bf16 instructions are enabled.
    #[inline(always)]
    unsafe fn pack_words_native(first: Self, second: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::pack_words(first, second) }
    }
    /// The `f32` of each lane rounded as [`crate::bf16_dot::round_operand`].
    unsafe fn round_operand(self) -> Self;
    /// One step of `vdpbf16ps`: words of `self` and `b` onto `acc`.
    #[inline(always)]
    unsafe fn dot_words(self, b: Self, acc: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe { Self::load(dots(&self.to_array(), &b.to_array(), &acc.to_array()).as_ptr()) }
    }

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

/// The bf16 pair held by a word.
fn halves(word: f32) -> (bf16, bf16) {
    let bits = word.to_bits();
    (bf16::from_bits(bits as u16), bf16::from_bits((bits >> 16) as u16))
}

/// [`Vector::pair_words`] without an instruction for it. Not inlined, here and below:
/// an emulation is long, and its callers are many.
#[inline(never)]
fn paired(lo: &[f32; LANES], hi: &[f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| {
        let (lo, hi) = (round_operand(lo[i]), round_operand(hi[i]));
        f32::from_bits(u32::from(lo.to_bits()) | (u32::from(hi.to_bits()) << 16))
    })
}

/// [`Vector::dot_words`] without an instruction for it.
#[inline(never)]
fn dots(a: &[f32; LANES], b: &[f32; LANES], acc: &[f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| {
        let ((a0, a1), (b0, b1)) = (halves(a[i]), halves(b[i]));
        dot_bf16_pair(acc[i], a0, b0, a1, b1)
    })
}

/// A computation that [`dispatch`] compiles for every instruction set.
pub(crate) trait Kernel {
    /// Whether it needs the bf16 instructions: [`Vector::dot_words`] and what is called
    /// native.
    const BF16_DOT: bool = false;
    /// Whether it needs [`FlushMode`], which portable code has no use for: a fused
    /// multiply-add may be a library call there.
    const FLUSHES: bool = false;
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
        assert!(isa <= Isa::best(), "{isa} is not of this processor");
        let avx512 = !K::BF16_DOT || crate::isa::has_native_bf16_dot();
        match isa {
            // SAFETY: the processor has the features (asserted, or asked here).
            Isa::Avx512 if avx512 => return unsafe { avx512::Avx512::outlined(kernel) },
            // A kernel of dots runs nowhere but on the instruction and on its
            // emulation: AVX2 would have nothing to offer it.
            Isa::Avx512 | Isa::Avx2 if !K::BF16_DOT => {
                // SAFETY: AVX-512 implies AVX2 in `Isa::best`.
                return unsafe { avx2::Avx2::outlined(kernel) };
            }
            Isa::Avx512 | Isa::Avx2 | Isa::Portable => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = isa;
    assert!(!K::FLUSHES, "portable code does not flush");
    // SAFETY: needs no instruction set.
    unsafe { portable::Portable::outlined(kernel) }
}
