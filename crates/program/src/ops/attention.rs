//! Causal attention with grouped heads, over keys in flight or a cache.

use crate::buffer::BufferId;

/// Keys of a page of the cache: the canon's key block, so that a page is read as one block.
pub const PAGE: usize = 64;

/// Where keys and values are.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    /// In consecutive rows: a segment's key j is row `first + j`, where `first` is the segment table's last column.
    Rows,
    /// In pages of a cache: a segment's key j is row `table[first + j / PAGE] · PAGE + j mod PAGE`.
    Paged {
        /// Block table U32 `[blocks, 1]`: the pages of each sequence in order, one sequence after the other.
        table: BufferId,
    },
}

/// `out = softmax(q·kᵀ·scale)·v` for each query row over the keys of its own sequence up to its position.
///
/// Order: keys in blocks of 64 counted from the sequence's position 0, blocks in spans of 1024; online soft-max inside
/// a span, spans merged in ascending order; see the executor's attention kernel for the rule in full. A row's result
/// does not depend on the other rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Queries `[tokens, heads · head_dim]`.
    pub q: BufferId,
    /// Keys `[key rows, kv_heads · head_dim]`.
    pub k: BufferId,
    /// Values, shape of `k`.
    pub v: BufferId,
    /// Output, shape of `q`.
    pub out: BufferId,
    /// log Σexp of each row and head `[tokens, heads]`; kept for the backward pass.
    pub lse: Option<BufferId>,
    /// Segment table U32 `[segments, 4]`: first query row, rows, position of the first row, and where the sequence's
    /// keys begin: the row of position 0, or the block table's entry of the first page. Its live rows are the live
    /// segments.
    pub segments: BufferId,
    /// Query heads of this rank.
    pub heads: usize,
    /// Key/value heads of this rank.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Multiplier of the scores.
    pub scale: f32,
    /// Only the last `window` keys are visible.
    pub window: Option<usize>,
    /// Where keys and values are.
    pub keys: Keys,
}

/// Gradients of attention from `dout`: `dq` of this rank's queries, `dk` and `dv` of this rank's keys.
///
/// `δ_i = Σ_d dout·out` (16 lanes, mid-split fold); `p = exp(s − lse)`; `ds = p·(dout·v − δ)·scale`. `dq` is one chain
/// over keys ascending; `dk`, `dv` one chain over the group's query heads ascending, then queries ascending.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionBackward {
    /// Queries of every token, `[all tokens, heads · head_dim]`.
    pub q: BufferId,
    /// Keys of every token.
    pub k: BufferId,
    /// Values of every token.
    pub v: BufferId,
    /// Forward output of every token.
    pub out: BufferId,
    /// log Σexp of every token.
    pub lse: BufferId,
    /// Gradient of the output, every token.
    pub dout: BufferId,
    /// Gradient of the queries of this rank `[tokens, …]`.
    pub dq: BufferId,
    /// Gradient of the keys of this rank.
    pub dk: BufferId,
    /// Gradient of the values of this rank.
    pub dv: BufferId,
    /// Segment table over all tokens.
    pub segments: BufferId,
    /// Query heads of this rank.
    pub heads: usize,
    /// Key/value heads of this rank.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Multiplier of the scores.
    pub scale: f32,
    /// Only the last `window` keys are visible.
    pub window: Option<usize>,
    /// Global token row of this rank's first row; it owns `dq`, `dk`, `dv` of its rows (context parallel).
    pub first_row: usize,
}
