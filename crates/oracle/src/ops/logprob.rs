//! Log-probability of chosen tokens.
//!
//! Logits: one chain over the hidden columns ascending. Columns at or past the vocabulary are −∞ (their products are
//! never looked at). Per tile of 128 columns (max, Σexp) by [`LogSumExp::of_tile`]; tiles combined in the mid-split
//! tree over the tiles of a leaf, leaves in the mid-split tree over the leaves of the share, shares in the rest of the
//! tree; `lse = max + ln Σ`, `logp = logit[target] − lse`.
//!
//! A target of `u32::MAX` is inactive: log-prob, log Σexp and input gradient are +0, its stats are those of no logits,
//! and nothing is computed for it.

use crate::matrix::Matrix;
use crate::precision::Precision;
use arena::{ExecError, Frame};
use canon::log_sum_exp::LogSumExp;
use canon::tree;
use program::BufferId;
use program::ops::{LogProb, LogProbBackward, LogProbCombine, LogProbStats, VocabShard};
use program::topology::VOCAB_TILE;

/// Target of a row without one.
const INACTIVE: u32 = u32::MAX;

/// Active rows with their targets, ascending.
fn active_rows(targets: &[u32], vocab: Option<usize>) -> Result<Vec<(usize, usize)>, ExecError> {
    let mut rows = Vec::new();
    for (row, &id) in targets.iter().enumerate() {
        if id == INACTIVE {
            continue;
        }
        if let Some(vocab) = vocab.filter(|&vocab| id as usize >= vocab) {
            return Err(ExecError::TargetOutsideVocabulary { row, id, vocab });
        }
        rows.push((row, id as usize));
    }
    Ok(rows)
}

/// The input, this rank's share of the head, and how logits are formed.
struct Head<'a> {
    x: Matrix,
    weight: Matrix,
    shard: &'a VocabShard,
    precision: Precision,
}

impl<'a> Head<'a> {
    fn load(
        frame: &Frame<'_>,
        (x, weight): (BufferId, BufferId),
        shard: &'a VocabShard,
        precision: Precision,
    ) -> Head<'a> {
        let (x, weight) = (Matrix::load(frame, x), Matrix::load(frame, weight));
        assert_eq!(weight.rows, shard.rows, "a head has the rows of its share");
        Head { x, weight, shard, precision }
    }

    /// Columns of the share that are words.
    fn words(&self) -> usize {
        self.shard.vocab.clamp(self.shard.first, self.shard.first + self.shard.rows)
            - self.shard.first
    }

    /// Logits of a row over the share.
    fn logits(&self, row: usize) -> Vec<f32> {
        let x = self.x.row(row);
        let mut logits = vec![f32::NEG_INFINITY; self.shard.rows];
        for (j, logit) in logits[..self.words()].iter_mut().enumerate() {
            let w = self.weight.row(j);
            *logit = self.precision.chain(0.0, x.len(), |k| (x[k], w[k]));
        }
        logits
    }

    /// The share's subtree of a row's (max, Σexp).
    fn log_sum_exp(&self, logits: &[f32]) -> LogSumExp {
        let leaf = |i: usize| {
            let columns = &logits[self.shard.leaves[i].clone()];
            let tiles: Vec<LogSumExp> =
                columns.chunks(VOCAB_TILE).map(LogSumExp::of_tile).collect();
            LogSumExp::combine_all(&tiles)
        };
        tree::fold(self.shard.leaves.len(), leaf, LogSumExp::combine).unwrap_or(LogSumExp::EMPTY)
    }

    /// The target's logit if the share holds it.
    fn target_logit(&self, logits: &[f32], target: usize) -> Option<f32> {
        logits.get(target.checked_sub(self.shard.first)?).copied()
    }

    /// Turns logits to their gradient: `coef·(1[target] − exp(logit − lse))`, +0 for padding.
    fn logit_gradient(&self, logits: &mut [f32], target: usize, lse: f32, coef: f32) {
        let words = self.words();
        for (j, logit) in logits[..words].iter_mut().enumerate() {
            let chosen = if self.shard.first + j == target { 1.0 } else { 0.0 };
            *logit = coef * (chosen - canon::exp(*logit - lse));
        }
        logits[words..].fill(0.0);
    }

    /// The row's input gradient: one chain a leaf over its columns ascending, leaves added in the tree.
    fn input_gradient(&self, dlogits: &[f32], dx: &mut [f32]) {
        for (h, dx) in dx.iter_mut().enumerate() {
            let leaf = |i: usize| {
                let columns = self.shard.leaves[i].clone();
                let operands = |n: usize| {
                    let j = columns.start + n;
                    (dlogits[j], self.weight.at(j, h))
                };
                self.precision.chain(0.0, columns.len(), operands)
            };
            *dx = tree::fold(self.shard.leaves.len(), leaf, |a, b| a + b).unwrap_or(0.0);
        }
    }
}

