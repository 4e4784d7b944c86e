//! Rotary position embedding.

use crate::matrix::Matrix;
use arena::Frame;
use program::ops::{Rope, RopeTable};

/// `[cos(a_0 …), sin(a_0 …)]·scale`, `a_i = f32(position)·inv_freq[i]`.
pub(crate) fn rope_table(op: &RopeTable, frame: &Frame<'_>) {
    let positions = frame.load_u32(op.positions);
    let half = op.inv_freq.len();
    let mut out = Matrix::zeros_like(frame, op.out);
    for (t, &position) in positions.iter().enumerate() {
        for (i, &inv_freq) in op.inv_freq.iter().enumerate() {
            let (sin, cos) = canon::sin_cos(position as f32 * inv_freq);
            out.set(t, i, cos * op.scale);
            out.set(t, half + i, sin * op.scale);
        }
    }
    out.store(frame, op.out);
}

/// `a' = fma(a, c, −(b·s))`, `b' = fma(b, c, a·s)` with `a = x[i]`, `b = x[i + half]` of each head; the inverse takes
/// `−s`. Columns of a head past `2·half` are left alone.
pub(crate) fn rope(op: &Rope, frame: &Frame<'_>) {
    let (mut x, table) = (Matrix::load(frame, op.x), Matrix::load(frame, op.table));
    let half = table.cols / 2;
    for t in 0..x.rows {
        for head in x.row_mut(t).chunks_exact_mut(op.head_dim) {
            for i in 0..half {
                let c = table.at(t, i);
                let s = if op.inverse { -table.at(t, half + i) } else { table.at(t, half + i) };
                let (a, b) = (head[i], head[half + i]);
                head[i] = a.mul_add(c, -(b * s));
                head[half + i] = b.mul_add(c, a * s);
            }
        }
    }
    x.store(frame, op.x);
}
