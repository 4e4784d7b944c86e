//! The rest of the tree over ranks.

use std::ops::Range;

use arena::{ExecError, Frame};
use canon::log_sum_exp::LogSumExp;
use canon::tree::middle;
use program::ops::LogProbCombine;

use super::{INACTIVE, check_finite, clear_inactive, read, targets};
use crate::ops::source;

/// The `[max, Σexp, logit]` of a row from each rank.
struct Gathered<'a> {
    of_rank: &'a dyn Fn(usize) -> &'a [f32],
    row: usize,
}

impl Gathered<'_> {
    fn stats(&self, rank: usize) -> [f32; 3] {
        let stats = &(self.of_rank)(rank)[3 * self.row..][..3];
        [stats[0], stats[1], stats[2]]
    }

    /// A node of the tree: ranks split where leaves split, and the first of several
    /// ranks that replicate a leaf speaks for it.
    fn node(&self, leaves: Range<usize>, ranks: Range<usize>) -> LogSumExp {
        if leaves.len() == 1 || ranks.len() == 1 {
            let [max, sum, _] = self.stats(ranks.start);
            return LogSumExp { max, sum };
        }
        let (leaf, rank) = (middle(&leaves), middle(&ranks));
        let left = self.node(leaves.start..leaf, ranks.start..rank);
        left.combine(self.node(leaf..leaves.end, rank..ranks.end))
    }
}

/// `lse` and `logp = logit − lse` of active rows from every rank's stats; +0 in the
/// others. The target's logit is its owner's: the only one above −∞.
pub(crate) fn log_prob_combine(op: &LogProbCombine, frame: &Frame<'_>) -> Result<(), ExecError> {
    let targets = targets(frame, op.targets);
    let ranks = op.stats.len();
    assert!(op.leaves > 0 && ranks > 0, "leaves of at least one rank");
    let of_rank = |rank: usize| read(frame, op.stats[rank]);
    let logp = source(frame, op.logp, targets.len());
    let lse = source(frame, op.lse, targets.len());
    clear_inactive(logp, 1, targets);
    clear_inactive(lse, 1, targets);
    for (row, _) in targets.iter().enumerate().filter(|&(_, &target)| target != INACTIVE) {
        let gathered = Gathered { of_rank: &of_rank, row };
        let sum = canon::fused((), |()| gathered.node(0..op.leaves, 0..ranks).value());
        let logit = (0..ranks)
            .map(|rank| gathered.stats(rank)[2])
            .find(|&logit| logit != f32::NEG_INFINITY)
            .unwrap_or(f32::NEG_INFINITY);
        // SAFETY: both have a place for every target.
        unsafe {
            lse.get().add(row).write(sum);
            logp.get().add(row).write(logit - sum);
        }
        check_finite(logp, &[row as u32], targets)?;
    }
    Ok(())
}
