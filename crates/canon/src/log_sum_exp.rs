//! The logarithm of a sum of exponentials as pairs that combine in the tree.

use crate::elementary::{CANONICAL_NAN, exp, ln};
use crate::tree;

/// Lanes of a tile's sum of exponentials.
pub const TILE_LANES: usize = 16;

/// The greatest of some logits and the sum of `e^(logit - max)` over them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSumExp {
    /// The greatest logit; `-inf` when there is none above it.
    pub max: f32,
    /// The sum of exponentials, 0 when `max` is `-inf`.
    pub sum: f32,
}

impl LogSumExp {
    /// No logits at all; combining with it changes nothing.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// The pair of one tile of logits (a fixed run of vocabulary columns).
    ///
    /// Order of operations: `max` by `a > b ? a : b` over the columns, plus `+0`
    /// (so never `-0`); 16 lanes start at `+0` and column `j` is added to lane
    /// `j % 16` as `lane = lane + exp(logit - max)`, `j` ascending; the lanes are
    /// added in the mid-split tree. A tile of `-inf` only is [`EMPTY`](Self::EMPTY);
    /// a NaN or `+inf` logit makes `sum` NaN.
    #[must_use]
    pub fn of_tile(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, greater) + 0.0;
        if max == f32::NEG_INFINITY && !logits.iter().any(|x| x.is_nan()) {
            return Self::EMPTY;
        }
        let mut lanes = [0.0; TILE_LANES];
        for (j, &logit) in logits.iter().enumerate() {
            lanes[j % TILE_LANES] += exp(logit - max);
        }
        Self { max, sum: canonical(tree::sum(&lanes)) }
    }

    /// The pair of both sets of logits: a node of the tree.
    ///
    /// Order of operations: `m = a.max > b.max ? a.max : b.max`, then
    /// `sum = (a.sum * exp(a.max - m)) + (b.sum * exp(b.max - m))`, no fused
    /// operation; when `m` is `-inf`, `sum = a.sum + b.sum`. A NaN stays NaN.
    /// `combine(a, b) = combine(b, a)`, but it is not associative: use the tree.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        let max = greater(self.max, other.max);
        let sum = if max == f32::NEG_INFINITY {
            self.sum + other.sum
        } else {
            let left = self.sum * exp(self.max - max);
            let right = other.sum * exp(other.max - max);
            left + right
        };
        Self { max, sum: canonical(sum) }
    }

    /// The mid-split tree of [`combine`](Self::combine) over `pairs`;
    /// [`EMPTY`](Self::EMPTY) for none.
    #[must_use]
    pub fn combine_all(pairs: &[Self]) -> Self {
        tree::fold(pairs.len(), |i| pairs[i], Self::combine).unwrap_or(Self::EMPTY)
    }

    /// The logarithm of the sum: `max + ln(sum)`, `-inf` when empty.
    #[must_use]
    pub fn value(self) -> f32 {
        canonical(self.max + ln(self.sum))
    }
}

/// `a > b ? a : b`, which is what the vector `max` instructions of x86 do.
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { CANONICAL_NAN } else { x }
}
