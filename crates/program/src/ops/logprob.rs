//! Log-probability of chosen tokens: linear, soft-max and selection, in chunks; logits never exist whole.

use crate::buffer::BufferId;

/// A rank's share of the padded vocabulary, with its leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VocabShard {
    /// First row of the share.
    pub first: usize,
    /// Rows of the share, padding included.
    pub rows: usize,
    /// Words of the whole vocabulary: columns at or past it are −∞.
    pub vocab: usize,
    /// Leaves of the share, as row ranges relative to `first`; multiples of 128.
    pub leaves: Vec<std::ops::Range<usize>>,
}

/// One rank, everything local: log-probs and, when `grad` is given, the gradient of the input in the same pass over
/// each chunk of logits.
///
/// A target of `u32::MAX` is inactive: log-prob exactly 0, no gradient, no work. Logits are `softcap`-free f32 matrix
/// products; (max, Σexp) per tile of 128 columns, tiles combined in the mid-split tree inside a leaf, leaves in the
/// mid-split tree; `logp = logit[target] − (max + ln Σ)`. The gradient of logits is `coef·(1[target] − p)`,
/// `p = exp(logit − lse)`; the input's gradient is a matrix product over the vocabulary with the leaves of the share.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// Input `[tokens, hidden]`.
    pub x: BufferId,
    /// Head `[share rows, hidden]`.
    pub weight: BufferId,
    /// Target ids U32 `[tokens, 1]`.
    pub targets: BufferId,
    /// Output log-probs `[tokens, 1]`.
    pub logp: BufferId,
    /// log Σexp `[tokens, 1]`; kept when the backward pass is a separate operation.
    pub lse: Option<BufferId>,
    /// The share (here the whole vocabulary).
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
    /// (`coef` `[tokens, 1]`, `dx` `[tokens, hidden]`): d loss / d logp, and where the input's gradient goes.
    pub grad: Option<(BufferId, BufferId)>,
}

/// A rank's part: per active row the combined (max, Σexp) of its share and the target's logit if it owns the target
/// (else −∞): `stats[t] = [max, Σexp, logit]`. Combined over ranks by [`LogProbCombine`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbStats {
    /// Input `[tokens, hidden]`.
    pub x: BufferId,
    /// Head share.
    pub weight: BufferId,
    /// Target ids.
    pub targets: BufferId,
    /// Output `[tokens, 3]`.
    pub stats: BufferId,
    /// The share.
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
}

/// Finishes the tree from every rank's (max, Σexp, logit): `gathered` is `[ranks, tokens · 3]` in rank order.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbCombine {
    /// Stats of each rank `[tokens, 3]`, in rank order.
    pub stats: Vec<BufferId>,
    /// Leaves of the whole vocabulary.
    pub leaves: usize,
    /// Target ids.
    pub targets: BufferId,
    /// Output log-probs `[tokens, 1]`.
    pub logp: BufferId,
    /// log Σexp `[tokens, 1]`.
    pub lse: BufferId,
}

/// Gradients from coefficients: logits of each chunk computed again; `dx` (this rank's subtree over the vocabulary)
/// and, when trained, `dw`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbBackward {
    /// Input: this rank's tokens when `dx` is wanted, all tokens when only `dw` is.
    pub x: BufferId,
    /// Head share.
    pub weight: BufferId,
    /// Target ids, axis of `x`.
    pub targets: BufferId,
    /// log Σexp, axis of `x`.
    pub lse: BufferId,
    /// d loss / d logp, axis of `x`.
    pub coef: BufferId,
    /// Gradient of the input (partial over the share's leaves).
    pub dx: Option<BufferId>,
    /// Gradient of the head's share, one chain over active tokens ascending; `dw` is overwritten.
    pub dw: Option<BufferId>,
    /// The share.
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
}
