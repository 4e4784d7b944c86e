//! Element-wise sum.

use std::ops::Range;

use arena::{ExecError, Frame};
use program::Program;
use program::ops::{Add, AddRow};

use super::lanes::{Elementwise, Units, for_elements, for_units, load, shifted, store, sweep};
use super::{exhausted, row_as_f32, source, target, workspace};
use crate::context::{Context, Shared};
use crate::simd::Vector;
use crate::workspace::bytes_of;

#[derive(Clone, Copy)]
struct Sum {
    a: Shared<f32>,
    b: Shared<f32>,
    out: Shared<f32>,
}

impl Elementwise for Sum {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe { store(load::<V>(self.a, at, n).add(load(self.b, at, n)), self.out, at, n) };
    }
}

/// `out = a + b`.
pub(crate) fn add(context: &Context, op: &Add, frame: &Frame<'_>) {
    let (out, len) = target(frame, op.out);
    let sum = Sum { a: source(frame, op.a, len), b: source(frame, op.b, len), out };
    // SAFETY: the three have `len` elements.
    unsafe { for_elements(context, len, sum) };
}

#[derive(Clone, Copy)]
struct SumRow {
    x: Shared<f32>,
    row: Shared<f32>,
    out: Shared<f32>,
    cols: usize,
}

impl Units for SumRow {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, rows: Range<usize>) {
        for t in rows {
            let at = t * self.cols;
            // SAFETY: the caller's word.
            unsafe {
                let (x, out) = (shifted(self.x, at), shifted(self.out, at));
                sweep::<V>(0, self.cols, Sum { a: x, b: self.row, out });
            }
        }
    }
}

/// `out[t, j] = x[t, j] + row[j]`.
pub(crate) fn add_row(context: &Context, op: &AddRow, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (out, len) = target(frame, op.out);
    let (rows, cols) = (frame.rows(op.out), frame.cols(op.out));
    let row = row_as_f32(frame, op.row, &mut workspace(frame)).map_err(exhausted("AddRow"))?;
    assert_eq!(row.len(), cols, "{}: columns", frame.buffer(op.row).name);
    let row = Shared(row.as_mut_ptr());
    let kernel = SumRow { x: source(frame, op.x, len), row, out, cols };
    // SAFETY: `x` and `out` have `rows` rows, the row `cols` elements.
    unsafe { for_units(context, rows, cols, kernel) };
    Ok(())
}

/// Workspace of [`add_row`].
pub(crate) fn add_row_bytes(op: &AddRow, program: &Program) -> usize {
    bytes_of::<f32>(program.buffer(op.row).cols)
}
