//! Selection of rows.

use arena::{ExecError, Frame};
use program::ops::{ELSEWHERE, PickRows};

/// `out[i] = x[index[i]]`, rows of other ranks left as they are; nothing is written if an index is outside.
pub(crate) fn pick_rows(op: &PickRows, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (limit, cols) = (frame.rows(op.x), frame.cols(op.x));
    // SAFETY: three distinct buffers of one operation do not overlap.
    let (x, index, out) = unsafe { (frame.f32(op.x), frame.u32(op.index), frame.f32_mut(op.out)) };
    if let Some(&row) = index.iter().find(|&&row| row != ELSEWHERE && row as usize >= limit) {
        return Err(ExecError::RowOutside { what: "picked row", index: row as usize, limit });
    }
    for (to, &row) in out.chunks_exact_mut(cols).zip(index).filter(|row| *row.1 != ELSEWHERE) {
        to.copy_from_slice(&x[row as usize * cols..][..cols]);
    }
    Ok(())
}
