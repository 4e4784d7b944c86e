//! Few rows of A (decoding) on matrix tiles: rows of B are the left tiles.
//!
//! A tile of sums is sixteen rows of B by up to sixteen rows of A, transposed when it is
//! stored. Weights in bf16 are loaded into tiles straight from where they lie, in whole
//! runs; everything else (f32, ragged ends) goes through a small panel. As in
//! [`super::skinny`], the work is bound by the memory that B is read from, and the next
//! sixteen rows are asked for in the order of their addresses.

use super::pack::{Packing, pack};
use super::pieces::{Begin, Piece, Pieces};
use super::steps::Steps;
use super::task::Job;
use super::thin::transpose;
use super::tiles::{Left, finish, target};
use super::words::{RUN_WORDS, Words};
use super::{Init, Product};
use crate::simd::{LANES, Vector};
use crate::tiles::{Block, SIDE, WORDS, configure, multiply, release, stream};

/// Words of a row of B that are packed together.
const PANEL_UNITS: usize = 16 * RUN_WORDS;

/// Whether this path serves the product: few rows, `k` of B contiguous.
pub(super) fn serves(product: &Product<'_>) -> bool {
    product.m <= SIDE
        && product.terms().all(|term| term.b.col_stride == 1)
        && !matches!(product.init, Init::Chain)
}

/// Runs one task.
///
/// # Safety
/// As [`Job`]; [`serves`] holds and there are tiles.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, W: Words>(job: &Job<'_, W>) {
    let pieces = Pieces::of::<W>(job.product, 0, usize::MAX);
    let pieces = pieces.as_slice();
    // SAFETY: the scratch memory was sized by the split.
    unsafe {
        configure();
        let right = job.scratch.add(job.split.a_at());
        let held = job.scratch.cast::<[usize; 2]>();
        if held.read_unaligned() != [1, 0] {
            held.write_unaligned([1, 0]);
            pack_right::<V, W>(pieces, job.product.m, right);
        }
        let panel = job.scratch.add(job.split.b_at());
        let state = job.scratch.add(job.split.state_at());
        let mut steps = Steps::of(job);
        while let Some((rows, _)) = steps.take() {
            group::<V, W>(job, pieces, rows, right, panel, state);
            let sums = state.add(WORDS);
            transpose::<V>(sums);
            job.finish.store::<V>(sums, LANES, (0, job.product.m), rows);
        }
        release();
    }
}

#[inline(always)]
unsafe fn pack_right<V: Vector, W: Words>(pieces: &[Piece], rows: usize, to: *mut f32) {
    let mut at = 0;
    for p in pieces {
        let packing = Packing {
            source: p.a,
            k: p.k,
            row: 0,
            rows,
            available: rows,
            unit: p.unit,
            units: p.units,
            at,
            width: SIDE,
            panel_stride: 0,
        };
        // SAFETY: as the caller's.
        unsafe { pack::<V, W>(&packing, to) };
        at += p.units;
    }
}

/// The sums of up to sixteen rows of B.
#[inline(always)]
unsafe fn group<V: Vector, W: Words>(
    job: &Job<'_, W>,
    pieces: &[Piece],
    (row, rows): (usize, usize),
    mut right: *const f32,
    panel: *mut f32,
    state: *mut f32,
) {
    let (mut ahead, _) = pieces[0].b.bytes_at(row + SIDE, 0);
    for p in pieces {
        // SAFETY: as the caller's; a prefetch never faults.
        unsafe {
            let mut block = Block {
                left: panel,
                left_row: 4 * SIDE,
                left_run: 4 * WORDS,
                left_next: 0,
                right,
                right_row: 4 * SIDE,
                runs: 0,
                from: (p.begin != Begin::Zero).then_some(state.cast_const()),
                to: target(p.end, state, WORDS),
                sums_row: 4 * SIDE,
            };
            let mut done = 0;
            if p.b.bf16 && rows == SIDE {
                let (left, left_row) = p.b.bytes_at(row, 2 * p.unit);
                let runs = (p.k / 2 - p.unit).min(p.units) / RUN_WORDS;
                let left_run = 4 * RUN_WORDS;
                stream(&Block { left: left.cast(), left_row, left_run, runs, ..block }, ahead);
                done = runs * RUN_WORDS;
                ahead = ahead.wrapping_add(runs * 4 * WORDS);
            }
            while done < p.units {
                if done > 0 {
                    block.from = Some(block.to);
                }
                let units = PANEL_UNITS.min(p.units - done);
                let packing = Packing {
                    source: p.b,
                    k: p.k,
                    row,
                    rows,
                    available: job.product.n,
                    unit: p.unit + done,
                    units,
                    at: 0,
                    width: SIDE,
                    panel_stride: 0,
                };
                V::outlined(Left::<W>::new(packing, panel));
                block.right = right.add(done * SIDE);
                block.runs = units / RUN_WORDS;
                multiply::<1, 1>(&block);
                done += units;
            }
            finish::<V>(p.end, state, WORDS);
            right = right.add(p.units * SIDE);
        }
    }
}
