//! Gated activation.

use arena::Frame;
use program::ops::{Activation, Gate, GateBackward};

/// `σ = 1/(1 + exp(−g))`, `a = g·σ`, `out = a·up`.
pub(crate) fn gate(op: &Gate, frame: &Frame<'_>) {
    let (gate, up) = (frame.load_f32(op.gate), frame.load_f32(op.up));
    let out: Vec<f32> = gate
        .iter()
        .zip(&up)
        .map(|(&g, &u)| match op.activation {
            Activation::Silu => (g * canon::sigmoid(g)) * u,
        })
        .collect();
    frame.store_f32(op.out, &out);
}

/// `dup = dout·a`, `dgate = (dout·up)·(σ·fma(g, 1−σ, 1))`.
pub(crate) fn gate_backward(op: &GateBackward, frame: &Frame<'_>) {
    let (mut gate, mut up) = (frame.load_f32(op.gate), frame.load_f32(op.up));
    let dout = frame.load_f32(op.dout);
    for (i, &dout) in dout.iter().enumerate() {
        let (g, u) = (gate[i], up[i]);
        match op.activation {
            Activation::Silu => {
                let sigma = canon::sigmoid(g);
                gate[i] = (dout * u) * (sigma * g.mul_add(1.0 - sigma, 1.0));
                up[i] = dout * (g * sigma);
            }
        }
    }
    frame.store_f32(op.dgate, &gate);
    frame.store_f32(op.dup, &up);
}
