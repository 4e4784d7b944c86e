//! Root-mean-square norm.

use crate::lanes::dot;
use crate::matrix::Matrix;
use arena::Frame;
use program::ops::{Norm, NormBackward, NormWeightGrad};

/// `1 / √(Σx²/n + eps)`: the sum over 16 lanes, then one division, one addition, one square root, one division.
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// The weight as a factor: `1 + w` by one addition where it is stored as its difference from 1.
fn factor(weight: f32, plus_one: bool) -> f32 {
    if plus_one { 1.0 + weight } else { weight }
}

/// `y = (x·inv)·w`.
pub(crate) fn norm(op: &Norm, frame: &Frame<'_>) {
    let (mut x, weight) = (Matrix::load(frame, op.x), frame.load_f32(op.weight));
    for t in 0..x.rows {
        for group in x.row_mut(t).chunks_exact_mut(op.group) {
            let inv = inverse_rms(group, op.eps);
            for (x, &w) in group.iter_mut().zip(&weight) {
                *x = (*x * inv) * factor(w, op.plus_one);
            }
        }
    }
    x.store(frame, op.out);
}

/// `dx = inv·(g − x̂·mean)`, `mean = Σ(g·x̂)/n` over 16 lanes, `g = dy·w`, `x̂ = x·inv`; the bracket is one product and
/// one subtraction.
pub(crate) fn norm_backward(op: &NormBackward, frame: &Frame<'_>) {
    let (x, dy) = (Matrix::load(frame, op.x), Matrix::load(frame, op.dy));
    let weight = frame.load_f32(op.weight);
    let mut dx = Matrix::zeros_like(frame, op.dx);
    let old = op.accumulate.then(|| frame.load_f32(op.dx));
    for t in 0..x.rows {
        for start in (0..x.cols).step_by(op.group) {
            let group = start..start + op.group;
            let inv = inverse_rms(&x.row(t)[group.clone()], op.eps);
            let normed: Vec<f32> = x.row(t)[group.clone()].iter().map(|x| x * inv).collect();
            let g: Vec<f32> = dy.row(t)[group.clone()]
                .iter()
                .zip(&weight)
                .map(|(dy, &w)| dy * factor(w, op.plus_one))
                .collect();
            let mean = dot(&g, &normed) / op.group as f32;
            for ((dx, g), normed) in dx.row_mut(t)[group].iter_mut().zip(&g).zip(&normed) {
                *dx = inv * (g - normed * mean);
            }
        }
    }
    if let Some(old) = old {
        for (dx, old) in dx.data.iter_mut().zip(old) {
            *dx += old;
        }
    }
    dx.store(frame, op.dx);
}

/// `dw[leaf, j]`: one chain of fused multiply-adds `fma(dy, x̂, acc)` over tokens and, in a token, the leaf's groups.
pub(crate) fn norm_weight_grad(op: &NormWeightGrad, frame: &Frame<'_>) {
    let (x, dy) = (Matrix::load(frame, op.x), Matrix::load(frame, op.dy));
    let mut dw = Matrix::zeros_like(frame, op.dw);
    for t in 0..x.rows {
        let mut groups = 0..x.cols / op.group;
        for (leaf, &count) in op.leaf_groups.iter().enumerate() {
            for group in groups.by_ref().take(count) {
                let columns = group * op.group..(group + 1) * op.group;
                let (x, dy) = (&x.row(t)[columns.clone()], &dy.row(t)[columns]);
                let inv = inverse_rms(x, op.eps);
                for ((dw, x), dy) in dw.row_mut(leaf).iter_mut().zip(x).zip(dy) {
                    *dw = dy.mul_add(x * inv, *dw);
                }
            }
        }
    }
    dw.store(frame, op.dw);
}
