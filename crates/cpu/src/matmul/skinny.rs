//! Few rows of A (decoding): rows of B are read once, straight from memory.
//!
//! Sixteen rows of B times sixteen words are transposed in registers, so that lanes
//! run along the outputs; nothing is packed but A.
//!
//! The work is bound by the memory that B is read from, so the order of reading is
//! what counts: sixteen rows to their end (a stretch of memory where rows are dense),
//! while the next sixteen are asked for in the order of their addresses. On a Xeon
//! with 2 MiB pages that reads as fast as a plain sum over the same bytes, 14 GB/s a
//! thread; asking for what the blocks need in the order in which they need it, or 32
//! rows at a time, stays at 10.
//!
//! Who computes which rows is [`super::steps`].

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use super::Product;
use super::pack::{Packing, block_units, doubled, is_whole, load_part, load_whole, pack, unit_of};
use super::pieces::{Piece, Pieces};
use super::steps::Steps;
use super::task::Job;
use super::tile::{begin, end};
use super::words::Words;
use super::workspace::SKINNY_ROWS_MAX;
use crate::simd::{LANES, Vector};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Whether this path serves the product: few rows, `k` of B contiguous.
pub(super) fn serves(product: &Product<'_>) -> bool {
    product.m <= SKINNY_ROWS_MAX && product.terms().all(|term| term.b.col_stride == 1)
}

/// Rows of A from `row` on that are multiplied together, of `rows` in all: as many sums as registers hold beside a block
/// of B. The next ones find the rows of B in the first-level cache.
fn group(row: usize, rows: usize) -> usize {
    match rows - row {
        left @ 0..=8 => left,
        9..=15 => 8,
        _ => 16,
    }
}

/// Runs one task.
///
/// # Safety
/// As [`super::task::Job`]; [`serves`] holds.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, W: Words>(job: &Job<'_, W>) {
    let pieces = Pieces::of::<W>(job.product, 0, usize::MAX);
    let pieces = pieces.as_slice();
    let units: usize = pieces.iter().map(|piece| piece.units).sum();
    let rows = job.product.m;
    // SAFETY: the scratch memory was sized by the split.
    unsafe {
        let a = job.scratch.add(job.split.a_at());
        let held = job.scratch.cast::<[usize; 2]>();
        if held.read_unaligned() != [1, 0] {
            held.write_unaligned([1, 0]);
            let mut row = 0;
            while row < rows {
                pack_a::<V, W>(pieces, (row, group(row, rows)), a.add(row * units));
                row += group(row, rows);
            }
        }
        let mut steps = Steps::of(job);
        while let Some((j, next)) = steps.take() {
            let mut row = 0;
            while row < rows {
                let more = row == 0 && next;
                strip::<V, W>(job, pieces, a.add(row * units), row, j, more);
                row += group(row, rows);
            }
        }
    }
}

