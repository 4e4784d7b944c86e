//! Log-probability of chosen tokens.
//!
//! Logits: one chain over the hidden columns ascending, times the policy's scale. Columns at or past the vocabulary are −∞ (their products are
//! never looked at). Per tile of 128 columns (max, Σexp) by [`LogSumExp::of_tile`]; tiles combined in the mid-split
//! tree over the tiles of a leaf, leaves in the mid-split tree over the leaves of the share, shares in the rest of the
//! tree; `lse = max + ln Σ`, `logp = logit[target] − lse`. Candidates that the policy drops are −∞ before this; the
//! log-prob over the whole vocabulary is found from the logits as they were.
//!
//! A target of `u32::MAX` is inactive: log-prob, log Σexp and input gradient are +0, its stats are those of no logits,
//! and nothing is computed for it.

use crate::matrix::Matrix;
use crate::precision::Precision;
use arena::{ExecError, Frame};
use canon::log_sum_exp::LogSumExp;
use canon::policy::{EntropySum, Kept};
use canon::tree;
use program::BufferId;
use program::ops::{LogProb, LogProbBackward, LogProbCombine, LogProbStats, Policy, VocabShard};
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
    scale: f32,
    kept: Option<(Vec<f32>, Vec<u32>)>,
    shard: &'a VocabShard,
    precision: Precision,
}

/// Coefficients of a row, times the policy's scale, with what their terms read.
struct Terms {
    coef: f32,
    lse: f32,
    /// (coefficient, entropy)
    entropy: Option<(f32, f32)>,
    /// (coefficient, log Σexp)
    full: Option<(f32, f32)>,
}

