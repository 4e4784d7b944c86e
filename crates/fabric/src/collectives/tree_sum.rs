//! The rest of the tree, from subtree sums.

use super::{Exchanged, pieces};
use crate::error::FabricError;
use arena::Frame;
use canon::tree::{self, Addition, Owner};
use program::BufferId;

/// The part of a tree above the subtrees that ranks own.
pub(super) struct Tree {
    owners: Vec<Owner>,
    additions: Vec<Addition>,
}

/// The tree over `leaves` leaves shared among `ranks` ranks.
pub(super) fn tree(leaves: usize, ranks: usize) -> Tree {
    Tree {
        owners: tree::owners(leaves, ranks).expect("a tree has leaves, a group ranks"),
        additions: tree::finish(leaves, ranks).expect("as above"),
    }
}

impl Tree {
    /// One element's sum, in f32; `of` gives a rank's subtree sum. A leaf that several ranks replicate is taken from the
    /// lowest. `sums` is scratch.
    pub(super) fn sum(&self, sums: &mut Vec<f32>, of: impl Fn(usize) -> f32) -> f32 {
        sums.clear();
        sums.extend(self.owners.iter().map(|owner| of(owner.ranks.start)));
        for step in &self.additions {
            sums[step.into] += sums[step.from];
        }
        sums[0]
    }

    /// Subtree sums that the rank at `place` does not have itself.
    pub(super) fn others(&self, place: usize) -> u64 {
        self.owners.iter().filter(|owner| !owner.ranks.contains(&place)).count() as u64
    }
}

/// `out = [out +] (alpha · tree) [+ bias]`.
pub(super) struct TreeSum {
    pub(super) leaves: usize,
    pub(super) alpha: f32,
    pub(super) accumulate: bool,
    pub(super) bias: Option<Vec<f32>>,
}

impl TreeSum {
    /// Order, element by element, in f32: the additions of the mid-split tree above the subtrees that ranks own; times
    /// `alpha` unless it is 1; plus the bias, if any; added to the old value (`out + value`) when accumulating; one
    /// rounding to the output's type.
    pub(super) fn write(
        &self,
        out: BufferId,
        frame: &Frame<'_>,
        round: &Exchanged<'_>,
    ) -> Result<u64, FabricError> {
        let (rows, cols) = (frame.rows(out), frame.cols(out));
        let ranks = round.all.len();
        let tree = tree(self.leaves, ranks);
        let given: Vec<&[f32]> = (0..ranks)
            .map(|rank| Ok(&round.expect(rank, rows, cols)?.values[..]))
            .collect::<Result<_, FabricError>>()?;
        let mut sums = Vec::with_capacity(ranks);
        for piece in pieces(rows * cols) {
            let mut values = frame.load_f32_range(out, piece.clone());
            for (value, i) in values.iter_mut().zip(piece.clone()) {
                let mut sum = tree.sum(&mut sums, |rank| given[rank][i]);
                if self.alpha != 1.0 {
                    sum *= self.alpha;
                }
                if let Some(bias) = &self.bias {
                    sum += bias[i % cols];
                }
                *value = if self.accumulate { *value + sum } else { sum };
            }
            frame.store_f32_range(out, piece, &values);
        }
        Ok(tree.others(round.place) * (rows * cols * size_of::<f32>()) as u64)
    }
}
