//! Sums over rows.

use crate::buffer::BufferId;

/// `out[0, j] = Σ_t x[t, j]`, live rows ascending, one chain of adds from +0 (the gradient of a bias).
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSum {
    /// Input `[all tokens, n]`.
    pub x: BufferId,
    /// Output `[1, n]`.
    pub out: BufferId,
}

/// `out[0, j] = tree_i x[i, j]`: the mid-split tree over the rows of a fixed buffer (leaves of one rank).
#[derive(Clone, Debug, PartialEq)]
pub struct FoldRows {
    /// Input `[leaves, n]`.
    pub x: BufferId,
    /// Output `[1, n]`.
    pub out: BufferId,
}
