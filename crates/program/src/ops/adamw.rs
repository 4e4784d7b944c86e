//! The optimizer.

use crate::buffer::BufferId;

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
}

/// Exact sum of squares of gradients, order-free; the result is read by the host through the executor.
#[derive(Clone, Debug, PartialEq)]
pub struct SumSquares {
    /// Gradients, f32.
    pub grads: Vec<BufferId>,
    /// Output `[1, 1]`: the square root of the sum, rounded once.
    pub out: BufferId,
}
