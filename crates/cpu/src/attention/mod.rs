//! Causal attention with grouped heads, forward and backward, tile by tile.
//!
//! # Forward
//! For each query row and head, with the keys of its own sequence in blocks of
//! [`BLOCK`] counted from key 0 and spans of [`SPAN`] blocks, blocks with no visible
//! key left out:
//! ```text
//! s_j = scale * chain            chain: acc = fma(q_d, k_jd, acc), d ascending, from +0
//! per span: m = -inf, l[16] = +0, acc[D] = +0, then for each block, ascending:
//!   m'     = max(m, max of the visible s_j)        (max: a > b ? a : b; its sign of zero is never seen)
//!   alpha  = exp(m - m'),  p_j = exp(s_j - m') of a visible key, +0 of another
//!   l[i]   = l[i] * alpha, then l[i] = l[i] + p_j for j mod 16 = i, j ascending in the block
//!   acc_d  = acc_d * alpha, then acc_d = fma(p_j, v_jd, acc_d), j ascending
//!   m      = m'
//! l = mid-split tree over l[0..16]
//! first span: (M, L, A) = (m, l, acc);  each later span:
//!   M' = max(M, m), a = exp(M - M'), b = exp(m - M')
//!   L = fma(L, a, l * b),  A_d = fma(A_d, a, acc_d * b),  M = M'
//! inv = 1 / L,  out_d = (A_d * inv) + 0,  lse = M + ln(L)
//! ```
//! A key that is not visible changes no value but the sign of a zero, which the last
//! `+ 0` removes; so masked keys (prefill) and absent keys (decode) give the same
//! bits as long as keys and values are finite.
//!
//! # Backward
//! ```text
//! delta = sum of dout_d * out_d      16 lanes: d to lane d mod 16, l = fma(dout_d, out_d, l), mid-split fold
//! s as forward, p = exp(s - lse) of a visible key, +0 of another
//! dp = chain of fma(dout_d, v_jd)    d ascending, from +0
//! ds = (p * (dp - delta)) * scale
//! dq_id = fma(ds_ij, k_jd, ·)        one chain, keys j ascending, from +0
//! dk_jd = fma(ds_ij, q_id, ·)        one chain, the group's query heads ascending, in each queries i ascending
//! dv_jd = fma(p_ij, dout_id, ·)      likewise
//! ```
//! and `+ 0` at the end of each. Queries and keys may be ranges, so that two calls
//! (a rank's queries against all keys, all queries against a rank's keys) give the
//! bits of one.
//!
//! Both arithmetic profiles use these rules: `cpu-bf16` rounds nothing here.

mod backward;
mod block;
mod delta;
mod error;
mod forward;
mod gemm;
pub mod reference;
mod view;

pub use backward::{Backward, Gradients, backward, backward_workspace_bytes};
pub use delta::delta;
pub use error::AttentionError;
pub use forward::{Forward, forward, forward_workspace_bytes};
pub use view::{Contiguous, Heads, KeyBlocks, Paged, Rows, RowsMut, Segment};

/// Keys of a block.
pub const BLOCK: usize = program::ops::PAGE;

/// Blocks of a span (1,024 keys).
pub const SPAN: usize = 16;

/// Queries of a tile. Not part of the arithmetic.
const TILE: usize = 64;
