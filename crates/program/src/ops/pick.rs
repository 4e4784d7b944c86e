//! Selection of rows.

use crate::buffer::BufferId;

/// `out[i] = x[index[i]]`: the rows whose logits are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct PickRows {
    /// Input `[tokens, n]`.
    pub x: BufferId,
    /// Row numbers, U32 `[picked, 1]`.
    pub index: BufferId,
    /// Output `[picked, n]`.
    pub out: BufferId,
}
