//! A row of logits turned into its gradient.

use crate::context::Shared;
use crate::ops::lanes::{Elementwise, load, store, sweep};
use crate::simd::{Vector, exp};

#[derive(Clone, Copy)]
struct Others {
    row: Shared<f32>,
    lse: f32,
    coef: f32,
}

impl Elementwise for Others {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let p = exp(load::<V>(self.row, at, n).sub(V::splat(self.lse)));
            store(V::splat(self.coef).mul(V::zero().sub(p)), self.row, at, n);
        }
    }
}

/// `coef·(1[target] − p)`, `p = exp(logit − lse)`, over the words of the share; +0 in
/// its padding.
///
/// # Safety
/// The instruction set of `V` is enabled; the row has `share` columns, the target is
/// one of its words.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(
    row: Shared<f32>,
    words: usize,
    share: usize,
    target: Option<usize>,
    lse: f32,
    coef: f32,
) {
    // SAFETY: the caller's word.
    unsafe {
        let chosen = target.map(|column| {
            let p = canon::exp(*row.get().add(column) - lse);
            (column, coef * (1.0 - p))
        });
        sweep::<V>(0, words, Others { row, lse, coef });
        row.get().add(words).write_bytes(0, share - words);
        if let Some((column, value)) = chosen {
            row.get().add(column).write(value);
        }
    }
}
