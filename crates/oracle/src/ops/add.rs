//! Element-wise sum.

use crate::matrix::Matrix;
use arena::Frame;
use program::ops::{Add, AddRow};

/// `out = a + b`.
pub(crate) fn add(op: &Add, frame: &Frame<'_>) {
    let (a, b) = (frame.load_f32(op.a), frame.load_f32(op.b));
    let out: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    frame.store_f32(op.out, &out);
}

/// `out[t, j] = x[t, j] + row[j]`.
pub(crate) fn add_row(op: &AddRow, frame: &Frame<'_>) {
    let (mut x, row) = (Matrix::load(frame, op.x), frame.load_f32(op.row));
    for t in 0..x.rows {
        for (x, row) in x.row_mut(t).iter_mut().zip(&row) {
            *x += row;
        }
    }
    x.store(frame, op.out);
}
