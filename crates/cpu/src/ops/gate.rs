//! Gated activation.

use arena::Frame;
use program::ops::{Activation, Gate, GateBackward};

use super::lanes::{Elementwise, for_elements, load, negate, store};
use super::{source, target};
use crate::context::{Context, Shared};
use crate::simd::{Vector, exp};

/// `1 / (1 + exp(-x))`, the canon's `sigmoid`.
#[inline(always)]
unsafe fn sigmoid<V: Vector>(x: V) -> V {
    // SAFETY: as the caller's.
    unsafe {
        let one = V::splat(1.0);
        one.div(one.add(exp(negate(x))))
    }
}

#[derive(Clone, Copy)]
struct Silu {
    gate: Shared<f32>,
    up: Shared<f32>,
    out: Shared<f32>,
}

impl Elementwise for Silu {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let (g, up) = (load::<V>(self.gate, at, n), load(self.up, at, n));
            store(g.mul(sigmoid(g)).mul(up), self.out, at, n);
        }
    }
}

/// `σ = 1/(1 + exp(−g))`, `a = g·σ`, `out = a·up`.
pub(crate) fn gate(context: &Context, op: &Gate, frame: &Frame<'_>) {
    let (out, len) = target(frame, op.out);
    let (gate, up) = (source(frame, op.gate, len), source(frame, op.up, len));
    match op.activation {
        // SAFETY: the three have `len` elements.
        Activation::Silu => unsafe { for_elements(context, len, Silu { gate, up, out }) },
    }
}

#[derive(Clone, Copy)]
struct SiluBackward {
    gate: Shared<f32>,
    up: Shared<f32>,
    dout: Shared<f32>,
    dgate: Shared<f32>,
    dup: Shared<f32>,
}

impl Elementwise for SiluBackward {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word. Everything is read before anything is written.
        unsafe {
            let (g, up) = (load::<V>(self.gate, at, n), load::<V>(self.up, at, n));
            let dout = load::<V>(self.dout, at, n);
            let (one, sigma) = (V::splat(1.0), sigmoid(g));
            let slope = sigma.mul(g.fma(one.sub(sigma), one));
            store(dout.mul(up).mul(slope), self.dgate, at, n);
            store(dout.mul(g.mul(sigma)), self.dup, at, n);
        }
    }
}

/// `dup = dout·a`, `dgate = (dout·up)·(σ·fma(g, 1−σ, 1))`.
pub(crate) fn gate_backward(context: &Context, op: &GateBackward, frame: &Frame<'_>) {
    let (dgate, len) = target(frame, op.dgate);
    let kernel = SiluBackward {
        gate: source(frame, op.gate, len),
        up: source(frame, op.up, len),
        dout: source(frame, op.dout, len),
        dgate,
        dup: source(frame, op.dup, len),
    };
    match op.activation {
        // SAFETY: the five have `len` elements.
        Activation::Silu => unsafe { for_elements(context, len, kernel) },
    }
}
