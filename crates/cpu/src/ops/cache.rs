//! Writing keys and values to a cache.

use arena::{ExecError, Frame};
use program::ops::{CacheWrite, ELSEWHERE};

/// `cache[slots[t]] = x[t]`, live rows ascending, but for rows of other ranks; nothing is written if a slot is
/// outside.
pub(crate) fn cache_write(op: &CacheWrite, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (limit, cols) = (frame.rows(op.cache), frame.cols(op.cache));
    // SAFETY: three distinct buffers of one operation do not overlap.
    let (x, slots, cache) =
        unsafe { (frame.f32(op.x), frame.u32(op.slots), frame.f32_mut(op.cache)) };
    if let Some(&slot) = slots.iter().find(|&&slot| slot != ELSEWHERE && slot as usize >= limit) {
        return Err(ExecError::RowOutside { what: "cache slot", index: slot as usize, limit });
    }
    for (from, &slot) in x.chunks_exact(cols).zip(slots).filter(|row| *row.1 != ELSEWHERE) {
        cache[slot as usize * cols..][..cols].copy_from_slice(from);
    }
    Ok(())
}
