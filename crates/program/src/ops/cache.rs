//! Writing keys and values to a cache.

use crate::buffer::BufferId;

/// Index of a row that another rank holds: nothing is written for it.
pub const ELSEWHERE: u32 = u32::MAX;

/// `cache[slots[t]] = x[t]` for live rows whose slot is not [`ELSEWHERE`].
#[derive(Clone, Debug, PartialEq)]
pub struct CacheWrite {
    /// Rows to store `[tokens, n]`.
    pub x: BufferId,
    /// Cache row of each token, U32 `[tokens, 1]`.
    pub slots: BufferId,
    /// The cache `[slots, n]`.
    pub cache: BufferId,
}
