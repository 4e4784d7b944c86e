//! The contract as plain loops: what every fast path must equal, byte for byte.

use half::bf16;

use super::{Elems, ElemsMut, Init, Operand, OutView, Product, Term};
use crate::bf16_dot::{dot_bf16_pair, round_operand};
use crate::context::Arithmetic;
use canon::tile_dot::{RUN, add_run};

/// Computes `product` into `out`, one element after another.
///
/// # Panics
/// Where [`super::matmul`] would return an error for a view out of bounds.
pub fn matmul(arithmetic: Arithmetic, product: &Product<'_>, out: &mut OutView<'_>) {
    for i in 0..product.m {
        for j in 0..product.n {
            let at = out.offset + i * out.row_stride + j;
            let old = match &out.data {
                ElemsMut::F32(e) => e[at],
                ElemsMut::Bf16(e) => e[at].to_f32(),
            };
            let start = if matches!(product.init, Init::Chain) { old } else { 0.0 };
            let leaves: Vec<f32> =
                product.leaves.iter().map(|leaf| chain(arithmetic, leaf, i, j, start)).collect();
            let mut sum = tree(&leaves);
            if !product.tail.is_empty() {
                sum += chain(arithmetic, product.tail, i, j, 0.0);
            }
            let val = if product.alpha == 1.0 { sum } else { product.alpha * sum };
            let val = match product.init {
                Init::None | Init::Chain => val,
                Init::Bias(bias) => val + bias[j],
                Init::Accumulate => old + val,
            };
            match &mut out.data {
                ElemsMut::F32(e) => e[at] = val,
                ElemsMut::Bf16(e) => e[at] = bf16::from_f32(val),
            }
        }
    }
}

/// The mid-split tree.
fn tree(leaves: &[f32]) -> f32 {
    match leaves {
        [one] => *one,
        _ => {
            let (left, right) = leaves.split_at(leaves.len() / 2);
            tree(left) + tree(right)
        }
    }
}

/// One chain over the terms of a leaf.
fn chain(arithmetic: Arithmetic, terms: &[Term<'_>], i: usize, j: usize, start: f32) -> f32 {
    let mut acc = start;
    for term in terms {
        match arithmetic {
            Arithmetic::F32 => {
                for k in 0..term.k {
                    acc = element(&term.a, i, k).mul_add(element(&term.b, j, k), acc);
                }
            }
            Arithmetic::Bf16 => {
                for k in (0..term.k).step_by(2) {
                    let [a, b] = [(&term.a, i), (&term.b, j)].map(|(operand, row)| {
                        let odd = if k + 1 < term.k { element(operand, row, k + 1) } else { 0.0 };
                        (round_operand(element(operand, row, k)), round_operand(odd))
                    });
                    acc = dot_bf16_pair(acc, a.0, b.0, a.1, b.1);
                }
            }
            Arithmetic::Bf16Tiles => {
                for first in (0..term.k).step_by(RUN) {
                    acc = add_run(acc, RUN.min(term.k - first), |k| {
                        let at = |operand, row| element(operand, row, first + k);
                        let (a, b) = (at(&term.a, i), at(&term.b, j));
                        (round_operand(a).to_f32(), round_operand(b).to_f32())
                    });
                }
            }
        }
    }
    acc
}

fn element(operand: &Operand<'_>, row: usize, k: usize) -> f32 {
    let at = operand.offset + row * operand.row_stride + k * operand.col_stride;
    match operand.data {
        Elems::F32(e) => e[at],
        Elems::Bf16(e) => e[at].to_f32(),
    }
}
