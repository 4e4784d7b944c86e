//! Sums over rows.

use crate::matrix::Matrix;
use arena::Frame;
use canon::tree;
use program::ops::{ColumnSum, FoldRows};

/// One chain of adds from +0 a column, live rows ascending.
pub(crate) fn column_sum(op: &ColumnSum, frame: &Frame<'_>) {
    let x = Matrix::load(frame, op.x);
    let mut out = vec![0.0f32; x.cols];
    for t in 0..x.rows {
        for (out, x) in out.iter_mut().zip(x.row(t)) {
            *out += x;
        }
    }
    frame.store_f32(op.out, &out);
}

/// The mid-split tree over the rows, a column at a time.
pub(crate) fn fold_rows(op: &FoldRows, frame: &Frame<'_>) {
    let x = Matrix::load(frame, op.x);
    let column = |j: usize| -> Vec<f32> { (0..x.rows).map(|i| x.at(i, j)).collect() };
    let out: Vec<f32> = (0..x.cols).map(|j| tree::sum(&column(j))).collect();
    frame.store_f32(op.out, &out);
}
