//! Matrix tiles: panels of rows in the tiles' order, and the blocks that multiply them.
//!
//! The left operand of a tile product has its rows along `k`, the right one pairs of
//! `k` along its columns. The right panels are those of every other path; the left ones
//! are `[16 rows][run][row][16 words]`.

use super::operand::Source;
use super::pack::{Packing, load_words, packed_words, pair_at};
use super::pieces::{Begin, End, Piece};
use super::task::Job;
use super::tile::merge;
use super::words::{RUN_WORDS, Words};
use super::workspace::LEFT_ROWS;
use crate::simd::{Kernel, LANES, Vector};
use crate::tiles::{Block, SIDE, WORDS, multiply};

/// Bytes of a row of a tile.
const ROW_BYTES: usize = 4 * SIDE;

/// Rows of the blocks in which `rows` rows are computed.
#[inline(always)]
pub(super) fn height_for(rows: usize) -> usize {
    if rows > SIDE { 2 * SIDE } else { SIDE }
}

impl<W: Words> Job<'_, W> {
    /// [`Job::rows`] on tiles.
    ///
    /// # Safety
    /// As [`Job`]'s; the tiles are configured.
    #[inline(always)]
    pub(super) unsafe fn rows_of_tiles<V: Vector>(
        &self,
        pieces: &[Piece],
        units: usize,
        (row, rows): (usize, usize),
        columns: (usize, usize),
        ends: (bool, bool),
    ) {
        let split = &self.split;
        // SAFETY: as the caller's; the scratch memory was sized by `split`.
        unsafe {
            let (a, b) = (self.scratch.add(split.a_at()), self.scratch.add(split.b_at()));
            let mut state = self.scratch.add(split.state_at());
            let mut done = 0;
            while done < rows {
                let packed = LEFT_ROWS.min(rows - done);
                self.pack_left::<V>(pieces, (row + done, packed), units, a);
                for first in (0..packed).step_by(2 * SIDE) {
                    let i = (row + done + first, (2 * SIDE).min(packed - first));
                    let left = (a.add(first * units).cast_const(), height_for(i.1));
                    let right = (b.cast_const(), 2 * LANES);
                    self.tiles::<V>(pieces, units, left, right, i, columns, &mut state, ends);
                }
                done += packed;
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_left<V: Vector>(
        &self,
        pieces: &[Piece],
        (row, rows): (usize, usize),
        units: usize,
        to: *mut f32,
    ) {
        let mut at = 0;
        for p in pieces {
            let packing = Packing {
                source: p.a,
                k: p.k,
                row,
                rows,
                available: self.product.m,
                unit: p.unit,
                units: p.units,
                at,
                width: SIDE,
                panel_stride: SIDE * units,
            };
            // SAFETY: as the caller's.
            unsafe { V::outlined(Left::<W>::new(packing, to)) };
            at += p.units;
        }
    }
}

/// Packs left panels of sixteen rows. Rows that are missing keep what lies there: their
/// sums are thrown away.
pub(super) struct Left<W> {
    packing: Packing,
    to: *mut f32,
    words: std::marker::PhantomData<W>,
}

impl<W> Left<W> {
    /// `panel_stride` words from sixteen rows to the next, `at` the unit of the panel.
    pub(super) fn new(packing: Packing, to: *mut f32) -> Self {
        Self { packing, to, words: std::marker::PhantomData }
    }
}

impl<W: Words> Kernel for Left<W> {
    const BF16_DOT: bool = W::NATIVE;
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let p = self.packing;
        let to = self.to.wrapping_add(p.at * SIDE);
        // SAFETY: as the packing says.
        unsafe {
            if p.source.col == 1 {
                for row in 0..p.rows {
                    let panel = to.wrapping_add(row / SIDE * p.panel_stride + row % SIDE * SIDE);
                    left_row::<V, W>(&p, p.row + row, panel);
                }
            } else {
                for unit in (0..p.units).step_by(RUN_WORDS) {
                    for first in (0..p.rows).step_by(SIDE) {
                        let panel = to.wrapping_add(first / SIDE * p.panel_stride + unit * SIDE);
                        let available = p.available - (p.row + first);
                        left_block::<V, W>(&p, p.row + first, available.min(SIDE), unit, panel);
                    }
                }
            }
        }
    }
}

/// One row, its words as they lie, a tile's row a run.
#[inline(always)]
unsafe fn left_row<V: Vector, W: Words>(p: &Packing, row: usize, to: *mut f32) {
    // SAFETY: as the caller's.
    unsafe {
        for unit in (0..p.units).step_by(RUN_WORDS) {
            let word = if 2 * (p.unit + unit + RUN_WORDS) <= p.k {
                whole_run::<V, W>(&p.source, row, p.unit + unit)
            } else {
                load_words::<V, W>(&p.source, row, p.unit + unit, RUN_WORDS, p.k)
            };
            word.store(to.add(unit * SIDE));
        }
    }
}

#[inline(always)]
unsafe fn whole_run<V: Vector, W: Words>(source: &Source, row: usize, unit: usize) -> V {
    // SAFETY: as the caller's.
    unsafe {
        if source.bf16 {
            return V::load(source.bf16_at(row, 2 * unit).cast());
        }
        let p = source.f32_at(row, 2 * unit);
        packed_words::<V, W>(V::load(p), V::load(p.add(LANES)))
    }
}

/// A tile from rows that lie beside one another at each `k`.
#[inline(always)]
unsafe fn left_block<V: Vector, W: Words>(
    p: &Packing,
    row: usize,
    lanes: usize,
    unit: usize,
    to: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut block = [V::zero(); LANES];
        for (i, word) in block.iter_mut().enumerate() {
            *word = pair_at::<V, W>(p, row, lanes, 2 * (p.unit + unit + i));
        }
        V::transpose(&mut block);
        for (i, word) in block.iter().enumerate() {
            word.store(to.add(i * SIDE));
        }
    }
}

