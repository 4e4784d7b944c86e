//! Candidates that a policy drops: the canon's `Kept` over a row of logits.
//!
//! A candidate is kept when its logit is above the last one's, or equal to it with an id
//! no higher. So up to the last one's column the least kept logit is the last one's, and
//! past it the next number above: two runs of columns, each with one bound.

use std::ops::Range;

use canon::policy::Kept;

use crate::context::Shared;
use crate::ops::lanes::{Elementwise, load, store, sweep};
use crate::simd::Vector;

/// The two runs of the words of a share that begins at word `first`, each with the least
/// logit that is kept in it.
#[inline(always)]
pub(super) fn runs(kept: Kept, first: usize, words: usize) -> [(Range<usize>, f32); 2] {
    let past_last = (kept.id as usize + 1).saturating_sub(first).min(words);
    [(0..past_last, kept.logit), (past_last..words, kept.logit.next_up())]
}

/// `logit < least ? −∞ : logit`; a NaN stays, so that it is found.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
pub(super) unsafe fn drop_below<V: Vector>(logit: V, least: V) -> V {
    // SAFETY: the caller's word.
    unsafe { logit.select_less(least, V::splat(f32::NEG_INFINITY), logit) }
}

#[derive(Clone, Copy)]
struct Drop {
    row: Shared<f32>,
    least: f32,
}

impl Elementwise for Drop {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let kept = drop_below(load::<V>(self.row, at, n), V::splat(self.least));
            store(kept, self.row, at, n);
        }
    }
}

/// −∞ in place of every dropped candidate of a row.
///
/// # Safety
/// The instruction set of `V` is enabled; the row has `words` columns.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(row: Shared<f32>, first: usize, words: usize, kept: Kept) {
    for (columns, least) in runs(kept, first, words) {
        // SAFETY: the caller's word.
        unsafe { sweep::<V>(columns.start, columns.end, Drop { row, least }) };
    }
}
