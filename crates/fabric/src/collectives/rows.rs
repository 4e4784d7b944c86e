//! Collectives that move whole rows.

use super::Exchanged;
use crate::error::FabricError;
use arena::Frame;
use program::BufferId;
use program::ops::Collective;

/// `out[t] = x of the rank whose share holds ids[t]`; of equal shares the lowest rank's.
pub(super) fn owner_rows(
    ids: &[u32],
    bounds: &[usize],
    out: BufferId,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let (rows, cols) = (frame.rows(out), frame.cols(out));
    let given = (0..round.all.len())
        .map(|rank| round.expect(rank, rows, cols))
        .collect::<Result<Vec<_>, _>>()?;
    let mut bytes = 0;
    for (row, &id) in ids.iter().enumerate() {
        let share =
            bounds.windows(2).position(|share| (share[0]..share[1]).contains(&(id as usize)));
        let Some(owner) = share else {
            let rows = bounds.last().copied().unwrap_or(0);
            return Err(FabricError::NoOwner { operation: round.operation.into(), row, id, rows });
        };
        frame.store_f32_range(out, row * cols..(row + 1) * cols, given[owner].row(row));
        bytes += round.bytes(owner, cols);
    }
    Ok(bytes)
}

/// Rank r holds rows `r·cap ..` of all tokens, `cap` being its capacity; only the last ranks may hold fewer.
pub(super) fn token_rows(all_live: usize, capacity: usize, rank: usize) -> usize {
    all_live.saturating_sub(rank * capacity).min(capacity)
}

/// `out = x of rank 0, 1, …`, live rows in order.
pub(super) fn gather_tokens(
    op: &Collective,
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let (all_live, cols) = (frame.rows(op.out), frame.cols(op.out));
    let capacity = frame.buffer(op.x).rows;
    let (mut bytes, mut next) = (0, 0);
    for rank in 0..round.all.len() {
        let rows = token_rows(all_live, capacity, rank);
        let given = round.expect(rank, rows, cols)?;
        frame.store_f32_range(op.out, next..next + rows * cols, &given.values);
        next += rows * cols;
        bytes += round.bytes(rank, rows * cols);
    }
    Ok(bytes)
}

/// `outs[r] = x of rank r`.
pub(super) fn collect(
    outs: &[BufferId],
    frame: &Frame<'_>,
    round: &Exchanged<'_>,
) -> Result<u64, FabricError> {
    let mut bytes = 0;
    for (rank, &out) in outs.iter().enumerate() {
        let (rows, cols) = (frame.rows(out), frame.cols(out));
        frame.store_f32(out, &round.expect(rank, rows, cols)?.values);
        bytes += round.bytes(rank, rows * cols);
    }
    Ok(bytes)
}
