//! A row of logits turned into its gradient.

use std::ops::Range;

use canon::policy::Kept;

use super::truncate::{drop_below, runs};
use crate::context::Shared;
use crate::ops::lanes::{Elementwise, load, store, sweep};
use crate::simd::{Vector, exp};

/// Coefficients of a row, times the policy's scale, with what their terms read.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) coef: f32,
    pub(super) lse: f32,
    pub(super) kept: Kept,
    /// (coefficient, entropy)
    pub(super) entropy: Option<(f32, f32)>,
    /// (coefficient, log Σexp of the whole vocabulary)
    pub(super) full: Option<(f32, f32)>,
}

/// The row's place in the share.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) logits: Shared<f32>,
    /// The share's first word.
    pub(super) first: usize,
    /// Its words, and its columns with the padding.
    pub(super) words: usize,
    pub(super) share: usize,
    /// The target's column, if the share has it.
    pub(super) target: Option<usize>,
}

/// Columns that are not the target, of a policy that keeps all, with no other term.
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

/// The same with every term.
#[derive(Clone, Copy)]
struct Every<'a> {
    row: Shared<f32>,
    terms: &'a Terms,
    least: f32,
    /// 1 for the target's column.
    chosen: f32,
}

impl Elementwise for Every<'_> {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        let (terms, row) = (self.terms, self.row);
        // SAFETY: the caller's word.
        unsafe {
            let chosen = V::splat(self.chosen);
            let logit = load::<V>(row, at, n);
            let kept = drop_below(logit, V::splat(self.least));
            let lse = V::splat(terms.lse);
            let p = exp(kept.sub(lse));
            let mut gradient = V::splat(terms.coef).mul(chosen.sub(p));
            if let Some((coef, entropy)) = terms.entropy {
                let below = lse.sub(kept).sub(V::splat(entropy));
                let below = kept.select_equal(V::splat(f32::NEG_INFINITY), V::zero(), below);
                gradient = gradient.add(V::splat(coef).mul(p.mul(below)));
            }
            if let Some((coef, lse)) = terms.full {
                let p = exp(logit.sub(V::splat(lse)));
                gradient = gradient.add(V::splat(coef).mul(chosen.sub(p)));
            }
            store(gradient, row, at, n);
        }
    }
}

/// The gradient of the row's products over the words of the share, as
/// [`program::ops::LogProbBackward`] says; +0 in its padding.
///
/// # Safety
/// The instruction set of `V` is enabled; the row has `share` columns, the target is
/// one of its words.
#[inline(always)]
pub(super) unsafe fn row<V: Vector>(row: Row, terms: &Terms) {
    let Row { logits, words, share, target, .. } = row;
    // SAFETY: the caller's word.
    unsafe {
        if terms.kept == Kept::ALL && terms.entropy.is_none() && terms.full.is_none() {
            let chosen = target.map(|column| {
                let p = canon::exp(*logits.get().add(column) - terms.lse);
                (column, terms.coef * (1.0 - p))
            });
            sweep::<V>(0, words, Others { row: logits, lse: terms.lse, coef: terms.coef });
            if let Some((column, value)) = chosen {
                logits.get().add(column).write(value);
            }
        } else {
            for (columns, least) in runs(terms.kept, row.first, words) {
                every::<V>(logits, columns, target, terms, least);
            }
        }
        logits.get().add(words).write_bytes(0, share - words);
    }
}

/// A run of columns with every term, the target's apart.
#[inline(always)]
unsafe fn every<V: Vector>(
    row: Shared<f32>,
    columns: Range<usize>,
    target: Option<usize>,
    terms: &Terms,
    least: f32,
) {
    let others = Every { row, terms, least, chosen: 0.0 };
    let target = target.filter(|column| columns.contains(column));
    let at = target.unwrap_or(columns.end);
    // SAFETY: the caller's word.
    unsafe {
        sweep::<V>(columns.start, at, others);
        if at < columns.end {
            Every { chosen: 1.0, ..others }.at::<V>(at, 1);
            sweep::<V>(at + 1, columns.end, others);
        }
    }
}
