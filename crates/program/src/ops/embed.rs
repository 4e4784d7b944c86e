//! Token embedding.

use crate::buffer::BufferId;

/// `out[t] = table[ids[t] − first]` for the ids of this rank's share of the vocabulary; other rows are set to +0 and
/// filled by the owner-rows collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// Token ids, U32 `[tokens, 1]`.
    pub ids: BufferId,
    /// Embedding rows `[share, hidden]`.
    pub table: BufferId,
    /// First token id of the share.
    pub first: usize,
    /// Ids in the share that are words (padding rows excluded).
    pub words: usize,
    /// Output `[tokens, hidden]`, f32.
    pub out: BufferId,
    /// Multiplier of the rows (Gemma scales by √hidden); 1 for none.
    pub scale: f32,
}

/// Adds the gradient of embedding rows: `dtable[ids[t] − first] += dout[t]·scale`, tokens ascending, one add each.
///
/// The table's gradient must hold its starting value (zero, or the head's gradient when tied).
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedBackward {
    /// Token ids of all tokens of the logical micro-batch, U32 `[all tokens, 1]`.
    pub ids: BufferId,
    /// Gradient of the output, `[all tokens, hidden]`.
    pub dout: BufferId,
    /// Gradient of the table's share, `[share, hidden]`.
    pub dtable: BufferId,
    /// First token id of the share.
    pub first: usize,
    /// Ids in the share that are words.
    pub words: usize,
    /// Multiplier, as forward.
    pub scale: f32,
    /// Whether the gradient is zeroed first (untied) or already holds the head's part.
    pub zero: bool,
}
