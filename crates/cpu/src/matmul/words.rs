//! The arithmetics of a chain, over packed 32-bit words.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use canon::{flush_to_zero, tile_dot};

use crate::simd::{LANES, Vector};

/// Words of a run of profile `cpu-bf16-tiles`: pairs.
pub(super) const RUN_WORDS: usize = tile_dot::RUN / 2;

/// The arithmetic of a chain, one packed 32-bit word at a time.
pub(super) trait Words: Copy {
    /// Index of its name in [`crate::context::WORDS`].
    const NAME: u8;
    /// Whether a word is a pair of bf16 (two `k`) instead of an f32.
    const PAIRS: bool;
    /// Whether words are single bf16 values held as f32, the second of a pair first.
    const SWAPS: bool = false;
    /// Whether the chain runs with [`FlushMode`](crate::simd::FlushMode) set.
    const FLUSHES: bool = false;
    /// Whether instructions for bf16 are used, which [`Vector`]s alone do not promise.
    const NATIVE: bool = false;
    /// Whether products come in runs of [`RUN_WORDS`]; a term is padded to whole ones.
    const RUNS: bool = false;
    /// Whether [`super::tiles`] multiplies.
    const TILES: bool = false;

    /// Words of `k` steps.
    fn units(k: usize) -> usize {
        match (Self::PAIRS, Self::RUNS, Self::SWAPS) {
            (_, true, _) => k.div_ceil(tile_dot::RUN) * RUN_WORDS,
            (true, false, _) => k.div_ceil(2),
            (false, _, true) => k.next_multiple_of(2),
            (false, _, false) => k,
        }
    }

    /// The `k` of a unit where a unit is one.
    #[inline(always)]
    fn k_of(unit: usize) -> usize {
        if Self::SWAPS { unit ^ 1 } else { unit }
    }

    /// One step of every lane's chain, where products do not come in runs.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled.
    unsafe fn step<V: Vector>(a: V, b: V, acc: V) -> V;

    /// Continues the chains of a register tile by `units` words.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled; `a` holds `R` words a unit, `b` `C*16`.
    #[inline(always)]
    unsafe fn chain<V: Vector, const R: usize, const C: usize>(
        acc: &mut [[V; C]; R],
        mut a: *const f32,
        mut b: *const f32,
        units: usize,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            for _ in 0..units {
                ask_ahead::<V, R, C>(a, b);
                let mut right = [V::zero(); C];
                for c in 0..C {
                    right[c] = V::load(b.add(c * LANES));
                }
                for r in 0..R {
                    let left = V::splat(*a.add(r));
                    for c in 0..C {
                        acc[r][c] = Self::step(left, right[c], acc[r][c]);
                    }
                }
                a = a.add(R);
                b = b.add(C * LANES);
            }
        }
    }
}

/// Units that the panels, which lie in the second-level cache, are asked for ahead of
/// their use.
const AHEAD: usize = 12;

#[inline(always)]
unsafe fn ask_ahead<V: Vector, const R: usize, const C: usize>(a: *const f32, b: *const f32) {
    // SAFETY: as the caller's.
    unsafe {
        V::prefetch(a.wrapping_add(AHEAD * R).cast());
        for c in 0..C {
            V::prefetch(b.wrapping_add((AHEAD * C + c) * LANES).cast());
        }
    }
}

/// Profile `cpu-f32`.
#[derive(Clone, Copy)]
pub(super) struct F32;

impl Words for F32 {
    const NAME: u8 = 0;
    const PAIRS: bool = false;
    #[inline(always)]
    unsafe fn step<V: Vector>(a: V, b: V, acc: V) -> V {
        // SAFETY: as the caller's.
        unsafe { a.fma(b, acc) }
    }
}

/// Profile `cpu-bf16`.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Words for Bf16 {
    const NAME: u8 = 1;
    const PAIRS: bool = true;
    const NATIVE: bool = true;
    #[inline(always)]
    unsafe fn step<V: Vector>(a: V, b: V, acc: V) -> V {
        // SAFETY: as the caller's.
        unsafe { a.dot_words(b, acc) }
    }
}

/// Profile `cpu-bf16` by plain multiply-adds: a step of [`Bf16`] is two steps here, the
/// second element of the pair first, subnormals flushed.
#[derive(Clone, Copy)]
pub(super) struct Flushed;

impl Words for Flushed {
    const NAME: u8 = 2;
    const PAIRS: bool = false;
    const SWAPS: bool = true;
    const FLUSHES: bool = true;
    #[inline(always)]
    unsafe fn step<V: Vector>(a: V, b: V, acc: V) -> V {
        // SAFETY: as the caller's.
        unsafe { a.fma(b, acc) }
    }
}