/// The outputs of a group of rows from `row` on and up to sixteen columns; `more` of these are to be asked for.
#[inline(always)]
unsafe fn strip<V: Vector, W: Words>(
    job: &Job<'_, W>,
    pieces: &[Piece],
    a: *const f32,
    row: usize,
    j: (usize, usize),
    more: bool,
) {
    macro_rules! rows {
        ($($m:literal)*) => {
            match group(row, job.product.m) {
                // SAFETY: as the caller's.
                $($m => unsafe { outputs::<V, W, $m>(job, pieces, a, row, j, more) },)*
                m => unreachable!("no group has {m} rows"),
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 16);
}

#[inline(always)]
unsafe fn outputs<V: Vector, W: Words, const M: usize>(
    job: &Job<'_, W>,
    pieces: &[Piece],
    a: *const f32,
    row: usize,
    j: (usize, usize),
    more: bool,
) {
    // SAFETY: as the caller's.
    unsafe {
        let state = job.scratch.add(job.split.state_at());
        job.finish.preload::<V>(state, LANES, (row, M), j);
        step::<V, W, M>(pieces, a, j, more, state);
        job.finish.store::<V>(state.add(M * LANES), LANES, (row, M), j);
    }
}

/// A group of rows, unit by unit.
#[inline(always)]
unsafe fn pack_a<V: Vector, W: Words>(pieces: &[Piece], (row, rows): (usize, usize), to: *mut f32) {
    let mut at = 0;
    for p in pieces {
        let packing = Packing {
            source: p.a,
            k: p.k,
            row,
            rows,
            available: row + rows,
            unit: p.unit,
            units: p.units,
            at,
            width: rows,
            panel_stride: 0,
        };
        // SAFETY: as the caller's.
        unsafe { pack::<V, W>(&packing, to) };
        at += p.units;
    }
}

/// The sums of sixteen outputs for each row of A.
type Sums<V, const M: usize> = [[V; 1]; M];

/// The outputs of up to sixteen rows of B from `col` on; `more` of them follow.
#[inline(always)]
unsafe fn step<V: Vector, W: Words, const M: usize>(
    pieces: &[Piece],
    mut a: *const f32,
    (col, lanes): (usize, usize),
    more: bool,
    state: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut sums: Sums<V, M> = [[V::zero()]; M];
        for piece in pieces {
            begin(piece.begin, &mut sums, state);
            chain::<V, W, M>(piece, a, (col, lanes), more, &mut sums);
            a = a.add(piece.units * M);
            end(piece.end, &mut sums, state);
        }
    }
}

/// The chains of one piece.
#[inline(always)]
unsafe fn chain<V: Vector, W: Words, const M: usize>(
    piece: &Piece,
    mut a: *const f32,
    (row, lanes): (usize, usize),
    more: bool,
    sums: &mut Sums<V, M>,
) {
    let whole = block_units::<W>(&piece.b);
    let mut ahead = Ahead::new::<W>(piece, row + LANES);
    let lines = if more { lines_of_block::<W>(piece) } else { 0 };
    let mut u = 0;
    while u < piece.units {
        let units = whole.min(piece.units - u);
        let unit = piece.unit + u;
        // SAFETY: `lanes` rows from `row` on hold the units.
        unsafe {
            ahead.ask::<V>(lines);
            if lanes == LANES && units == whole && is_whole::<W>(piece.k, unit) {
                block::<V, W, M>(piece, a, row, unit, sums);
            } else {
                edge::<V, W, M>(piece, a, (row, lanes), (unit, units), sums);
            }
        }
        a = a.wrapping_add(units * M);
        u += units;
    }
}

/// Sixteen whole rows times sixteen words.
#[inline(always)]
unsafe fn block<V: Vector, W: Words, const M: usize>(
    piece: &Piece,
    a: *const f32,
    row: usize,
    unit: usize,
    sums: &mut Sums<V, M>,
) {
    // Written out, so that the block stays in registers.
    macro_rules! words {
        ($each:ident: $($i:literal)*) => { $($each!($i);)* };
        ($each:ident) => { words!($each: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    }
    // SAFETY: as the caller's.
    unsafe {
        let block = load_whole::<V, W>(&piece.b, row, unit);
        macro_rules! two {
            ($i:literal) => {
                steps::<V, W, M>(a.add(2 * $i * M), block[$i].shl_bits::<16>(), sums);
                steps::<V, W, M>(a.add((2 * $i + 1) * M), block[$i].high_half(), sums);
            };
        }
        macro_rules! one {
            ($i:literal) => {
                steps::<V, W, M>(a.add($i * M), block[$i], sums)
            };
        }
        if doubled::<W>(&piece.b) {
            words!(two);
        } else {
            words!(one);
        }
    }
}

/// The same where rows or units are missing.
#[inline(always)]
unsafe fn edge<V: Vector, W: Words, const M: usize>(
    piece: &Piece,
    a: *const f32,
    rows: (usize, usize),
    (unit, units): (usize, usize),
    sums: &mut Sums<V, M>,
) {
    let doubled = doubled::<W>(&piece.b);
    // SAFETY: as the caller's.
    unsafe {
        let block = load_part::<V, W>(&piece.b, rows, (unit, units), piece.k);
        let mut i = 0;
        while i < units {
            steps::<V, W, M>(a.add(i * M), unit_of(&block, i, doubled), sums);
            i += 1;
        }
    }
}

/// Lines that a block of sixteen whole rows is read from.
#[inline(always)]
fn lines_of_block<W: Words>(piece: &Piece) -> usize {
    // Sixteen words of a row are one line, but for pairs still to be rounded.
    if W::PAIRS && !piece.b.bf16 { 2 * LANES } else { LANES }
}

/// The lines of the sixteen rows after these, in the order of their addresses.
struct Ahead {
    at: *const u8,
    /// Lines of a row.
    lines: usize,
    /// Lines left in the row of `at`.
    left: usize,
    /// Bytes from the last line of a row to the first of the next one.
    gap: usize,
}

impl Ahead {
    #[inline(always)]
    fn new<W: Words>(piece: &Piece, row: usize) -> Self {
        let per_unit = if W::PAIRS { 2 } else { 1 };
        let (at, stride) = piece.b.bytes_at(row, per_unit * piece.unit);
        let (end, _) = piece.b.bytes_at(row, per_unit * (piece.unit + piece.units));
        let lines = (end.addr() - at.addr()).div_ceil(LINE);
        Self { at, lines, left: lines, gap: stride.wrapping_sub(lines * LINE) }
    }

    /// Asks for the next `count` lines. Addresses may lie past the end: a prefetch
    /// never faults.
    #[inline(always)]
    unsafe fn ask<V: Vector>(&mut self, count: usize) {
        for _ in 0..count {
            // SAFETY: as the caller's.
            unsafe { V::prefetch_far(self.at) };
            self.at = self.at.wrapping_add(LINE);
            self.left -= 1;
            if self.left == 0 {
                self.left = self.lines;
                self.at = self.at.wrapping_add(self.gap);
            }
        }
    }
}

#[inline(always)]
unsafe fn steps<V: Vector, W: Words, const M: usize>(a: *const f32, b: V, sums: &mut Sums<V, M>) {
    for m in 0..M {
        // SAFETY: `M` words of A lie there.
        unsafe { sums[m][0] = W::step(V::splat(*a.add(m)), b, sums[m][0]) };
    }
}
