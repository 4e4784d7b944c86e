//! Copy of a buffer.

use arena::{ExecError, Frame};
use program::DType;
use program::ops::Copy;

/// `out = x`, live rows of the same element type.
pub(crate) fn copy(op: &Copy, frame: &Frame<'_>) -> Result<(), ExecError> {
    let [from, to] = [op.x, op.out].map(|id| frame.buffer(id).dtype);
    if from != to {
        let why = "it changes the element type: a copy keeps it";
        return Err(ExecError::Unsupported { op: "Copy", why });
    }
    if from == DType::U32 {
        frame.store_u32(op.out, &frame.load_u32(op.x));
    } else {
        frame.store_f32(op.out, &frame.load_f32(op.x));
    }
    Ok(())
}