impl<'a> Head<'a> {
    fn load(
        frame: &Frame<'_>,
        (x, weight): (BufferId, BufferId),
        policy: &Policy,
        shard: &'a VocabShard,
        precision: Precision,
    ) -> Head<'a> {
        let (x, weight) = (Matrix::load(frame, x), Matrix::load(frame, weight));
        assert_eq!(weight.rows, shard.rows, "a head has the rows of its share");
        let kept = policy.kept.map(|(logits, ids)| (frame.load_f32(logits), frame.load_u32(ids)));
        Head { x, weight, scale: policy.scale, kept, shard, precision }
    }

    /// Columns of the share that are words.
    fn words(&self) -> usize {
        self.shard.vocab.clamp(self.shard.first, self.shard.first + self.shard.rows)
            - self.shard.first
    }

    /// Logits of a row over the share, scaled.
    fn logits(&self, row: usize) -> Vec<f32> {
        let x = self.x.row(row);
        let mut logits = vec![f32::NEG_INFINITY; self.shard.rows];
        for (j, logit) in logits[..self.words()].iter_mut().enumerate() {
            let w = self.weight.row(j);
            *logit = self.scale * self.precision.chain(0.0, x.len(), |k| (x[k], w[k]));
        }
        logits
    }

    /// The same with dropped candidates at −∞.
    fn kept(&self, row: usize, logits: &[f32]) -> Vec<f32> {
        let Some((last_logits, last_ids)) = &self.kept else { return logits.to_vec() };
        let last = Kept { logit: last_logits[row], id: last_ids[row] };
        let candidates = logits.iter().zip(self.shard.first as u32..);
        let drop = |(&logit, id)| {
            // A NaN stays, so that it is found.
            if last.keeps(logit, id) || logit.is_nan() { logit } else { f32::NEG_INFINITY }
        };
        candidates.map(drop).collect()
    }

    /// The share's subtree of a row's (max, Σexp).
    fn log_sum_exp(&self, logits: &[f32]) -> LogSumExp {
        let EntropySum { max, sum, .. } = self.entropy_sum(logits);
        LogSumExp { max, sum }
    }

    fn entropy_sum(&self, logits: &[f32]) -> EntropySum {
        let leaf = |i: usize| {
            let columns = &logits[self.shard.leaves[i].clone()];
            let tiles: Vec<EntropySum> =
                columns.chunks(VOCAB_TILE).map(EntropySum::of_tile).collect();
            EntropySum::combine_all(&tiles)
        };
        tree::fold(self.shard.leaves.len(), leaf, EntropySum::combine).unwrap_or(EntropySum::EMPTY)
    }

    /// The target's logit if the share holds it.
    fn target_logit(&self, logits: &[f32], target: usize) -> Option<f32> {
        logits.get(target.checked_sub(self.shard.first)?).copied()
    }

    /// The gradient of a row's products, +0 for padding: see [`LogProbBackward`].
    fn logit_gradient(&self, row: usize, logits: &[f32], target: usize, terms: &Terms) -> Vec<f32> {
        let kept = self.kept(row, logits);
        let mut gradient = vec![0.0; logits.len()];
        for (j, gradient) in gradient[..self.words()].iter_mut().enumerate() {
            let chosen = if self.shard.first + j == target { 1.0 } else { 0.0 };
            let p = canon::exp(kept[j] - terms.lse);
            *gradient = terms.coef * (chosen - p);
            if let Some((coef, entropy)) = terms.entropy {
                let dropped = kept[j] == f32::NEG_INFINITY;
                let below = if dropped { 0.0 } else { (terms.lse - kept[j]) - entropy };
                *gradient += coef * (p * below);
            }
            if let Some((coef, lse)) = terms.full {
                *gradient += coef * (chosen - canon::exp(logits[j] - lse));
            }
        }
        gradient
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

/// A log-prob that is a number; of a truncated policy, −∞ is that of a dropped target.
fn finite(row: usize, target: usize, value: f32, truncated: bool) -> Result<f32, ExecError> {
    let id = target as u32;
    if value.is_finite() {
        return Ok(value);
    }
    if truncated && value == f32::NEG_INFINITY {
        return Err(ExecError::TargetNotKept { row, id });
    }
    Err(ExecError::NonFiniteLogProb { row, id, value })
}

/// See [`LogProb`].
pub(crate) fn log_prob(
    op: &LogProb,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.policy, &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let truncated = op.policy.kept.is_some();
    let zeros = || Matrix::zeros_like(frame, op.logp);
    let (mut logp, mut lse, mut entropy) = (zeros(), zeros(), zeros());
    let (mut full, mut full_lse) = (zeros(), zeros());
    let mut grad =
        op.grad.map(|(coef, dx)| (frame.load_f32(coef), Matrix::zeros_like(frame, dx), dx));
    for (row, target) in rows {
        let logits = head.logits(row);
        let kept = head.kept(row, &logits);
        let sums = head.entropy_sum(&kept);
        let sum = LogSumExp { max: sums.max, sum: sums.sum }.value();
        let logit = |of: &[f32]| head.target_logit(of, target).expect("the whole vocabulary");
        logp.set(row, 0, finite(row, target, logit(&kept) - sum, truncated)?);
        lse.set(row, 0, sum);
        entropy.set(row, 0, sums.entropy());
        let whole = head.log_sum_exp(&logits).value();
        full.set(row, 0, logit(&logits) - whole);
        full_lse.set(row, 0, whole);
        if let Some((coef, dx, _)) = &mut grad {
            let coef = coef[row] * op.policy.scale;
            let terms = Terms { coef, lse: sum, entropy: None, full: None };
            let gradient = head.logit_gradient(row, &logits, target, &terms);
            head.input_gradient(&gradient, dx.row_mut(row));
        }
    }
    logp.store(frame, op.logp);
    store_if(frame, op.lse, &lse);
    store_if(frame, op.entropy, &entropy);
    store_if(frame, op.full.map(|f| f.0), &full);
    store_if(frame, op.full.map(|f| f.1), &full_lse);
    if let Some((_, dx, id)) = grad {
        dx.store(frame, id);
    }
    Ok(())
}

fn store_if(frame: &Frame<'_>, id: Option<BufferId>, values: &Matrix) {
    if let Some(id) = id {
        values.store(frame, id);
    }
}

/// See [`LogProbStats`].
pub(crate) fn log_prob_stats(
    op: &LogProbStats,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.policy, &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let mut stats = Matrix::zeros_like(frame, op.stats);
    assert_eq!(stats.cols, op.measures.columns(), "one column a statistic");
    let row_of = |sums: EntropySum, logit: f32, whole: LogSumExp, whole_logit: f32| {
        let mut columns = vec![sums.max, sums.sum, logit];
        columns.extend(op.measures.entropy.then_some(sums.dot));
        if op.measures.full {
            columns.extend([whole.max, whole.sum, whole_logit]);
        }
        columns
    };
    let none = f32::NEG_INFINITY;
    for row in 0..stats.rows {
        let columns = row_of(EntropySum::EMPTY, none, LogSumExp::EMPTY, none);
        stats.row_mut(row).copy_from_slice(&columns);
    }
    for (row, target) in rows {
        let logits = head.logits(row);
        let kept = head.kept(row, &logits);
        let logit = |of: &[f32]| head.target_logit(of, target).unwrap_or(none);
        let (sums, whole) = (head.entropy_sum(&kept), head.log_sum_exp(&logits));
        let columns = row_of(sums, logit(&kept), whole, logit(&logits));
        stats.row_mut(row).copy_from_slice(&columns);
    }
    stats.store(frame, op.stats);
    Ok(())
}

/// Finishes the tree from the subtrees that ranks own; the target's logit is its owner's, copied (where several ranks
/// replicate it, the lowest one's).
pub(crate) fn log_prob_combine(op: &LogProbCombine, frame: &Frame<'_>) -> Result<(), ExecError> {
    let stats: Vec<Matrix> = op.stats.iter().map(|&id| Matrix::load(frame, id)).collect();
    let measures = op.measures();
    let owners = tree::owners(op.leaves, stats.len()).expect("a vocabulary has leaves and ranks");
    let additions = tree::finish(op.leaves, stats.len()).expect("as above");
    let rows = active_rows(&frame.load_u32(op.targets), None)?;
    let zeros = || Matrix::zeros_like(frame, op.logp);
    let (mut logp, mut lse, mut entropy) = (zeros(), zeros(), zeros());
    let (mut full, mut full_lse) = (zeros(), zeros());
    // (sums over the vocabulary, the target's logit), whose columns begin at `first`.
    let finish = |row: usize, first: usize, dots: bool| {
        let of_rank = |rank: usize| {
            let [max, sum] = [0, 1].map(|i| stats[rank].at(row, first + i));
            let dot = if dots { stats[rank].at(row, first + 3) } else { 0.0 };
            EntropySum { max, sum, dot }
        };
        let mut sums: Vec<EntropySum> =
            owners.iter().map(|owner| of_rank(owner.ranks.start)).collect();
        for step in &additions {
            sums[step.into] = sums[step.into].combine(sums[step.from]);
        }
        let mut logits = stats.iter().map(|stats| stats.at(row, first + 2));
        let logit = logits.find(|&logit| logit != f32::NEG_INFINITY).unwrap_or(f32::NEG_INFINITY);
        (sums[0], logit)
    };
    for (row, target) in rows {
        let (sums, logit) = finish(row, 0, measures.entropy);
        let sum = LogSumExp { max: sums.max, sum: sums.sum }.value();
        logp.set(row, 0, finite(row, target, logit - sum, measures.full)?);
        lse.set(row, 0, sum);
        entropy.set(row, 0, sums.entropy());
        if measures.full {
            let (whole, logit) = finish(row, measures.full_column(), false);
            let whole = LogSumExp { max: whole.max, sum: whole.sum }.value();
            full.set(row, 0, logit - whole);
            full_lse.set(row, 0, whole);
        }
    }
    logp.store(frame, op.logp);
    lse.store(frame, op.lse);
    store_if(frame, op.entropy, &entropy);
    store_if(frame, op.full.map(|f| f.0), &full);
    store_if(frame, op.full.map(|f| f.1), &full_lse);
    Ok(())
}

/// See [`LogProbBackward`]; `dw` is one chain over active rows ascending (pairs of profile `cpu-bf16` are taken among
/// active rows).
pub(crate) fn log_prob_backward(
    op: &LogProbBackward,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), ExecError> {
    let head = Head::load(frame, (op.x, op.weight), &op.policy, &op.shard, precision);
    let rows = active_rows(&frame.load_u32(op.targets), Some(op.shard.vocab))?;
    let (lse, coef) = (frame.load_f32(op.lse), frame.load_f32(op.coef));
    let pair = |ids: Option<(BufferId, BufferId)>| {
        ids.map(|(value, coef)| (frame.load_f32(coef), frame.load_f32(value)))
    };
    let (entropy, full) = (pair(op.entropy), pair(op.full));
    let dlogits: Vec<Vec<f32>> = rows
        .iter()
        .map(|&(row, target)| {
            let of = |pair: &Option<(Vec<f32>, Vec<f32>)>| {
                pair.as_ref().map(|(coef, value)| (coef[row] * op.policy.scale, value[row]))
            };
            let terms = Terms {
                coef: coef[row] * op.policy.scale,
                lse: lse[row],
                entropy: of(&entropy),
                full: of(&full),
            };
            head.logit_gradient(row, &head.logits(row), target, &terms)
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
