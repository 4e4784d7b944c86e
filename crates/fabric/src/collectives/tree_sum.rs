//! The rest of the tree, from subtree sums.

use super::Exchanged;
use crate::error::FabricError;
use arena::Frame;
use canon::tree;
use program::BufferId;

/// `out = [out +] (alpha · tree) [+ bias]`.
pub(super) struct TreeSum {
    pub(super) leaves: usize,
    pub(super) alpha: f32,
    pub(super) accumulate: bool,
    pub(super) bias: Option<Vec<f32>>,
}

impl TreeSum {
    /// Order, element by element, in f32: the additions of the mid-split tree above the subtrees that ranks own (a leaf
    /// that several ranks replicate is taken from the lowest); times `alpha` unless it is 1; plus the bias, if any; added
    /// to the old value (`out + value`) when accumulating; one rounding to the output's type.
    pub(super) fn write(
        &self,
        out: BufferId,
        frame: &Frame<'_>,
        round: &Exchanged<'_>,
    ) -> Result<u64, FabricError> {
        let (rows, cols) = (frame.rows(out), frame.cols(out));
        let ranks = round.all.len();
        let owners = tree::owners(self.leaves, ranks).expect("a tree has leaves, a group ranks");
        let additions = tree::finish(self.leaves, ranks).expect("as above");
        for rank in 0..ranks {
            round.expect(rank, rows, cols)?;
        }
        let mut values = frame.load_f32(out);
        for (i, value) in values.iter_mut().enumerate() {
            let mut sums: Vec<f32> =
                owners.iter().map(|owner| round.all[owner.ranks.start].values[i]).collect();
            for step in &additions {
                sums[step.into] += sums[step.from];
            }
            let mut sum = sums[0];
            if self.alpha != 1.0 {
                sum *= self.alpha;
            }
            if let Some(bias) = &self.bias {
                sum += bias[i % cols];
            }
            *value = if self.accumulate { *value + sum } else { sum };
        }
        frame.store_f32(out, &values);
        let others = owners.iter().filter(|owner| !owner.ranks.contains(&round.place)).count();
        Ok((others * rows * cols * size_of::<f32>()) as u64)
    }
}
