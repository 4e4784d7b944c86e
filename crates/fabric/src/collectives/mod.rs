//! What each rank writes from the posted contributions. Each returns the bytes that came from other ranks.

mod columns;
mod rows;
mod slices;
mod tree_sum;

use crate::contribution::{Contribution, Rows};
use crate::error::FabricError;
use arena::Frame;
use program::ops::{Collective, CollectiveKind};
use std::ops::Range;
use std::sync::Arc;

/// The contributions of a round.
pub(crate) struct Exchanged<'a> {
    pub(crate) operation: &'a str,
    /// This rank's index in the group.
    pub(crate) place: usize,
    /// In the order of the group's ranks.
    pub(crate) all: &'a [Arc<Contribution>],
}

impl Exchanged<'_> {
    /// Requires a rank's contribution to have a shape.
    fn expect(&self, rank: usize, rows: usize, cols: usize) -> Result<&Rows, FabricError> {
        let given = self.all[rank].rows(self.operation, rank)?;
        if (given.rows, given.cols) == (rows, cols) {
            return Ok(given);
        }
        Err(FabricError::Shape {
            operation: self.operation.into(),
            rank,
            rows: given.rows,
            cols: given.cols,
            expected_rows: rows,
            expected_cols: cols,
        })
    }

    /// Bytes of `floats` floats that `rank` sends to this rank.
    fn bytes(&self, rank: usize, floats: usize) -> u64 {
        if rank == self.place { 0 } else { (floats * size_of::<f32>()) as u64 }
    }
}

/// Floats that are summed before they are stored.
const PIECE: usize = 1024;

/// The ranges of [`PIECE`] elements, and what is left, of `count`.
fn pieces(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(PIECE).map(move |first| first..count.min(first + PIECE))
}

/// Ranks that an operation was made for, where it says so.
pub(crate) fn lowered_for(kind: &CollectiveKind) -> Option<usize> {
    match kind {
        CollectiveKind::TreeSum { .. }
        | CollectiveKind::GatherTokens
        | CollectiveKind::ExactSum => None,
        CollectiveKind::OwnerRows { bounds, .. } => Some(bounds.len().saturating_sub(1)),
        CollectiveKind::ExchangeColumns { ranges } | CollectiveKind::GatherColumns { ranges } => {
            Some(ranges.len())
        }
        CollectiveKind::Collect { outs } => Some(outs.len()),
        CollectiveKind::StepSum { ranges } | CollectiveKind::GatherSlices { ranges } => {
            Some(ranges.len())
        }
    }
}

/// Writes this rank's result.
pub(crate) fn write(
    op: &Collective,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    match &op.kind {
        CollectiveKind::TreeSum { leaves, alpha, accumulate, bias } => {
            let bias = bias.map(|bias| frame.load_f32(bias));
            let sum =
                tree_sum::TreeSum { leaves: *leaves, alpha: *alpha, accumulate: *accumulate, bias };
            sum.write(op.out, frame, round)
        }
        CollectiveKind::OwnerRows { ids, bounds } => {
            rows::owner_rows(&frame.load_u32(*ids), bounds, op.out, frame, round)
        }
        CollectiveKind::GatherTokens => rows::gather_tokens(op, frame, round),
        CollectiveKind::ExchangeColumns { ranges } => {
            columns::exchange_columns(&ranges[round.place], op, frame, round)
        }
        CollectiveKind::GatherColumns { ranges } => {
            columns::gather_columns(ranges, op.out, frame, round)
        }
        CollectiveKind::Collect { outs } => rows::collect(outs, frame, round),
        CollectiveKind::StepSum { ranges } => {
            slices::step_sum(&ranges[round.place], op.out, frame, round)
        }
        CollectiveKind::GatherSlices { ranges } => {
            slices::gather_slices(ranges, op.out, frame, round)
        }
        CollectiveKind::ExactSum => slices::exact_sum(op.out, frame, round),
    }
}