/// Profile `cpu-bf16-tiles` on matrix tiles. The chains are those of
/// [`super::tiles`]; the words are packed here.
#[derive(Clone, Copy)]
pub(super) struct Tiles;

impl Words for Tiles {
    const NAME: u8 = 3;
    const PAIRS: bool = true;
    const NATIVE: bool = true;
    const RUNS: bool = true;
    const TILES: bool = true;
    #[inline(always)]
    unsafe fn step<V: Vector>(_: V, _: V, _: V) -> V {
        unreachable!("products of tiles come in runs")
    }
}

/// Profile `cpu-bf16-tiles` by multiply-adds: plain ones with subnormals flushed
/// (`FLUSH`), or the canon's scalar ones.
#[derive(Clone, Copy)]
pub(super) struct Runs<const FLUSH: bool>;

impl<const FLUSH: bool> Words for Runs<FLUSH> {
    const NAME: u8 = 4;
    const PAIRS: bool = true;
    const FLUSHES: bool = FLUSH;
    const RUNS: bool = true;

    #[inline(always)]
    unsafe fn step<V: Vector>(_: V, _: V, _: V) -> V {
        unreachable!("products of tiles come in runs")
    }

    /// `acc + (even + odd)` for each run, see [`tile_dot::add_run`].
    #[inline(always)]
    unsafe fn chain<V: Vector, const R: usize, const C: usize>(
        acc: &mut [[V; C]; R],
        mut a: *const f32,
        mut b: *const f32,
        units: usize,
    ) {
        for _ in 0..units / RUN_WORDS {
            // SAFETY: as the caller's.
            unsafe {
                let even = half_run::<V, FLUSH, false, R, C>(a, b);
                let odd = half_run::<V, FLUSH, true, R, C>(a, b);
                for r in 0..R {
                    for c in 0..C {
                        let sum = add::<V, FLUSH>(even[r][c], odd[r][c]);
                        acc[r][c] = add::<V, FLUSH>(acc[r][c], sum);
                    }
                }
                a = a.add(RUN_WORDS * R);
                b = b.add(RUN_WORDS * C * LANES);
            }
        }
    }
}

/// The chain of a run over the even or the odd steps.
#[inline(always)]
unsafe fn half_run<
    V: Vector,
    const FLUSH: bool,
    const ODD: bool,
    const R: usize,
    const C: usize,
>(
    mut a: *const f32,
    mut b: *const f32,
) -> [[V; C]; R] {
    // SAFETY: as the caller's.
    unsafe {
        let mut sum = [[V::zero(); C]; R];
        for _ in 0..RUN_WORDS {
            let mut right = [V::zero(); C];
            for c in 0..C {
                right[c] = half_of::<V, ODD>(V::load(b.add(c * LANES)));
            }
            for r in 0..R {
                let left = half_of::<V, ODD>(V::splat(*a.add(r)));
                for c in 0..C {
                    sum[r][c] = fma::<V, FLUSH>(left, right[c], sum[r][c]);
                }
            }
            a = a.add(R);
            b = b.add(C * LANES);
        }
        sum
    }
}

/// One of a word's two bf16 values as f32.
#[inline(always)]
unsafe fn half_of<V: Vector, const ODD: bool>(word: V) -> V {
    // SAFETY: as the caller's.
    unsafe { if ODD { word.high_half() } else { word.shl_bits::<16>() } }
}

#[inline(always)]
unsafe fn fma<V: Vector, const FLUSH: bool>(a: V, b: V, c: V) -> V {
    // SAFETY: as the caller's.
    unsafe {
        if FLUSH {
            a.fma(b, c)
        } else {
            V::load(fmas(&a.to_array(), &b.to_array(), &c.to_array()).as_ptr())
        }
    }
}

#[inline(always)]
unsafe fn add<V: Vector, const FLUSH: bool>(a: V, b: V) -> V {
    // SAFETY: as the caller's.
    unsafe {
        if FLUSH {
            a.add(b)
        } else {
            let (a, b) = (a.to_array(), b.to_array());
            let sums: [f32; LANES] = std::array::from_fn(|i| flush_to_zero::add(a[i], b[i]));
            V::load(sums.as_ptr())
        }
    }
}

/// Sixteen of the canon's multiply-adds. Not inlined: it is long, and its callers are many.
#[inline(never)]
fn fmas(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES]) -> [f32; LANES] {
    canon::fused((), |()| std::array::from_fn(|i| flush_to_zero::fma(a[i], b[i], c[i])))
}
