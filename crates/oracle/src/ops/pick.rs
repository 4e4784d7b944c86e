//! Selection of rows.

use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::ops::PickRows;

/// `out[i] = x[index[i]]`.
pub(crate) fn pick_rows(op: &PickRows, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (x, index) = (Matrix::load(frame, op.x), frame.load_u32(op.index));
    let mut out = Matrix::zeros_like(frame, op.out);
    for (i, &row) in index.iter().enumerate() {
        let row = row as usize;
        if row >= x.rows {
            return Err(ExecError::RowOutside { what: "picked row", index: row, limit: x.rows });
        }
        out.row_mut(i).copy_from_slice(x.row(row));
    }
    out.store(frame, op.out);
    Ok(())
}
