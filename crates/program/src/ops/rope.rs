//! Rotary position embedding.

use crate::buffer::BufferId;

/// Cosines and sines of every token's position: `out[t] = [cos(a_0 … a_{h−1}), sin(a_0 … a_{h−1})] · scale`,
/// `a_i = f32(position[t]) · inv_freq[i]` (one f32 product), by the canon's own sine and cosine.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Positions, U32 `[tokens, 1]`.
    pub positions: BufferId,
    /// Output `[tokens, 2·half]`.
    pub out: BufferId,
    /// Inverse frequencies, `half` of them.
    pub inv_freq: Vec<f32>,
    /// Multiplier of cosines and sines (YaRN's attention factor).
    pub scale: f32,
}

/// Rotates each head in place: `(a, b) → (a·c − b·s, b·c + a·s)` with `a = x[i]`, `b = x[i + half]`.
///
/// Order: `a' = fma(a, c, −(b·s))`, `b' = fma(b, c, a·s)`; the inverse takes `−s`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Rotated in place, `[tokens, heads · head_dim]`.
    pub x: BufferId,
    /// Table of [`RopeTable`].
    pub table: BufferId,
    /// Size of a head.
    pub head_dim: usize,
    /// Rotates back (the backward rule).
    pub inverse: bool,
}
