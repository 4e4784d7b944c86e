//! Causal attention, backward. Both profiles compute it in f32.
//!
//! For a query `i` and a visible key `j` of its sequence, in one head: `s` as forward, `p = exp(s − lse_i)`,
//! `dp` the chain of `fma(dout_id, v_jd, acc)` over `d` ascending from +0, `ds = (p·(dp − δ_i))·scale`, with
//! `δ_i = Σ_d dout_id·out_id` over 16 lanes. Then
//!
//! - `dq_id`: one chain `fma(ds_ij, k_jd, acc)` over keys ascending;
//! - `dk_jd`: one chain `fma(ds_ij, q_id, acc)` over the group's query heads ascending, in each over queries ascending;
//! - `dv_jd`: one chain `fma(p_ij, dout_id, acc)` in the same order.
//!
//! Each chain starts from +0 and ends with one addition of +0.

use super::segments::Segment;
use crate::lanes::dot;
use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::ops::{AttentionBackward, Keys};
use std::ops::Range;

/// See the module for the order. Rows that no segment covers get +0.
pub(crate) fn attention_backward(
    op: &AttentionBackward,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    let rule = Rule::load(op, frame);
    let segments = Segment::load(frame, op.segments, &Keys::Rows, rule.q.rows, rule.k.rows)?;
    let mut dq = Matrix::zeros_like(frame, op.dq);
    let mut dk = Matrix::zeros_like(frame, op.dk);
    let mut dv = Matrix::zeros_like(frame, op.dv);
    for segment in &segments {
        for head in 0..op.heads {
            rule.query_gradients(segment, head, &mut dq);
            rule.key_gradients(segment, head, &mut dk, &mut dv);
        }
    }
    for (id, mut gradient) in [(op.dq, dq), (op.dk, dk), (op.dv, dv)] {
        for x in &mut gradient.data {
            *x += 0.0;
        }
        gradient.store(frame, id);
    }
    Ok(())
}

/// The forward tensors of every token.
struct Rule<'a> {
    op: &'a AttentionBackward,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    out: Matrix,
    lse: Matrix,
    dout: Matrix,
}

/// What a query and a visible key have between them.
struct Pair {
    p: f32,
    ds: f32,
}

impl<'a> Rule<'a> {
    fn load(op: &'a AttentionBackward, frame: &Frame<'_>) -> Rule<'a> {
        let load = |id| Matrix::load(frame, id);
        Rule {
            op,
            q: load(op.q),
            k: load(op.k),
            v: load(op.v),
            out: load(op.out),
            lse: load(op.lse),
            dout: load(op.dout),
        }
    }

    /// Columns of a query head.
    fn query_columns(&self, head: usize) -> Range<usize> {
        head * self.op.head_dim..(head + 1) * self.op.head_dim
    }

    /// Columns of the key/value head that a query head reads.
    fn key_columns(&self, head: usize) -> Range<usize> {
        self.query_columns(head / (self.op.heads / self.op.kv_heads))
    }

    fn pair(&self, query: usize, key: usize, head: usize) -> Pair {
        let (mine, theirs) = (self.query_columns(head), self.key_columns(head));
        let (q, k) = (&self.q.row(query)[mine.clone()], &self.k.row(key)[theirs.clone()]);
        let (dout, v) = (&self.dout.row(query)[mine.clone()], &self.v.row(key)[theirs]);
        let delta = dot(dout, &self.out.row(query)[mine]);
        let p = canon::exp(self.op.scale * chain(q, k) - self.lse.at(query, head));
        Pair { p, ds: (p * (chain(dout, v) - delta)) * self.op.scale }
    }

    /// Rows of which this rank owns the gradients.
    fn owned(&self, gradient: &Matrix) -> Range<usize> {
        self.op.first_row..self.op.first_row + gradient.rows
    }

    fn query_gradients(&self, segment: &Segment, head: usize, dq: &mut Matrix) {
        let owned = self.owned(dq);
        for i in (0..segment.rows).filter(|&i| owned.contains(&segment.query(i))) {
            let query = segment.query(i);
            let row = &mut dq.row_mut(query - owned.start)[self.query_columns(head)];
            for j in segment.visible(i, self.op.window) {
                let key = segment.key(j);
                let ds = self.pair(query, key, head).ds;
                extend(row, ds, &self.k.row(key)[self.key_columns(head)]);
            }
        }
    }

    /// Continues the chains of the segment's keys by the queries of one head.
    fn key_gradients(&self, segment: &Segment, head: usize, dk: &mut Matrix, dv: &mut Matrix) {
        let owned = self.owned(dk);
        for j in (0..segment.keys()).filter(|&j| owned.contains(&segment.key(j))) {
            let key = segment.key(j);
            let row = key - owned.start;
            for i in (0..segment.rows).filter(|&i| segment.visible(i, self.op.window).contains(&j))
            {
                let query = segment.query(i);
                let Pair { p, ds } = self.pair(query, key, head);
                let columns = self.query_columns(head);
                let theirs = self.key_columns(head);
                extend(
                    &mut dk.row_mut(row)[theirs.clone()],
                    ds,
                    &self.q.row(query)[columns.clone()],
                );
                extend(&mut dv.row_mut(row)[theirs], p, &self.dout.row(query)[columns]);
            }
        }
    }
}

/// `Σ a·b` as one chain, ascending from +0.
fn chain(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |acc: f32, (a, b)| a.mul_add(*b, acc))
}

/// Continues a chain in every column: `acc = fma(factor, x, acc)`.
fn extend(acc: &mut [f32], factor: f32, x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = factor.mul_add(*x, *acc);
    }
}
