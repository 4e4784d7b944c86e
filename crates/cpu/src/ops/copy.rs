//! Copy of a buffer.

use arena::{ExecError, Frame};
use program::DType;
use program::ops::Copy;

use super::lanes::{Elementwise, for_elements, load, store};
use super::{source, target};
use crate::context::{Context, Shared};
use crate::simd::Vector;

#[derive(Clone, Copy)]
struct Move {
    x: Shared<f32>,
    out: Shared<f32>,
}

impl Elementwise for Move {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe { store(load::<V>(self.x, at, n), self.out, at, n) };
    }
}

/// `out = x`, live rows; both of one element type.
pub(crate) fn copy(context: &Context, op: &Copy, frame: &Frame<'_>) -> Result<(), ExecError> {
    match (frame.buffer(op.x).dtype, frame.buffer(op.out).dtype) {
        (DType::F32, DType::F32) => {
            let (out, len) = target(frame, op.out);
            let kernel = Move { x: source(frame, op.x, len), out };
            // SAFETY: both have `len` elements.
            unsafe { for_elements(context, len, kernel) };
        }
        (DType::Bf16, DType::Bf16) => {
            // SAFETY: two buffers of one operation do not overlap.
            unsafe { frame.bf16_mut(op.out).copy_from_slice(frame.bf16(op.x)) };
        }
        (DType::U32, DType::U32) => frame.store_u32(op.out, &frame.load_u32(op.x)),
        _ => {
            return Err(ExecError::Unsupported {
                op: "Copy",
                why: "it changes the element type: a copy keeps it",
            });
        }
    }
    Ok(())
}
