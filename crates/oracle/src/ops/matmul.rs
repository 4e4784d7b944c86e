//! Matrix product with leaves.

use crate::matrix::Matrix;
use crate::precision::Precision;
use arena::Frame;
use canon::tree;
use program::BufferId;
use program::ops::{Init, MatMul, Operand, Term};
use std::collections::HashMap;

/// See [`MatMul`] for the order; the scale, the tail's sum and `init` are one operation each.
pub(crate) fn matmul(op: &MatMul, frame: &Frame<'_>, precision: Precision) {
    let mut loaded: HashMap<BufferId, Matrix> = HashMap::new();
    for id in op.terms().flat_map(|term| [term.a.buffer, term.b.buffer]) {
        loaded.entry(id).or_insert_with(|| Matrix::load(frame, id));
    }
    let bias = match op.init {
        Init::Bias(bias) => Some(frame.load_f32(bias)),
        Init::Zero | Init::Accumulate => None,
    };
    let mut out = Matrix::load(frame, op.out);
    let views = |terms: &[Term]| -> Vec<(View<'_>, View<'_>)> {
        terms.iter().map(|t| (View::new(&loaded, &t.a), View::new(&loaded, &t.b))).collect()
    };
    let leaves: Vec<_> = op.leaves.iter().map(|leaf| views(leaf)).collect();
    let tail = views(&op.tail);
    for i in 0..out.rows {
        for j in 0..out.cols {
            let sums: Vec<f32> = leaves.iter().map(|leaf| chain(precision, leaf, i, j)).collect();
            let mut sum = tree::sum(&sums);
            if !tail.is_empty() {
                sum += chain(precision, &tail, i, j);
            }
            if op.alpha != 1.0 {
                sum *= op.alpha;
            }
            let value = match (&op.init, &bias) {
                (Init::Accumulate, _) => out.at(i, j) + sum,
                (_, Some(bias)) => sum + bias[j],
                (_, None) => sum,
            };
            out.set(i, j, value);
        }
    }
    out.store(frame, op.out);
}

/// A leaf's value at `(i, j)`: one chain from +0 over the terms in order, `k` ascending in each.
fn chain(precision: Precision, terms: &[(View<'_>, View<'_>)], i: usize, j: usize) -> f32 {
    terms.iter().fold(0.0, |acc, (a, b)| {
        assert_eq!(a.k(), b.k(), "operands of one product have one k");
        precision.chain(acc, a.k(), |k| (a.at(i, k), b.at(j, k)))
    })
}

/// A piece of a matrix, transposed or not.
struct View<'a> {
    matrix: &'a Matrix,
    first_row: usize,
    first_col: usize,
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a> View<'a> {
    fn new(loaded: &'a HashMap<BufferId, Matrix>, operand: &Operand) -> View<'a> {
        let matrix = &loaded[&operand.buffer];
        let rows = operand.rows.clone().unwrap_or(0..matrix.rows);
        let cols = operand.cols.clone().unwrap_or(0..matrix.cols);
        View {
            matrix,
            first_row: rows.start,
            first_col: cols.start,
            rows: rows.len(),
            cols: cols.len(),
            transposed: operand.transposed,
        }
    }

    fn k(&self) -> usize {
        if self.transposed { self.rows } else { self.cols }
    }

    fn at(&self, row: usize, k: usize) -> f32 {
        let (row, col) = if self.transposed { (k, row) } else { (row, k) };
        self.matrix.at(self.first_row + row, self.first_col + col)
    }
}
