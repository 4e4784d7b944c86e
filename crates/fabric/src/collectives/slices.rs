//! Collectives over slices of a parameter's or gradient's elements, and the exact sum.

use super::Exchanged;
use super::tree_sum::tree;
use super::{PIECE, pieces};
use crate::error::FabricError;
use arena::Frame;
use canon::exact::SumOfSquares;
use program::BufferId;
use program::ops::{exact_sum_from_u32, exact_sum_to_u32};
use std::ops::Range;

/// `out[range] = tree over the step's micro-batches`, for this rank's range.
pub(super) fn step_sum(
    range: &Range<usize>,
    out: BufferId,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let (rows, cols) = (frame.rows(out), frame.cols(out));
    let tree = tree(frame.live.micro_batches, round.all.len());
    let given: Vec<&[f32]> = (0..round.all.len())
        .map(|rank| Ok(&round.expect(rank, rows, cols)?.values[range.clone()]))
        .collect::<Result<_, FabricError>>()?;
    let mut sums = Vec::with_capacity(given.len());
    for piece in pieces(range.len()) {
        let mut values = [0.0; PIECE];
        for (value, i) in values.iter_mut().zip(piece.clone()) {
            *value = tree.sum(&mut sums, |rank| given[rank][i]);
        }
        let (first, end) = (range.start + piece.start, range.start + piece.end);
        frame.store_f32_range(out, first..end, &values[..piece.len()]);
    }
    Ok(tree.others(round.place) * (range.len() * size_of::<f32>()) as u64)
}

/// `out[range of rank r] = slice of rank r`.
pub(super) fn gather_slices(
    ranges: &[Range<usize>],
    out: BufferId,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let mut bytes = 0;
    for (rank, range) in ranges.iter().enumerate() {
        let given = round.expect(rank, 1, range.len())?;
        if rank != round.place {
            frame.store_f32_range(out, range.clone(), &given.values);
        }
        bytes += round.bytes(rank, range.len());
    }
    Ok(bytes)
}

/// `out = exact sum of every rank's`.
pub(super) fn exact_sum(
    out: BufferId,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let mut total = SumOfSquares::new();
    let mut received = 0;
    for (rank, given) in round.all.iter().enumerate() {
        let bytes = given.bytes(round.operation, rank)?;
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let sum = exact_sum_from_u32(&words).map_err(|error| FabricError::NotASum {
            operation: round.operation.into(),
            rank,
            reason: error.to_string(),
        })?;
        total.merge(&sum);
        if rank != round.place {
            received += bytes.len() as u64;
        }
    }
    frame.store_u32(out, &exact_sum_to_u32(&total));
    Ok(received)
}