fn finite(row: usize, target: usize, value: f32) -> Result<f32, ExecError> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(ExecError::NonFiniteLogProb { row, id: target as u32, value })
}

/// See [`LogProb`].
pub(crate) fn log_prob(
    op: &LogProb,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let mut logp = Matrix::zeros_like(frame, op.logp);
    let mut lse = Matrix::zeros_like(frame, op.logp);
    let mut grad =
        op.grad.map(|(coef, dx)| (frame.load_f32(coef), Matrix::zeros_like(frame, dx), dx));
    for (row, target) in rows {
        let mut logits = head.logits(row);
        let sum = head.log_sum_exp(&logits).value();
        let logit = head.target_logit(&logits, target).expect("the share is the whole vocabulary");
        logp.set(row, 0, finite(row, target, logit - sum)?);
        lse.set(row, 0, sum);
        if let Some((coef, dx, _)) = &mut grad {
            head.logit_gradient(&mut logits, target, sum, coef[row]);
            head.input_gradient(&logits, dx.row_mut(row));
        }
    }
    logp.store(frame, op.logp);
    if let Some(id) = op.lse {
        lse.store(frame, id);
    }
    if let Some((_, dx, id)) = grad {
        dx.store(frame, id);
    }
    Ok(())
}

/// See [`LogProbStats`].
pub(crate) fn log_prob_stats(
    op: &LogProbStats,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let mut stats = Matrix::zeros_like(frame, op.stats);
    for row in 0..stats.rows {
        let LogSumExp { max, sum } = LogSumExp::EMPTY;
        stats.row_mut(row).copy_from_slice(&[max, sum, f32::NEG_INFINITY]);
    }
    for (row, target) in rows {
        let logits = head.logits(row);
        let LogSumExp { max, sum } = head.log_sum_exp(&logits);
        let logit = head.target_logit(&logits, target).unwrap_or(f32::NEG_INFINITY);
        stats.row_mut(row).copy_from_slice(&[max, sum, logit]);
    }
    stats.store(frame, op.stats);
    Ok(())
}

/// Finishes the tree from the subtrees that ranks own; the target's logit is its owner's, copied (where several ranks
/// replicate it, the lowest one's).
pub(crate) fn log_prob_combine(op: &LogProbCombine, frame: &Frame<'_>) -> Result<(), ExecError> {
    let stats: Vec<Matrix> = op.stats.iter().map(|&id| Matrix::load(frame, id)).collect();
    let owners = tree::owners(op.leaves, stats.len()).expect("a vocabulary has leaves and ranks");
    let additions = tree::finish(op.leaves, stats.len()).expect("as above");
    let rows = active_rows(&frame.load_u32(op.targets), None)?;
    let mut logp = Matrix::zeros_like(frame, op.logp);
    let mut lse = Matrix::zeros_like(frame, op.lse);
    for (row, target) in rows {
        let pair = |rank: usize| {
            let [max, sum] = [stats[rank].at(row, 0), stats[rank].at(row, 1)];
            LogSumExp { max, sum }
        };
        let mut sums: Vec<LogSumExp> = owners.iter().map(|owner| pair(owner.ranks.start)).collect();
        for step in &additions {
            sums[step.into] = sums[step.into].combine(sums[step.from]);
        }
        let sum = sums[0].value();
        let owned =
            stats.iter().map(|stats| stats.at(row, 2)).find(|&logit| logit != f32::NEG_INFINITY);
        let logit = owned.unwrap_or(f32::NEG_INFINITY);
        logp.set(row, 0, finite(row, target, logit - sum)?);
        lse.set(row, 0, sum);
    }
    logp.store(frame, op.logp);
    lse.store(frame, op.lse);
    Ok(())
}

/// See [`LogProbBackward`]; `dw` is one chain over active rows ascending (pairs of profile `cpu-bf16` are taken among
/// active rows).
pub(crate) fn log_prob_backward(
    op: &LogProbBackward,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let (lse, coef) = (frame.load_f32(op.lse), frame.load_f32(op.coef));
    let dlogits: Vec<Vec<f32>> = rows
        .iter()
        .map(|&(row, target)| {
            let mut logits = head.logits(row);
            head.logit_gradient(&mut logits, target, lse[row], coef[row]);
            logits
        })
        .collect();
    if let Some(id) = op.dx {
        let mut dx = Matrix::zeros_like(frame, id);
        for (&(row, _), dlogits) in rows.iter().zip(&dlogits) {
            head.input_gradient(dlogits, dx.row_mut(row));
        }
        dx.store(frame, id);
    }
    if let Some(id) = op.dw {
        let mut dw = Matrix::zeros_like(frame, id);
        for (j, row) in dw.data.chunks_mut(dw.cols).enumerate() {
            for (h, dw) in row.iter_mut().enumerate() {
                let operands = |n: usize| (dlogits[n][j], head.x.at(rows[n].0, h));
                *dw = precision.chain(0.0, rows.len(), operands);
            }
        }
        dw.store(frame, id);
    }
    Ok(())
}
