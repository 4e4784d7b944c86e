//! Root-mean-square norm, over whole rows or over heads.

use crate::buffer::BufferId;

/// `y = x · inv · w` (or `x · inv · (1 + w)`), `inv = 1 / √(Σx²/n + eps)` over each group of `group` columns.
///
/// Order: Σx² by 16 lanes (element i to lane i mod 16, one fused multiply-add chain a lane), lanes folded by the
/// mid-split tree; divided by n; plus eps; IEEE square root; reciprocal by IEEE division; `(x · inv) · w`.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Input `[rows, cols]`.
    pub x: BufferId,
    /// Weight `[1, group]`.
    pub weight: BufferId,
    /// Output, shape of `x`.
    pub out: BufferId,
    /// Columns normalised together: `cols`, or the head size.
    pub group: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the weight is stored as its difference from 1.
    pub plus_one: bool,
}

/// Gradient of the norm's input: `dx = inv·(g − x̂·mean(g·x̂))`, `g = dy·w`, `x̂ = x·inv`; `inv` is computed again.
///
/// The mean's sum runs over 16 lanes as in [`Norm`]. With `accumulate`, `dx = dx + value`.
#[derive(Clone, Debug, PartialEq)]
pub struct NormBackward {
    /// Forward input.
    pub x: BufferId,
    /// Weight.
    pub weight: BufferId,
    /// Gradient of the output.
    pub dy: BufferId,
    /// Gradient of the input; may be the same buffer as `dy` when not accumulating.
    pub dx: BufferId,
    /// Columns normalised together.
    pub group: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the weight is stored as its difference from 1.
    pub plus_one: bool,
    /// Whether the value is added to `dx`.
    pub accumulate: bool,
}

/// Gradient of the norm's weight: `dw[leaf, j] = Σ dy[t, g·group + j] · x̂[t, g·group + j]` over tokens ascending and,
/// inside a token, over the leaf's groups ascending; one fused multiply-add chain from +0.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWeightGrad {
    /// Forward input, all tokens.
    pub x: BufferId,
    /// Gradient of the output, all tokens.
    pub dy: BufferId,
    /// Output `[leaves, group]`.
    pub dw: BufferId,
    /// Columns normalised together.
    pub group: usize,
    /// Groups in each leaf; sums to `cols / group`.
    pub leaf_groups: Vec<usize>,
    /// Added to the mean square.
    pub eps: f32,
}
