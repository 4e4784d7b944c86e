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

/// What a token is chosen from: [`canon::policy`], the same in rollout and in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Logits are multiplied by this, once, before all else: 1 / temperature.
    pub scale: f32,
    /// The last kept candidate of each row ([`canon::policy::Kept`]): its scaled logit F32 `[tokens, 1]`, its id U32
    /// `[tokens, 1]`. Candidates after it are −∞, like padding. `None` keeps every candidate.
    pub kept: Option<(BufferId, BufferId)>,
}

impl Policy {
    /// Temperature 1, every candidate.
    pub const PLAIN: Policy = Policy { scale: 1.0, kept: None };

    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> + use<> {
        self.kept.into_iter().flat_map(|(logit, id)| [logit, id])
    }
}

/// What is found of each token beside its policy log-prob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Measures {
    /// The entropy of what the token was chosen from.
    pub entropy: bool,
    /// The log-prob over the whole vocabulary, at the same temperature: another one only where candidates are dropped.
    pub full: bool,
}

impl Measures {
    /// Columns of a rank's statistics: `[max, Σexp, logit]`, then `Σ exp·(logit − max)` with the entropy, then the whole
    /// vocabulary's `max, Σexp, logit`.
    pub fn columns(self) -> usize {
        3 + usize::from(self.entropy) + 3 * usize::from(self.full)
    }

    /// First column of the whole vocabulary's statistics.
    pub fn full_column(self) -> usize {
        3 + usize::from(self.entropy)
    }
}

/// One rank, everything local: log-probs and, when `grad` is given, the gradient of the input in the same pass over
/// each chunk of logits.
///
/// A target of `u32::MAX` is inactive: log-prob exactly 0, no gradient, no work. Logits are f32 matrix products times
/// the policy's scale; (max, Σexp) per tile of 128 columns, tiles combined in the mid-split tree inside a leaf, leaves
/// in the mid-split tree; `logp = logit[target] − (max + ln Σ)`. With `c = coef · scale` the gradient of a product is
/// `c·(1[target] − p)`, `p = exp(logit − lse)`; the input's gradient is a matrix product over the vocabulary with the
/// leaves of the share.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// Input `[tokens, hidden]`.
    pub x: BufferId,
    /// Head `[share rows, hidden]`.
    pub weight: BufferId,
    /// Target ids U32 `[tokens, 1]`.
    pub targets: BufferId,
    /// What tokens are chosen from.
    pub policy: Policy,
    /// Output log-probs `[tokens, 1]`.
    pub logp: BufferId,
    /// log Σexp `[tokens, 1]`; kept when the backward pass is a separate operation.
    pub lse: Option<BufferId>,
    /// Output entropies `[tokens, 1]`.
    pub entropy: Option<BufferId>,
    /// Output log-probs over the whole vocabulary and their log Σexp, each `[tokens, 1]`.
    pub full: Option<(BufferId, BufferId)>,
    /// The share (here the whole vocabulary).
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
    /// (`coef` `[tokens, 1]`, `dx` `[tokens, hidden]`): d loss / d logp, and where the input's gradient goes. Only
    /// where the policy keeps every candidate.
    pub grad: Option<(BufferId, BufferId)>,
}

/// A rank's part: per active row the combined (max, Σexp) of its share and the target's logit if it owns the target
/// (else −∞), and what `measures` adds: see [`Measures::columns`]. Combined over ranks by [`LogProbCombine`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbStats {
    /// Input `[tokens, hidden]`.
    pub x: BufferId,
    /// Head share.
    pub weight: BufferId,
    /// Target ids.
    pub targets: BufferId,
    /// What tokens are chosen from.
    pub policy: Policy,
    /// What is found.
    pub measures: Measures,
    /// Output `[tokens, columns]`.
    pub stats: BufferId,
    /// The share.
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
}

/// Finishes the tree from every rank's statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbCombine {
    /// Stats of each rank `[tokens, columns]`, in rank order.
    pub stats: Vec<BufferId>,
    /// Leaves of the whole vocabulary.
    pub leaves: usize,
    /// Target ids.
    pub targets: BufferId,
    /// Output log-probs `[tokens, 1]`.
    pub logp: BufferId,
    /// log Σexp `[tokens, 1]`.
    pub lse: BufferId,
    /// Output entropies `[tokens, 1]`.
    pub entropy: Option<BufferId>,
    /// Output log-probs over the whole vocabulary and their log Σexp.
    pub full: Option<(BufferId, BufferId)>,
}

impl LogProbCombine {
    /// What is found.
    pub fn measures(&self) -> Measures {
        Measures { entropy: self.entropy.is_some(), full: self.full.is_some() }
    }
}

/// Gradients from coefficients: logits of each chunk computed again; `dx` (this rank's subtree over the vocabulary)
/// and, when trained, `dw`.
///
/// The gradient of a product, over words, in this order: `c·(1[target] − p)` with `p = exp(logit − lse)`, 0 where the
/// candidate is dropped; plus `e·(p·((lse − logit) − H))` with the entropy, where the candidate is kept; plus
/// `f·(1[target] − exp(logit − full lse))`. `c`, `e` and `f` are the coefficients times the policy's scale.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbBackward {
    /// Input: this rank's tokens when `dx` is wanted, all tokens when only `dw` is.
    pub x: BufferId,
    /// Head share.
    pub weight: BufferId,
    /// Target ids, axis of `x`.
    pub targets: BufferId,
    /// What tokens are chosen from.
    pub policy: Policy,
    /// log Σexp, axis of `x`.
    pub lse: BufferId,
    /// d loss / d logp, axis of `x`.
    pub coef: BufferId,
    /// Entropies and d loss / d entropy.
    pub entropy: Option<(BufferId, BufferId)>,
    /// The whole vocabulary's log Σexp, and d loss / d log-prob over it.
    pub full: Option<(BufferId, BufferId)>,
    /// Gradient of the input (partial over the share's leaves).
    pub dx: Option<BufferId>,
    /// Gradient of the head's share, one chain over active tokens ascending; `dw` is overwritten.
    pub dw: Option<BufferId>,
    /// The share.
    pub shard: VocabShard,
    /// Rows of logits that exist at once.
    pub chunk: usize,
}
