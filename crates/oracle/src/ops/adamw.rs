//! The optimizer.

use arena::Frame;
use canon::exact::SumOfSquares;
use program::ops::{AdamW, SumSquares, exact_sum_to_u32};

/// See [`AdamW`] for the order; a stated product of three factors is taken from the left.
pub(crate) fn adamw(op: &AdamW, frame: &Frame<'_>) {
    let hyper = frame.load_f32(op.hyper);
    let [lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale] = hyper[..] else {
        unreachable!("the optimizer's scalars are a row of 8")
    };
    let grad = frame.load_f32(op.grad);
    let grad = &grad[op.slice.clone()];
    let (mut param, mut m, mut v) =
        (frame.load_f32(op.param), frame.load_f32(op.m), frame.load_f32(op.v));
    for (i, &grad) in grad.iter().enumerate() {
        let g = grad * grad_scale;
        m[i] = beta1.mul_add(m[i], (1.0 - beta1) * g);
        v[i] = beta2.mul_add(v[i], (1.0 - beta2) * (g * g));
        let at = op.slice.start + i;
        let mut p = param[at];
        if op.decay {
            p -= (lr * weight_decay) * p;
        }
        let step = lr * (m[i] / bias1);
        param[at] = p - step / ((v[i] / bias2).sqrt() + eps);
    }
    frame.store_f32(op.param, &param);
    frame.store_f32(op.m, &m);
    frame.store_f32(op.v, &v);
}

/// The exact sum of squares over every part of a gradient.
pub(crate) fn sum_squares(op: &SumSquares, frame: &Frame<'_>) {
    let mut sum = SumOfSquares::new();
    for (grad, range) in &op.parts {
        sum.add(&frame.load_f32(*grad)[range.clone()]);
    }
    frame.store_u32(op.out, &exact_sum_to_u32(&sum));
}
