//! What a token is chosen from: temperature, then a prefix of the candidates in their order.
//!
//! Rollout and training form the policy by the same rules. A logit is multiplied by `1 / temperature` ([`scale`]),
//! once, in f32; everything below reads scaled logits. Candidates are ordered by (logit descending, id ascending), and
//! top-k and top-p keep a prefix of that order, so the kept set is known from its last candidate alone
//! ([`Kept`]): whoever has a logit and its id can tell whether it is kept, on any shard of the vocabulary.

use crate::elementary::{CANONICAL_NAN, exp, ln};
use crate::log_sum_exp::TILE_LANES;
use crate::tree;
use std::cmp::Ordering;

/// What logits are multiplied by: `1 / temperature`, rounded once; 1 for greedy choice (temperature 0), whose
/// log-probs are those of the distribution that it takes the mode of.
#[must_use]
pub fn scale(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { 1.0 / temperature }
}

/// The order of candidates `(scaled logit, id)`: logit descending (`-0` and `+0` are equal), id ascending.
#[must_use]
pub fn order(a: (f32, u32), b: (f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// The last candidate of a kept set, which says the whole set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Its logit, scaled.
    pub logit: f32,
    /// Its id.
    pub id: u32,
}

impl Kept {
    /// Every candidate.
    pub const ALL: Kept = Kept { logit: f32::NEG_INFINITY, id: u32::MAX };

    /// Whether a candidate comes no later in the order than the last one.
    #[must_use]
    pub fn keeps(self, logit: f32, id: u32) -> bool {
        logit > self.logit || (logit == self.logit && id <= self.id)
    }
}

/// The greatest of some logits, the sum of `e^(logit - max)` over them, and the sum of `e^(logit - max) · (logit - max)`:
/// what the entropy of their soft-max is made from. `(max, sum)` are the bits of
/// [`LogSumExp`](crate::log_sum_exp::LogSumExp) over the same logits in the same tree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntropySum {
    /// The greatest logit; `-inf` when there is none above it.
    pub max: f32,
    /// The sum of exponentials.
    pub sum: f32,
    /// The sum of exponentials times their exponents: 0 or less.
    pub dot: f32,
}

impl EntropySum {
    /// No logits at all; combining with it changes nothing.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, dot: 0.0 };

    /// The sums of one tile of logits.
    ///
    /// Order of operations: as [`LogSumExp::of_tile`](crate::log_sum_exp::LogSumExp::of_tile); beside it, 16 lanes of
    /// `dot` start at `+0` and take `lane + e * d` with `d = logit - max`, `e = exp(d)`, no fused operation, `d = 0`
    /// where the logit is `-inf`.
    #[must_use]
    pub fn of_tile(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, greater) + 0.0;
        if max == f32::NEG_INFINITY && !logits.iter().any(|x| x.is_nan()) {
            return Self::EMPTY;
        }
        let (mut sums, mut dots) = ([0.0; TILE_LANES], [0.0; TILE_LANES]);
        for (j, &logit) in logits.iter().enumerate() {
            let e = exp(logit - max);
            let d = if logit == f32::NEG_INFINITY { 0.0 } else { logit - max };
            sums[j % TILE_LANES] += e;
            dots[j % TILE_LANES] += e * d;
        }
        Self { max, sum: canonical(tree::sum(&sums)), dot: canonical(tree::sum(&dots)) }
    }

    /// The sums over both sets of logits: a node of the tree.
    ///
    /// Order of operations: `m = a.max > b.max ? a.max : b.max`; the part of each side is
    /// `sum * exp(max - m)` and `(dot + sum * (max - m)) * exp(max - m)`, both `+0` where its `max` is `-inf`; the parts
    /// are added, no fused operation.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        let max = greater(self.max, other.max);
        let ((left, left_dot), (right, right_dot)) = (self.moved(max), other.moved(max));
        Self { max, sum: canonical(left + right), dot: canonical(left_dot + right_dot) }
    }

    fn moved(self, max: f32) -> (f32, f32) {
        if self.max == f32::NEG_INFINITY {
            return (self.sum, self.dot);
        }
        let d = self.max - max;
        let e = exp(d);
        (self.sum * e, (self.dot + self.sum * d) * e)
    }

    /// The mid-split tree of [`combine`](Self::combine) over `sums`; [`EMPTY`](Self::EMPTY) for none.
    #[must_use]
    pub fn combine_all(sums: &[Self]) -> Self {
        tree::fold(sums.len(), |i| sums[i], Self::combine).unwrap_or(Self::EMPTY)
    }

    /// The entropy of the soft-max, nats: `ln(sum) - dot / sum`.
    #[must_use]
    pub fn entropy(self) -> f32 {
        canonical(ln(self.sum) - self.dot / self.sum)
    }
}

/// `a > b ? a : b`, as in [`crate::log_sum_exp`].
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { CANONICAL_NAN } else { x }
}
