//! Element-wise sum.

use crate::buffer::BufferId;

/// `out = a + b`, element-wise; `out` may be `a` or `b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// Left.
    pub a: BufferId,
    /// Right.
    pub b: BufferId,
    /// Output.
    pub out: BufferId,
}

/// `out[t, j] = x[t, j] + row[0, j]`; `out` may be `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRow {
    /// Input `[tokens, n]`.
    pub x: BufferId,
    /// Row vector `[1, n]`.
    pub row: BufferId,
    /// Output.
    pub out: BufferId,
}
