//! Few rows of A (decoding): rows of B are read once, straight from memory.
//!
//! Sixteen rows of B times sixteen words are transposed in registers, so that lanes
//! run along the outputs; nothing is packed but A. The work is bound by the memory
//! that B is read from.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use super::Product;
use super::pack::{Packing, block_units, doubled, is_whole, load_part, load_whole, pack, unit_of};
use super::pieces::{Piece, Pieces};
use super::task::{Job, Words};
use super::tile::{begin, end};
use super::workspace::{SKINNY_ROWS_MAX, SKINNY_STEP};
use crate::simd::{LANES, Vector};

/// Vectors of outputs in flight: enough independent chains to hide the latency of
/// a multiply-add.
const GROUPS: usize = SKINNY_STEP / LANES;

/// Whether this path serves the product: few rows, `k` of B contiguous.
pub(super) fn serves(product: &Product<'_>) -> bool {
    product.m <= SKINNY_ROWS_MAX && product.terms().all(|term| term.b.col_stride == 1)
}

/// Runs one task.
///
/// # Safety
/// As [`super::task::Job`]; [`serves`] holds.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, W: Words>(job: &Job<'_, W>) {
    macro_rules! rows {
        ($($m:literal)*) => {
            match job.product.m {
                // SAFETY: as the caller's.
                $($m => unsafe { task::<V, W, $m>(job) },)*
                m => unreachable!("{m} rows are not few"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8);
}

#[inline(always)]
unsafe fn task<V: Vector, W: Words, const M: usize>(job: &Job<'_, W>) {
    let pieces = Pieces::of::<W>(job.product, 0, usize::MAX);
    let pieces = pieces.as_slice();
    let (col, cols) = job.split.skinny_task(job.task);
    // SAFETY: the scratch memory was sized by the split.
    unsafe {
        let a = job.scratch.add(job.split.a_at());
        let held = job.scratch.cast::<[usize; 2]>();
        if held.read_unaligned() != [1, 0] {
            held.write_unaligned([1, 0]);
            pack_a::<V, W, M>(pieces, a);
        }
        let state = job.scratch.add(job.split.state_at());
        let width = GROUPS * LANES;
        let mut c = 0;
        while c < cols {
            let (i, j) = ((0, M), (col + c, width.min(cols - c)));
            job.finish.preload::<V>(state, width, i, j);
            step::<V, W, M>(pieces, a, j.0, j.1, state);
            job.finish.store::<V>(state.add(M * width), width, i, j);
            c += width;
        }
    }
}

#[inline(always)]
unsafe fn pack_a<V: Vector, W: Words, const M: usize>(pieces: &[Piece], to: *mut f32) {
    let mut at = 0;
    for p in pieces {
        let packing = Packing {
            source: p.a,
            k: p.k,
            row: 0,
            rows: M,
            available: M,
            unit: p.unit,
            units: p.units,
            at,
            width: M,
            panel_stride: 0,
        };
        // SAFETY: as the caller's.
        unsafe { pack::<V, W>(&packing, to) };
        at += p.units;
    }
}

type Tile<V, const M: usize> = [[V; GROUPS]; M];

#[inline(always)]
unsafe fn step<V: Vector, W: Words, const M: usize>(
    pieces: &[Piece],
    mut a: *const f32,
    col: usize,
    cols: usize,
    state: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut acc: Tile<V, M> = [[V::zero(); GROUPS]; M];
        for piece in pieces {
            begin(piece.begin, &mut acc, state);
            chain::<V, W, M>(piece, a, col, cols, &mut acc);
            a = a.add(piece.units * M);
            end(piece.end, &mut acc, state);
        }
    }
}

/// The chains of one piece.
#[inline(always)]
unsafe fn chain<V: Vector, W: Words, const M: usize>(
    piece: &Piece,
    mut a: *const f32,
    col: usize,
    cols: usize,
    acc: &mut Tile<V, M>,
) {
    let whole = block_units::<W>(&piece.b);
    let doubled = doubled::<W>(&piece.b);
    let mut u = 0;
    while u < piece.units {
        let units = whole.min(piece.units - u);
        let unit = piece.unit + u;
        // SAFETY: the rows from `col` on hold the units.
        unsafe {
            if cols == GROUPS * LANES && units == whole && is_whole::<W>(piece.k, unit) {
                for g in 0..GROUPS {
                    prefetch::<V, W>(piece, col + g * LANES, unit);
                    let block = load_whole::<V, W>(&piece.b, col + g * LANES, unit);
                    if doubled {
                        for i in 0..LANES {
                            steps::<V, W, M>(a.add(2 * i * M), block[i].shl_bits::<16>(), g, acc);
                            steps::<V, W, M>(a.add((2 * i + 1) * M), block[i].high_half(), g, acc);
                        }
                    } else {
                        for i in 0..LANES {
                            steps::<V, W, M>(a.add(i * M), block[i], g, acc);
                        }
                    }
                }
            } else {
                edge::<V, W, M>(piece, a, (col, cols), (unit, units), acc);
            }
        }
        a = a.wrapping_add(units * M);
        u += units;
    }
}

/// The same where rows or units are missing.
#[inline(always)]
unsafe fn edge<V: Vector, W: Words, const M: usize>(
    piece: &Piece,
    a: *const f32,
    (col, cols): (usize, usize),
    (unit, units): (usize, usize),
    acc: &mut Tile<V, M>,
) {
    let doubled = doubled::<W>(&piece.b);
    for g in 0..GROUPS {
        let lanes = LANES.min(cols.saturating_sub(g * LANES));
        if lanes == 0 {
            continue;
        }
        // SAFETY: `lanes` rows from `col + g * 16` hold the units.
        unsafe {
            let rows = (col + g * LANES, lanes);
            let block = load_part::<V, W>(&piece.b, rows, (unit, units), piece.k);
            let mut i = 0;
            while i < units {
                steps::<V, W, M>(a.add(i * M), unit_of(&block, i, doubled), g, acc);
                i += 1;
            }
        }
    }
}

/// Asks for the lines of the sixteen rows that the next step reads in these ones'
/// place. Addresses may lie past the end: a prefetch never faults.
#[inline(always)]
unsafe fn prefetch<V: Vector, W: Words>(piece: &Piece, row: usize, unit: usize) {
    let k = if W::PAIRS { 2 * unit } else { unit };
    let (p, stride) = piece.b.bytes_at(row + SKINNY_STEP, k);
    for i in 0..LANES {
        // SAFETY: as the caller's.
        unsafe { V::prefetch(p.wrapping_add(i * stride)) };
    }
}

#[inline(always)]
unsafe fn steps<V: Vector, W: Words, const M: usize>(
    a: *const f32,
    b: V,
    g: usize,
    acc: &mut Tile<V, M>,
) {
    for m in 0..M {
        // SAFETY: `M` words of A lie there.
        unsafe { acc[m][g] = W::step(V::splat(*a.add(m)), b, acc[m][g]) };
    }
}
