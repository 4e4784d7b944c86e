//! Gated activation.

use crate::buffer::BufferId;

/// The activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · 1/(1+e^{−x})`.
    Silu,
}

/// `out = act(gate) · up`, element-wise.
///
/// Order for SiLU: `σ = 1/(1 + exp(−g))`, `a = g·σ`, `out = a·up`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Gate `[rows, n]`.
    pub gate: BufferId,
    /// Up `[rows, n]`.
    pub up: BufferId,
    /// Output `[rows, n]`.
    pub out: BufferId,
    /// Which activation.
    pub activation: Activation,
}

/// Gradients of [`Gate`]: `dup = dout·a`, `dgate = (dout·up)·(σ·fma(g, 1−σ, 1))`.
#[derive(Clone, Debug, PartialEq)]
pub struct GateBackward {
    /// Forward gate.
    pub gate: BufferId,
    /// Forward up.
    pub up: BufferId,
    /// Gradient of the output.
    pub dout: BufferId,
    /// Gradient of the gate; may be the buffer `gate`.
    pub dgate: BufferId,
    /// Gradient of up; may be the buffer `up`.
    pub dup: BufferId,
    /// Which activation.
    pub activation: Activation,
}