/// The pieces of one block of `k` on `height x width` sums; `state` as
/// [`super::tile::Tile`] says.
///
/// # Safety
/// As [`super::tile::Tile`]; the tiles are configured.
#[inline(always)]
pub(super) unsafe fn run<V: Vector>(
    (height, width): (usize, usize),
    pieces: &[Piece],
    units: usize,
    (mut left, mut right): (*const f32, *const f32),
    state: *mut f32,
) {
    let size = height * width;
    for piece in pieces {
        // SAFETY: as the caller's.
        unsafe {
            let block = Block {
                left,
                left_row: ROW_BYTES,
                left_run: 4 * WORDS,
                left_next: 4 * SIDE * units,
                right,
                right_row: 4 * width,
                runs: piece.units / RUN_WORDS,
                from: (piece.begin != Begin::Zero).then_some(state.cast_const()),
                to: target(piece.end, state, size),
                sums_row: 4 * width,
            };
            match (height > SIDE, width > SIDE) {
                (true, true) => multiply::<2, 2>(&block),
                (true, false) => multiply::<2, 1>(&block),
                (false, true) => multiply::<1, 2>(&block),
                (false, false) => multiply::<1, 1>(&block),
            }
            finish::<V>(piece.end, state, size);
            left = left.add(piece.units * SIDE);
            right = right.add(piece.units * width);
        }
    }
}

/// Where the sums of a piece are stored.
///
/// # Safety
/// `state` is as [`super::tile::Tile`] says, of tiles of `size` words.
#[inline(always)]
pub(super) unsafe fn target(end: End, state: *mut f32, size: usize) -> *mut f32 {
    match end {
        // SAFETY: the slot exists.
        End::Leaf { merges: 0, slot } => unsafe { state.add((slot + 1) * size) },
        _ => state,
    }
}

/// Adds the stored sums of a piece to those that the tree has them added to.
///
/// # Safety
/// As [`target`]; the instruction set of `V` is enabled.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector>(end: End, state: *mut f32, size: usize) {
    // SAFETY: as the caller's.
    unsafe {
        match end {
            End::Keep | End::Save | End::Leaf { merges: 0, .. } => {}
            End::Leaf { merges, slot } => merge::<V>(state, size, merges, slot + 1),
            End::Tail => merge::<V>(state, size, 1, 1),
        }
    }
}
