//! Causal attention, forward. Both profiles compute it in f32.
//!
//! For each query row and head, over the visible keys of its sequence, numbered from the sequence's position 0:
//!
//! 1. Keys are taken in blocks of 64, blocks in spans of 16 (1024 keys). Blocks and spans without a visible key are
//!    skipped.
//! 2. A span starts with `m = −∞`, 16 lanes of +0 and an accumulator of +0 for each column of the value. For each of
//!    its blocks, ascending:
//!    - `s_j = scale · chain`, the chain `acc = fma(q_d, k_jd, acc)` over `d` ascending from +0, for visible keys;
//!    - `m' = max(m, max_j s_j)` with `max(a, b) = a > b ? a : b`; `α = exp(m − m')`; `m = m'`;
//!    - every lane and every accumulator is multiplied by `α`;
//!    - `p_j = exp(s_j − m)`; `lane[j mod 16] = lane[j mod 16] + p_j`, `j` ascending, counted in the block;
//!    - `acc_d = fma(p_j, v_jd, acc_d)`, `j` ascending.
//! 3. The span's `l` is the mid-split tree over its lanes.
//! 4. Spans are merged in ascending order into the first: `M' = max(M, m)`, `a = exp(M − M')`, `b = exp(m − M')`,
//!    `L = fma(L, a, l·b)`, `A_d = fma(A_d, a, acc_d·b)`.
//! 5. `inv = 1/L`, `out_d = A_d·inv + 0`, `lse = M + ln L`.
//!
//! So a query's result depends on nothing but its own visible keys. A kernel may also give a masked key `p = +0`: while
//! values are finite, that changes at most the sign of a zero, which the addition of +0 removes.

use super::segments::Segment;
use crate::lanes::LaneSum;
use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::ops::Attention;
use std::ops::Range;

/// Keys of a block.
const BLOCK: usize = 64;

/// Keys of a span.
const SPAN: usize = 16 * BLOCK;

/// See the module for the order. Rows that no segment covers are not written.
pub(crate) fn attention(op: &Attention, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (q, k, v) =
        (Matrix::load(frame, op.q), Matrix::load(frame, op.k), Matrix::load(frame, op.v));
    let segments = Segment::load(frame, op.segments, &op.keys, q.rows, k.rows)?;
    let mut out = Matrix::load(frame, op.out);
    let mut lse = op.lse.map(|lse| Matrix::load(frame, lse));
    let group = op.heads / op.kv_heads;
    for segment in &segments {
        for i in 0..segment.rows {
            let row = segment.query(i);
            let visible = segment.visible(i, op.window);
            for head in 0..op.heads {
                let columns = head * op.head_dim..(head + 1) * op.head_dim;
                let kv = head / group * op.head_dim;
                let keys = Keys {
                    k: &|j, d| k.at(segment.key(j), kv + d),
                    v: &|j, d| v.at(segment.key(j), kv + d),
                    scale: op.scale,
                };
                let state = keys.attend(&q.row(row)[columns.clone()], visible.clone());
                let inv = 1.0 / state.sum;
                for (out, acc) in out.row_mut(row)[columns].iter_mut().zip(&state.acc) {
                    *out = acc * inv + 0.0;
                }
                if let Some(lse) = &mut lse {
                    lse.set(row, head, state.max + canon::ln(state.sum));
                }
            }
        }
    }
    out.store(frame, op.out);
    if let (Some(id), Some(lse)) = (op.lse, lse) {
        lse.store(frame, id);
    }
    Ok(())
}

/// Keys and values of one head of one sequence, by position and column.
struct Keys<'a> {
    k: &'a dyn Fn(usize, usize) -> f32,
    v: &'a dyn Fn(usize, usize) -> f32,
    scale: f32,
}

/// Soft-max over some keys: greatest score, Σexp, Σexp·v.
struct State {
    max: f32,
    sum: f32,
    acc: Vec<f32>,
}

impl Keys<'_> {
    fn attend(&self, q: &[f32], visible: Range<usize>) -> State {
        let spans = visible.start / SPAN..visible.end.div_ceil(SPAN);
        let mut state: Option<State> = None;
        for span in spans {
            let next = self.span(q, span * SPAN..(span + 1) * SPAN, &visible);
            state = Some(match state {
                None => next,
                Some(state) => state.merge(next),
            });
        }
        state.expect("a query sees at least its own key")
    }

    fn span(&self, q: &[f32], span: Range<usize>, visible: &Range<usize>) -> State {
        let mut max = f32::NEG_INFINITY;
        let mut lanes = LaneSum::new();
        let mut acc = vec![0.0f32; q.len()];
        for block in span.step_by(BLOCK) {
            let seen = visible.start.max(block)..visible.end.min(block + BLOCK);
            if seen.is_empty() {
                continue;
            }
            let scores: Vec<f32> = seen.clone().map(|j| self.score(q, j)).collect();
            let new_max = scores.iter().copied().fold(max, greater);
            let alpha = canon::exp(max - new_max);
            max = new_max;
            lanes.scale(alpha);
            for acc in &mut acc {
                *acc *= alpha;
            }
            for (j, score) in seen.zip(scores) {
                let p = canon::exp(score - max);
                lanes.add(j - block, p);
                for (d, acc) in acc.iter_mut().enumerate() {
                    *acc = p.mul_add((self.v)(j, d), *acc);
                }
            }
        }
        State { max, sum: lanes.fold(), acc }
    }

    fn score(&self, q: &[f32], j: usize) -> f32 {
        let chain =
            q.iter().enumerate().fold(0.0, |acc: f32, (d, q)| q.mul_add((self.k)(j, d), acc));
        self.scale * chain
    }
}

impl State {
    fn merge(self, next: State) -> State {
        let max = greater(self.max, next.max);
        let (a, b) = (canon::exp(self.max - max), canon::exp(next.max - max));
        let acc = self.acc.iter().zip(&next.acc).map(|(x, y)| x.mul_add(a, y * b)).collect();
        State { max, sum: self.sum.mul_add(a, next.sum * b), acc }
    }
}

/// `a > b ? a : b`.
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
