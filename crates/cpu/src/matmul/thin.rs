//! One side sixteen (to sixty-four) wide, summed over tokens: gradients of LoRA factors.
//!
//! Both operands lie with their rows contiguous, `[k][rows]`. The wide one would be
//! packed to be used for sixteen multiply-adds a vector: here it is read in place, once,
//! lanes along its rows, and the thin one is broadcast. Where the wide side is A, the
//! transpose of the output is computed, and blocks are transposed back in registers.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::operand::Source;
use super::task::Job;
use super::words::Words;
use super::workspace::HEADER;
use super::{Init, Product};
use crate::simd::{FlushMode, Kernel, LANES, Vector};

/// Most rows of the thin side.
const THIN_MAX: usize = 64;
/// Fewest rows of the wide side and shortest `k` for which packing is the worse way;
/// the scratch memory of such a product holds what is used here.
const WIDE_MIN: usize = 64;
const K_MIN: usize = 512;
/// Steps of `k` after which the next rows of the wide side are visited: the same lines
/// of memory would else be pages apart. Whole pairs.
const K_BLOCK: usize = 128;
/// Vectors of rows of a task.
const STRIPS: usize = 6;

/// Whether this path serves the product.
pub(super) fn serves<W: Words>(product: &Product<'_>) -> bool {
    let [[term]] = product.leaves else { return false };
    let stored_by_k = |operand: &super::Operand<'_>| {
        operand.row_stride == 1 && matches!(operand.data, super::Elems::F32(_))
    };
    let (thin, wide) = (product.m.min(product.n), product.m.max(product.n));
    product.tail.is_empty()
        && !matches!(product.init, Init::Chain)
        && !W::PAIRS
        && W::units(term.k) == term.k
        && thin.is_multiple_of(LANES)
        && thin <= THIN_MAX
        && wide >= WIDE_MIN
        && wide > thin
        && term.k >= K_MIN
        && stored_by_k(&term.a)
        && stored_by_k(&term.b)
}

/// Tasks of the product.
pub(super) fn tasks(product: &Product<'_>) -> usize {
    product.m.max(product.n).div_ceil(STRIPS * LANES)
}

/// Runs one task.
///
/// # Safety
/// As [`super::task::Job`]; [`serves`] holds and the vectors are AVX-512's.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, W: Words>(job: &Job<'_, W>) {
    let product = job.product;
    let term = &product.leaves[0][0];
    let wide_is_a = product.m > product.n;
    let (a, b) = (term.a.raw(), term.b.raw());
    let (thin, wide) = if wide_is_a { (b, a) } else { (a, b) };
    let (width, rows) = (product.m.min(product.n), product.m.max(product.n));
    let first = job.task * STRIPS * LANES;
    let rows = (STRIPS * LANES).min(rows - first);
    // SAFETY: the scratch memory of a `k` this long holds both.
    unsafe {
        let panel = job.scratch.add(HEADER);
        let state = panel.add(K_BLOCK * THIN_MAX);
        for k in (0..term.k).step_by(K_BLOCK) {
            let units = K_BLOCK.min(term.k - k);
            copy_thin::<V, W>(&thin, k, units, width, panel);
            for strip in (0..rows).step_by(LANES) {
                let lanes = LANES.min(rows - strip);
                for group in (0..width).step_by(LANES) {
                    let tile = state.add((strip * width) + group * LANES);
                    V::outlined(Strip::<W> {
                        thin: panel.add(group),
                        width,
                        wide: wide.f32_at(first + strip, k),
                        stride: wide.col,
                        lanes,
                        units,
                        tile,
                        starts: k == 0,
                        words: PhantomData,
                    });
                    if k + units < term.k {
                        continue;
                    }
                    if wide_is_a {
                        transpose::<V>(tile);
                        job.finish.store::<V>(tile, LANES, (first + strip, lanes), (group, LANES));
                    } else {
                        job.finish.store::<V>(tile, LANES, (group, LANES), (first + strip, lanes));
                    }
                }
            }
        }
    }
}

/// The thin side's block, one unit after the other, as the arithmetic reads it.
#[inline(always)]
unsafe fn copy_thin<V: Vector, W: Words>(
    thin: &Source,
    k: usize,
    units: usize,
    width: usize,
    to: *mut f32,
) {
    for u in 0..units {
        for group in (0..width).step_by(LANES) {
            // SAFETY: whole vectors of the thin side lie there.
            unsafe {
                let word = V::load(thin.f32_at(group, k + u));
                operand::<V, W>(word).store(to.add(u * width + group));
            }
        }
    }
}

#[inline(always)]
unsafe fn operand<V: Vector, W: Words>(word: V) -> V {
    // SAFETY: as the caller's.
    if W::FLUSHES { unsafe { word.round_operand() } } else { word }
}

/// Transposes sixteen rows of sixteen.
///
/// # Safety
/// The instruction set of `V` is enabled; the tile lies there.
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector>(tile: *mut f32) {
    // SAFETY: a tile lies there.
    unsafe {
        let mut block = [V::zero(); LANES];
        for r in 0..LANES {
            block[r] = V::load(tile.add(r * LANES));
        }
        V::transpose(&mut block);
        for r in 0..LANES {
            block[r].store(tile.add(r * LANES));
        }
    }
}

/// Sixteen thin rows against up to sixteen wide ones, a block of `k`.
struct Strip<W> {
    /// `[unit][width]`.
    thin: *const f32,
    width: usize,
    /// `[unit][stride]`, `lanes` readable.
    wide: *const f32,
    stride: usize,
    lanes: usize,
    units: usize,
    /// The chains, thin row by thin row.
    tile: *mut f32,
    /// Whether they start here.
    starts: bool,
    words: PhantomData<W>,
}

impl<W: Words> Kernel for Strip<W> {
    const FLUSHES: bool = W::FLUSHES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the fields' word. The flush mode: operands are loaded after it is
        // set, and the chains stored before it is restored.
        unsafe {
            let mut acc = [V::zero(); LANES];
            if !self.starts {
                for r in 0..LANES {
                    acc[r] = V::load(self.tile.add(r * LANES));
                }
            }
            let mode = W::FLUSHES.then(|| FlushMode::set());
            for unit in 0..self.units {
                let k = W::k_of(unit);
                let from = self.wide.add(k * self.stride);
                V::prefetch(from.wrapping_add(LANES).cast());
                let right = operand::<V, W>(V::load_first(from, self.lanes));
                let left = self.thin.add(k * self.width);
                for r in 0..LANES {
                    acc[r] = W::step(V::splat(*left.add(r)), right, acc[r]);
                }
            }
            for r in 0..LANES {
                acc[r].store(self.tile.add(r * LANES));
            }
            if let Some(mode) = mode {
                mode.restore();
            }
        }
    }
}
