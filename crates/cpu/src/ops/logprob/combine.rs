//! The rest of the tree over ranks.

use std::ops::Range;

use arena::{ExecError, Frame};
use canon::log_sum_exp::LogSumExp;
use canon::policy::EntropySum;
use canon::tree::middle;
use program::ops::LogProbCombine;

use super::{INACTIVE, check_finite, clear_inactive, read, targets};
use crate::context::Shared;
use crate::ops::source;

/// The statistics of a row from each rank, those that begin at column `first`.
struct Gathered<'a> {
    of_rank: &'a dyn Fn(usize) -> &'a [f32],
    row: usize,
    columns: usize,
    first: usize,
    /// Whether `Σ exp·(logit − max)` follows.
    dots: bool,
}

impl Gathered<'_> {
    fn at(&self, rank: usize, column: usize) -> f32 {
        (self.of_rank)(rank)[self.columns * self.row + self.first + column]
    }

    /// A node of the tree: ranks split where leaves split, and the first of several
    /// ranks that replicate a leaf speaks for it.
    fn node(&self, leaves: Range<usize>, ranks: Range<usize>) -> EntropySum {
        if leaves.len() == 1 || ranks.len() == 1 {
            let at = |column| self.at(ranks.start, column);
            return EntropySum { max: at(0), sum: at(1), dot: if self.dots { at(3) } else { 0.0 } };
        }
        let (leaf, rank) = (middle(&leaves), middle(&ranks));
        let left = self.node(leaves.start..leaf, ranks.start..rank);
        left.combine(self.node(leaf..leaves.end, rank..ranks.end))
    }

    /// The sums over the vocabulary and their logarithm.
    fn finish(&self, leaves: usize, ranks: usize) -> (EntropySum, f32) {
        canon::fused((), |()| {
            let sums = self.node(0..leaves, 0..ranks);
            (sums, LogSumExp { max: sums.max, sum: sums.sum }.value())
        })
    }

    /// The target's logit is its owner's: the only one above −∞.
    fn logit(&self, ranks: usize) -> f32 {
        (0..ranks)
            .map(|rank| self.at(rank, 2))
            .find(|&logit| logit != f32::NEG_INFINITY)
            .unwrap_or(f32::NEG_INFINITY)
    }
}

/// `lse` and `logp = logit − lse` of active rows from every rank's stats, and what is
/// measured beside; +0 in the others.
pub(crate) fn log_prob_combine(op: &LogProbCombine, frame: &Frame<'_>) -> Result<(), ExecError> {
    let targets = targets(frame, op.targets);
    let ranks = op.stats.len();
    assert!(op.leaves > 0 && ranks > 0, "leaves of at least one rank");
    let of_rank = |rank: usize| read(frame, op.stats[rank]);
    let measures = op.measures();
    let out = |id| source(frame, id, targets.len());
    let (logp, lse, entropy) = (out(op.logp), out(op.lse), op.entropy.map(out));
    let full = op.full.map(|(logp, lse)| (out(logp), out(lse)));
    let (full_logp, full_lse) = full.unzip();
    for to in [Some(logp), Some(lse), entropy, full_logp, full_lse].into_iter().flatten() {
        clear_inactive(to, 1, targets);
    }
    for (row, _) in targets.iter().enumerate().filter(|&(_, &target)| target != INACTIVE) {
        let put = |to: Option<Shared<f32>>, value: f32| {
            if let Some(to) = to {
                // SAFETY: there is a place for every target.
                unsafe { to.get().add(row).write(value) };
            }
        };
        let columns = measures.columns();
        let gathered =
            Gathered { of_rank: &of_rank, row, columns, first: 0, dots: measures.entropy };
        let (sums, sum) = gathered.finish(op.leaves, ranks);
        put(Some(lse), sum);
        put(Some(logp), gathered.logit(ranks) - sum);
        put(entropy, canon::fused((), |()| sums.entropy()));
        if measures.full {
            let whole = Gathered { first: measures.full_column(), dots: false, ..gathered };
            let (_, sum) = whole.finish(op.leaves, ranks);
            put(full_lse, sum);
            put(full_logp, whole.logit(ranks) - sum);
        }
        check_finite(logp, &[row as u32], targets, measures.full)?;
    }
    Ok(())
}
