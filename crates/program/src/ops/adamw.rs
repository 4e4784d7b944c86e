//! The optimizer.

use crate::buffer::BufferId;
use canon::exact::{InvalidState, SumOfSquares};
use std::ops::Range;

/// Decoupled-weight-decay Adam, element-wise in f32.
///
/// Order, with scalars `[lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale]` from `hyper`:
/// `g = grad·grad_scale`; `m = fma(beta1, m, (1−beta1)·g)`; `v = fma(beta2, v, (1−beta2)·(g·g))`;
/// `p = p − (lr·weight_decay)·p` (if decayed); `p = p − lr · (m/bias1) / (√(v/bias2) + eps)`; one rounding to the
/// parameter's type.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Parameter, f32 or bf16.
    pub param: BufferId,
    /// Gradient, f32.
    pub grad: BufferId,
    /// First moment, f32.
    pub m: BufferId,
    /// Second moment, f32.
    pub v: BufferId,
    /// Scalars, f32 `[1, 8]`.
    pub hyper: BufferId,
    /// Whether weight decay applies to this parameter.
    pub decay: bool,
    /// Elements of the parameter and of the gradient that are updated: the moments hold these and no others.
    pub slice: Range<usize>,
}

/// Exact sum of squares of gradients, order-free: ranks' sums are added as integers, and the host takes one root.
#[derive(Clone, Debug, PartialEq)]
pub struct SumSquares {
    /// Gradients, f32, with the elements of each that count.
    pub parts: Vec<(BufferId, Range<usize>)>,
    /// Output U32 `[1, 22]`: the words of [`canon::exact::SumOfSquares::to_words`], low half first.
    pub out: BufferId,
}

/// U32 words of an exact sum.
pub const EXACT_SUM_WORDS: usize = 2 * canon::exact::WORDS;

/// An exact sum as the U32 words of a buffer.
pub fn exact_sum_to_u32(sum: &SumOfSquares) -> Vec<u32> {
    sum.to_words().into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
}

/// The exact sum of a buffer's words.
///
/// # Errors
/// Words that [`exact_sum_to_u32`] did not write.
pub fn exact_sum_from_u32(words: &[u32]) -> Result<SumOfSquares, InvalidState> {
    let mut wide = [0u64; canon::exact::WORDS];
    for (to, pair) in wide.iter_mut().zip(words.chunks_exact(2)) {
        *to = u64::from(pair[0]) | u64::from(pair[1]) << 32;
    }
    SumOfSquares::from_words(&wide)
}
