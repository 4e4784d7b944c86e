//! Collectives that move columns.

use super::Exchanged;
use super::rows::token_rows;
use crate::error::FabricError;
use arena::Frame;
use program::BufferId;
use program::ops::Collective;
use std::ops::Range;

/// `out[all tokens, my columns]` from every rank's rows.
pub(super) fn exchange_columns(
    mine: &Range<usize>,
    op: &Collective,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let all_live = frame.rows(op.out);
    let (capacity, cols) = (frame.buffer(op.x).rows, frame.cols(op.x));
    let (mut bytes, mut next) = (0, 0);
    for rank in 0..round.all.len() {
        let rows = token_rows(all_live, capacity, rank);
        let given = round.expect(rank, rows, cols)?;
        for row in 0..rows {
            frame.store_f32_range(op.out, next..next + mine.len(), &given.row(row)[mine.clone()]);
            next += mine.len();
        }
        bytes += round.bytes(rank, rows * mine.len());
    }
    Ok(bytes)
}

/// `out[:, range of rank r] = x of rank r`.
pub(super) fn gather_columns(
    ranges: &[Range<usize>],
    out: BufferId,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let (rows, cols) = (frame.rows(out), frame.cols(out));
    let mut bytes = 0;
    for (rank, range) in ranges.iter().enumerate() {
        let given = round.expect(rank, rows, range.len())?;
        for row in 0..rows {
            let first = row * cols;
            frame.store_f32_range(out, first + range.start..first + range.end, given.row(row));
        }
        bytes += round.bytes(rank, rows * range.len());
    }
    Ok(bytes)
}
