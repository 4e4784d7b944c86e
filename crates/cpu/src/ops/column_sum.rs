//! Sums over rows.

use std::ops::Range;

use arena::Frame;
use program::ops::{ColumnSum, FoldRows};

use super::lanes::{Units, for_units, load, store};
use super::target;
use crate::context::{Context, Shared};
use crate::simd::{LANES, Vector};

/// Vectors of columns that walk down the rows together.
const WIDTH: usize = 4;
/// Deepest stack of partial sums of a tree: `2^31` rows.
const DEPTH: usize = 32;

#[derive(Clone, Copy)]
struct Columns {
    x: Shared<f32>,
    out: Shared<f32>,
    rows: usize,
    cols: usize,
}

impl Columns {
    /// Lanes of each of the vectors that start at column `from`.
    fn lanes(&self, from: usize) -> [usize; WIDTH] {
        std::array::from_fn(|i| self.cols.saturating_sub(from + i * LANES).min(LANES))
    }
}

/// A unit is `WIDTH` vectors of columns.
#[derive(Clone, Copy)]
struct Chain(Columns);

impl Units for Chain {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, blocks: Range<usize>) {
        for block in blocks {
            let from = block * WIDTH * LANES;
            let lanes = self.0.lanes(from);
            // SAFETY: the caller's word; lanes past the columns are not touched.
            unsafe {
                let mut sums = [V::zero(); WIDTH];
                for t in 0..self.0.rows {
                    for i in 0..WIDTH {
                        if lanes[i] > 0 {
                            let at = t * self.0.cols + from + i * LANES;
                            sums[i] = sums[i].add(load(self.0.x, at, lanes[i]));
                        }
                    }
                }
                for i in 0..WIDTH {
                    if lanes[i] > 0 {
                        store(sums[i], self.0.out, from + i * LANES, lanes[i]);
                    }
                }
            }
        }
    }
}

fn columns(frame: &Frame<'_>, x: program::BufferId, out: program::BufferId) -> Columns {
    let (rows, cols) = (frame.rows(x), frame.cols(x));
    let (out, len) = target(frame, out);
    assert_eq!(len, cols, "one sum a column");
    Columns { x: target(frame, x).0, out, rows, cols }
}

/// One chain of adds from +0 a column, live rows ascending.
pub(crate) fn column_sum(context: &Context, op: &ColumnSum, frame: &Frame<'_>) {
    let columns = columns(frame, op.x, op.out);
    let blocks = columns.cols.div_ceil(WIDTH * LANES);
    // SAFETY: `x` has `rows` rows of `cols`, `out` has `cols` elements.
    unsafe { for_units(context, blocks, columns.rows * WIDTH * LANES, Chain(columns)) };
}

/// A unit is one vector of columns.
#[derive(Clone, Copy)]
struct Tree(Columns);

impl Units for Tree {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, blocks: Range<usize>) {
        let Columns { x, out, rows, cols } = self.0;
        for block in blocks {
            let from = block * LANES;
            let n = LANES.min(cols - from);
            // SAFETY: the caller's word.
            unsafe {
                let mut stack = [V::zero(); DEPTH];
                let mut depth = 0;
                for row in 0..rows {
                    let mut sum = load::<V>(x, row * cols + from, n);
                    for _ in 0..canon::tree::merges_after(row, rows) {
                        depth -= 1;
                        sum = stack[depth].add(sum);
                    }
                    stack[depth] = sum;
                    depth += 1;
                }
                store(stack[0], out, from, n);
            }
        }
    }
}

/// The mid-split tree over the rows, a column at a time.
pub(crate) fn fold_rows(context: &Context, op: &FoldRows, frame: &Frame<'_>) {
    let columns = columns(frame, op.x, op.out);
    assert!(canon::tree::partials(columns.rows) <= DEPTH, "the tree's depth");
    // SAFETY: `x` has `rows` rows of `cols`, `out` has `cols` elements.
    unsafe {
        for_units(context, columns.cols.div_ceil(LANES), columns.rows * LANES, Tree(columns))
    };
}
