//! Writing keys and values to a cache.

use crate::buffer::BufferId;

/// `cache[slots[t]] = x[t]` for live rows.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheWrite {
    /// Rows to store `[tokens, n]`.
    pub x: BufferId,
    /// Cache row of each token, U32 `[tokens, 1]`.
    pub slots: BufferId,
    /// The cache `[slots, n]`.
    pub cache: BufferId,
}
