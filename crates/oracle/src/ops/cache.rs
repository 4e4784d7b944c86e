//! Writing keys and values to a cache.

use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::ops::{CacheWrite, ELSEWHERE};

/// `cache[slots[t]] = x[t]`, live rows ascending, but for rows of other ranks; nothing is written if a slot is outside.
pub(crate) fn cache_write(op: &CacheWrite, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (x, slots) = (Matrix::load(frame, op.x), frame.load_u32(op.slots));
    let mut cache = Matrix::load(frame, op.cache);
    for (t, &slot) in slots.iter().enumerate() {
        if slot == ELSEWHERE {
            continue;
        }
        let slot = slot as usize;
        if slot >= cache.rows {
            return Err(ExecError::RowOutside {
                what: "cache slot",
                index: slot,
                limit: cache.rows,
            });
        }
        cache.row_mut(slot).copy_from_slice(x.row(t));
    }
    cache.store(frame, op.cache);
    Ok(())
}
