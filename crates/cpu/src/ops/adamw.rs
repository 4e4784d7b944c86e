//! The optimizer.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use arena::Frame;
use canon::exact::SumOfSquares;
use program::ops::{AdamW, SumSquares, exact_sum_to_u32};
use program::{BufferId, DType};

use super::lanes::{Elementwise, for_elements, load, store};
use super::{source, target};
use crate::context::{Context, Shared};
use crate::simd::Vector;

/// The parameter's elements.
#[derive(Clone, Copy)]
enum Param {
    F32(Shared<f32>),
    Bf16(Shared<u16>),
}

#[derive(Clone, Copy)]
struct Update {
    param: Param,
    grad: Shared<f32>,
    m: Shared<f32>,
    v: Shared<f32>,
    lr: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    /// `lr·weight_decay` of a decayed parameter.
    decay: Option<f32>,
    bias1: f32,
    bias2: f32,
    grad_scale: f32,
}

impl Elementwise for Update {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let g = load::<V>(self.grad, at, n).mul(V::splat(self.grad_scale));
            let fresh = V::splat(1.0 - self.beta1).mul(g);
            let m = V::splat(self.beta1).fma(load(self.m, at, n), fresh);
            let fresh = V::splat(1.0 - self.beta2).mul(g.mul(g));
            let v = V::splat(self.beta2).fma(load(self.v, at, n), fresh);
            let mut p: V = match self.param {
                Param::F32(p) => load(p, at, n),
                Param::Bf16(p) => V::load_bf16_first(p.get().add(at), n),
            };
            if let Some(decay) = self.decay {
                p = p.sub(V::splat(decay).mul(p));
            }
            let step = V::splat(self.lr).mul(m.div(V::splat(self.bias1)));
            let root = v.div(V::splat(self.bias2)).sqrt().add(V::splat(self.eps));
            p = p.sub(step.div(root));
            match self.param {
                Param::F32(to) => store(p, to, at, n),
                Param::Bf16(to) => p.store_bf16_first(to.get().add(at), n),
            }
            store(m, self.m, at, n);
            store(v, self.v, at, n);
        }
    }
}

/// One update of a parameter; see [`AdamW`] for the order.
pub(crate) fn adamw(context: &Context, op: &AdamW, frame: &Frame<'_>) {
    // SAFETY: the scalars are not written by the operation.
    let hyper = unsafe { frame.f32(op.hyper) };
    let &[lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale] = hyper else {
        panic!("the optimizer's scalars are a row of 8, not of {}", hyper.len())
    };
    let (m, len) = target(frame, op.m);
    let param = match frame.buffer(op.param).dtype {
        DType::Bf16 => {
            // SAFETY: the slice ends here; the kernel alone uses the address.
            let param = unsafe { frame.bf16_mut(op.param) };
            Param::Bf16(Shared(param[op.slice.clone()].as_mut_ptr().cast()))
        }
        _ => Param::F32(part(frame, op.param, &op.slice)),
    };
    assert_eq!(len, op.slice.len(), "moments cover what is updated");
    let kernel = Update {
        param,
        grad: part(frame, op.grad, &op.slice),
        m,
        v: source(frame, op.v, len),
        lr,
        beta1,
        beta2,
        eps,
        decay: op.decay.then_some(lr * weight_decay),
        bias1,
        bias2,
        grad_scale,
    };
    // SAFETY: the four have `len` elements.
    unsafe { for_elements(context, len, kernel) };
}

/// Address of a range of an f32 buffer's elements.
fn part(frame: &Frame<'_>, id: BufferId, range: &Range<usize>) -> Shared<f32> {
    // SAFETY: the slice ends here; kernels use the address, under the module's rule.
    let elements = unsafe { frame.f32_mut(id) };
    Shared(elements[range.clone()].as_mut_ptr())
}

/// Elements of a task of the exact sum.
const SUM_TASK: usize = 1 << 18;

/// The exact sum of squares over every part of a gradient.
pub(crate) fn sum_squares(context: &Context, op: &SumSquares, frame: &Frame<'_>) {
    let total = Mutex::new(SumOfSquares::new());
    for (grad, range) in &op.parts {
        // SAFETY: gradients are not written by the operation.
        let grad = unsafe { &frame.f32(*grad)[range.clone()] };
        context.for_each(grad.len().div_ceil(SUM_TASK), |_, task| {
            let mut sum = SumOfSquares::new();
            let start = task * SUM_TASK;
            sum.add(&grad[start..grad.len().min(start + SUM_TASK)]);
            // A merge leaves the sum whole or panics before it starts.
            total.lock().unwrap_or_else(PoisonError::into_inner).merge(&sum);
        });
    }
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    frame.store_u32(op.out, &exact_sum_to_u32(&total));
}
