//! Selection of rows.

use crate::buffer::BufferId;

/// `out[i] = x[index[i]]`: the rows whose logits are wanted, or the cache's rows of some pages. Where the index is
/// [`super::ELSEWHERE`], `out[i]` is left as it is: its owner's row takes its place.
#[derive(Clone, Debug, PartialEq)]
pub struct PickRows {
    /// Input `[tokens, n]`.
    pub x: BufferId,
    /// Row numbers, U32 `[picked, 1]`.
    pub index: BufferId,
    /// Output `[picked, n]`.
    pub out: BufferId,
}
