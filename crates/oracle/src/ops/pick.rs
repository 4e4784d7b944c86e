//! Selection of rows.

use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::ops::{ELSEWHERE, PickRows};

/// `out[i] = x[index[i]]`; rows of other ranks are left as they are.
pub(crate) fn pick_rows(op: &PickRows, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (x, index) = (Matrix::load(frame, op.x), frame.load_u32(op.index));
    let mut out = Matrix::load(frame, op.out);
    for (i, &row) in index.iter().enumerate() {
        if row == ELSEWHERE {
            continue;
        }
        let row = row as usize;
        if row >= x.rows {
            return Err(ExecError::RowOutside { what: "picked row", index: row, limit: x.rows });
        }
        out.row_mut(i).copy_from_slice(x.row(row));
    }
    out.store(frame, op.out);
    Ok(())
}
