//! Operations of a program on this crate's kernels, one file each, of the names in
//! [`program::ops`], where each one's order of operations is written.
//!
//! Every function takes the operation and the frame it runs in. Buffers are read
//! and written through addresses, since an operation may update one in place; the
//! frame's contract (distinct buffers of one operation never overlap) is what makes
//! that sound.

mod adamw;
mod add;
mod attention;
mod cache;
mod column_sum;
mod copy;
mod embed;
mod gate;
mod lanes;
mod logprob;
mod matmul;
mod norm;
mod pick;
mod rope;

pub(crate) use adamw::{adamw, sum_squares};
pub(crate) use add::{add, add_row, add_row_bytes};
pub(crate) use attention::{
    attention, attention_backward, attention_backward_bytes, attention_bytes,
};
pub(crate) use cache::cache_write;
pub(crate) use column_sum::{column_sum, fold_rows};
pub(crate) use copy::copy;
pub(crate) use embed::{embed, embed_backward};
pub(crate) use gate::{gate, gate_backward};
pub(crate) use logprob::{
    log_prob, log_prob_backward, log_prob_backward_bytes, log_prob_bytes, log_prob_combine,
    log_prob_stats, log_prob_stats_bytes,
};
pub(crate) use matmul::{matmul, matmul_bytes};
pub(crate) use norm::{norm, norm_backward, norm_bytes, norm_weight_grad, norm_weight_grad_bytes};
pub(crate) use pick::pick_rows;
pub(crate) use rope::{rope, rope_table};

use arena::{ExecError, Frame};
use program::BufferId;

use crate::context::Shared;
use crate::matmul::MatmulError;
use crate::workspace::{Exhausted, Workspace};

/// Address and length of an f32 buffer's live elements that the operation writes.
fn target(frame: &Frame<'_>, id: BufferId) -> (Shared<f32>, usize) {
    // SAFETY: the slice ends here; kernels use the address, under the module's rule.
    let elements = unsafe { frame.f32_mut(id) };
    (Shared(elements.as_mut_ptr()), elements.len())
}

/// Address of an f32 buffer's live elements that the operation reads, all `len` of
/// them. It may be a buffer that the operation also writes.
fn source(frame: &Frame<'_>, id: BufferId, len: usize) -> Shared<f32> {
    let (address, found) = target(frame, id);
    assert_eq!(found, len, "{}: live elements", frame.buffer(id).name);
    address
}

/// A `[1, n]` parameter as f32, in scratch memory.
fn row_as_f32<'a>(
    frame: &Frame<'_>,
    id: BufferId,
    workspace: &mut Workspace<'a>,
) -> Result<&'a mut [f32], Exhausted> {
    // SAFETY: a parameter is not written by an operation that reads it.
    match unsafe { frame.elems(id) } {
        arena::Elems::F32(row) => {
            let copy = workspace.take(row.len())?;
            copy.copy_from_slice(row);
            Ok(copy)
        }
        arena::Elems::Bf16(row) => {
            let copy = workspace.take(row.len())?;
            for (to, from) in copy.iter_mut().zip(row) {
                *to = from.to_f32();
            }
            Ok(copy)
        }
    }
}

/// The whole workspace of the running operation.
fn workspace<'a>(frame: &Frame<'a>) -> Workspace<'a> {
    // SAFETY: operations run one at a time, and each asks once.
    Workspace::new(unsafe { frame.workspace() })
}

/// The workspace was planned for something else.
fn exhausted(op: &'static str) -> impl Fn(Exhausted) -> ExecError {
    move |Exhausted| ExecError::Unsupported { op, why: SMALL_WORKSPACE }
}

const SMALL_WORKSPACE: &str =
    "the plan's workspace is too small: plan the program with this executor's workspace_bytes";

/// A product that the kernel refused.
fn refused(op: &'static str) -> impl Fn(MatmulError) -> ExecError {
    move |error| {
        let why = match error {
            MatmulError::Workspace { .. } => SMALL_WORKSPACE,
            MatmulError::TooManyTerms(_) => "it has more terms than the kernel takes",
            _ => "its operands do not fit each other or their buffers",
        };
        ExecError::Unsupported { op, why }
    }
}
