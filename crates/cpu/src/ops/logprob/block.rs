//! One pass over the logits of a few rows while they lie in the second-level cache.

use std::ops::Range;

use canon::policy::Kept;
use program::ops::{Measures, Policy, VocabShard};

use super::gradient::{self, Terms};
use super::{read, tiles, truncate};
use crate::context::{Context, Shared};
use crate::ops::lanes::{Units, for_units, shifted};
use crate::simd::{LANES, Vector, ln};
use arena::Frame;

/// Bytes of logits of a block, to lie in a second-level cache.
const BLOCK_BYTES: usize = 1 << 20;

/// The active rows of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Row of the micro-batch of each row of logits.
    pub(super) index: &'a [u32],
    /// Targets of the micro-batch.
    pub(super) targets: &'a [u32],
    /// What tokens are chosen from.
    pub(super) chosen: Chosen<'a>,
}

/// A policy with the last kept candidates of the micro-batch.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub(super) scale: f32,
    kept: Option<(&'a [f32], &'a [u32])>,
}

impl<'a> Chosen<'a> {
    pub(super) fn new(frame: &Frame<'a>, policy: &Policy) -> Self {
        // SAFETY: the operation reads both and writes neither.
        let kept =
            policy.kept.map(|(logits, ids)| (read(frame, logits), unsafe { frame.u32(ids) }));
        Chosen { scale: policy.scale, kept }
    }

    pub(super) fn truncated(&self) -> bool {
        self.kept.is_some()
    }

    #[inline(always)]
    fn kept(&self, row: usize) -> Kept {
        self.kept.map_or(Kept::ALL, |(logits, ids)| Kept { logit: logits[row], id: ids[row] })
    }
}

/// What is made of a row of logits. Arrays have a place for every row of the
/// micro-batch.
#[derive(Clone, Copy)]
pub(super) enum Outcome<'a> {
    /// `lse = max + ln Σexp`, `logp = logit[target] − lse`; with `coef`, the logits
    /// become their gradient.
    LogProbs {
        logp: Shared<f32>,
        lse: Option<Shared<f32>>,
        entropy: Option<Shared<f32>>,
        /// Log-probs and log Σexp over the whole vocabulary.
        full: Option<(Shared<f32>, Shared<f32>)>,
        coef: Option<&'a [f32]>,
    },
    /// The columns of [`Measures`]; logits are −∞ where the share lacks the target.
    Stats { stats: Shared<f32>, measures: Measures },
    /// The logits become their gradient.
    Gradient {
        lse: &'a [f32],
        coef: &'a [f32],
        /// Entropies and their coefficients.
        entropy: Option<(&'a [f32], &'a [f32])>,
        /// Log Σexp over the whole vocabulary and coefficients.
        full: Option<(&'a [f32], &'a [f32])>,
    },
}

/// Where log Σexp of a row is.
#[derive(Clone, Copy)]
enum Lse<'a> {
    /// By row of the block.
    Block(&'a [f32; LANES]),
    /// By row of the micro-batch.
    Batch(&'a [f32]),
}

/// A unit is a block of rows.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    logits: Shared<f32>,
    shard: &'a VocabShard,
    rows: Rows<'a>,
    outcome: Outcome<'a>,
    block: usize,
}

/// Runs over the logits `[rows, share]`, every row on its own.
pub(super) fn for_blocks(
    context: &Context,
    logits: Shared<f32>,
    shard: &VocabShard,
    rows: Rows<'_>,
    outcome: Outcome<'_>,
) {
    let share_bytes = shard.rows * size_of::<f32>();
    let even = rows.index.len().div_ceil(context.threads());
    let block = (BLOCK_BYTES / share_bytes).clamp(1, LANES).min(even.max(1));
    let kernel = Blocks { logits, shard, rows, outcome, block };
    // SAFETY: the chunk holds a row of logits for every index, and the outcome's
    // arrays a place for every row of the micro-batch; rows are disjoint.
    unsafe { for_units(context, rows.index.len().div_ceil(block), block * shard.rows, kernel) };
}

impl Units for Blocks<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, blocks: Range<usize>) {
        for block in blocks {
            let from = block * self.block;
            let to = self.rows.index.len().min(from + self.block);
            // SAFETY: the caller's word.
            unsafe { self.rows::<V>(from..to) };
        }
    }
}

impl Blocks<'_> {
    /// Columns of the share that are words.
    fn words(&self) -> usize {
        self.shard.vocab.saturating_sub(self.shard.first).min(self.shard.rows)
    }

    #[inline(always)]
    unsafe fn rows<V: Vector>(&self, rows: Range<usize>) {
        let (words, share) = (self.words(), self.shard.rows);
        let logits = shifted(self.logits, rows.start * share);
        let row = |r: usize| shifted(logits, r * share);
        // SAFETY: the caller's word.
        unsafe {
            for r in 0..rows.len() {
                std::slice::from_raw_parts_mut(row(r).get(), share)[words..]
                    .fill(f32::NEG_INFINITY);
            }
            match self.outcome {
                Outcome::LogProbs { logp, lse, entropy, full, coef } => {
                    if let Some(full) = full {
                        self.log_probs::<V, false>(logits, &rows, full.0, Some(full.1), None);
                    }
                    self.truncate::<V>(logits, &rows);
                    let found = match entropy {
                        None => self.log_probs::<V, false>(logits, &rows, logp, lse, None),
                        Some(_) => self.log_probs::<V, true>(logits, &rows, logp, lse, entropy),
                    };
                    if let Some(coef) = coef {
                        self.gradients::<V>(logits, &rows, Lse::Block(&found), coef, None, None);
                    }
                }
                Outcome::Stats { stats, measures } => {
                    self.stats::<V>(logits, &rows, stats, measures);
                }
                Outcome::Gradient { lse, coef, entropy, full } => {
                    self.gradients::<V>(logits, &rows, Lse::Batch(lse), coef, entropy, full);
                }
            }
        }
    }

    /// −∞ in place of what the policy drops.
    #[inline(always)]
    unsafe fn truncate<V: Vector>(&self, logits: Shared<f32>, rows: &Range<usize>) {
        if !self.rows.chosen.truncated() {
            return;
        }
        for (r, t) in self.micro_batch(rows) {
            let (row, first) = (shifted(logits, r * self.shard.rows), self.shard.first);
            // SAFETY: the caller's word.
            unsafe { truncate::row::<V>(row, first, self.words(), self.rows.chosen.kept(t)) };
        }
    }

    /// Log-probs, log Σexp and entropies of a block's rows; gives the second.
    #[inline(always)]
    unsafe fn log_probs<V: Vector, const DOTS: bool>(
        &self,
        logits: Shared<f32>,
        rows: &Range<usize>,
        logp: Shared<f32>,
        lse: Option<Shared<f32>>,
        entropy: Option<Shared<f32>>,
    ) -> [f32; LANES] {
        // SAFETY: as the caller's.
        unsafe {
            let sums = self.sums::<V, DOTS>(logits, rows.len());
            let log = ln(sums.sum);
            let found = sums.max.add(log).to_array();
            let entropies = if DOTS { log.sub(sums.dot.div(sums.sum)) } else { V::zero() };
            let entropies = entropies.to_array();
            for (r, t) in self.micro_batch(rows) {
                let row = shifted(logits, r * self.shard.rows);
                logp.get().add(t).write(self.logit(row, self.target(t)) - found[r]);
                if let Some(lse) = lse {
                    lse.get().add(t).write(found[r]);
                }
                if let Some(entropy) = entropy {
                    entropy.get().add(t).write(entropies[r]);
                }
            }
            found
        }
    }

    /// A share's statistics.
    #[inline(always)]
    unsafe fn stats<V: Vector>(
        &self,
        logits: Shared<f32>,
        rows: &Range<usize>,
        stats: Shared<f32>,
        measures: Measures,
    ) {
        let columns = measures.columns();
        // SAFETY: as the caller's; a row of statistics has so many columns.
        unsafe {
            if measures.full {
                let at = shifted(stats, measures.full_column());
                self.sums_and_logits::<V, false>(logits, rows, at, columns);
            }
            self.truncate::<V>(logits, rows);
            if measures.entropy {
                self.sums_and_logits::<V, true>(logits, rows, stats, columns);
            } else {
                self.sums_and_logits::<V, false>(logits, rows, stats, columns);
            }
        }
    }

    /// `[max, Σexp, logit]`, then `Σ exp·(logit − max)` with `DOTS`, of a block's rows.
    #[inline(always)]
    unsafe fn sums_and_logits<V: Vector, const DOTS: bool>(
        &self,
        logits: Shared<f32>,
        rows: &Range<usize>,
        to: Shared<f32>,
        columns: usize,
    ) {
        // SAFETY: as the caller's.
        unsafe {
            let sums = self.sums::<V, DOTS>(logits, rows.len());
            let (max, sum) = (sums.max.to_array(), sums.sum.to_array());
            let dot = sums.dot.to_array();
            for (r, t) in self.micro_batch(rows) {
                let logit = self.logit(shifted(logits, r * self.shard.rows), self.target(t));
                let to = to.get().add(columns * t);
                to.cast::<[f32; 3]>().write([max[r], sum[r], logit]);
                if DOTS {
                    to.add(3).write(dot[r]);
                }
            }
        }
    }

    /// Rows of logits turned into their gradients.
    #[inline(always)]
    unsafe fn gradients<V: Vector>(
        &self,
        logits: Shared<f32>,
        rows: &Range<usize>,
        lse: Lse<'_>,
        coef: &[f32],
        entropy: Option<(&[f32], &[f32])>,
        full: Option<(&[f32], &[f32])>,
    ) {
        let scale = self.rows.chosen.scale;
        let share = self.shard.rows;
        for (r, t) in self.micro_batch(rows) {
            let term = |pair: Option<(&[f32], &[f32])>| {
                pair.map(|(value, coef)| (coef[t] * scale, value[t]))
            };
            let row = gradient::Row {
                logits: shifted(logits, r * share),
                first: self.shard.first,
                words: self.words(),
                share,
                target: self.target(t),
            };
            let terms = Terms {
                coef: coef[t] * scale,
                lse: match lse {
                    Lse::Block(of_row) => of_row[r],
                    Lse::Batch(of_row) => of_row[t],
                },
                kept: self.rows.chosen.kept(t),
                entropy: term(entropy),
                full: term(full),
            };
            // SAFETY: as the caller's.
            unsafe { gradient::row::<V>(row, &terms) };
        }
    }

    /// The sums of a block's rows. A function, not a closure: only what is inlined
    /// is compiled for the instruction set.
    #[inline(always)]
    unsafe fn sums<V: Vector, const DOTS: bool>(
        &self,
        logits: Shared<f32>,
        rows: usize,
    ) -> tiles::Sums<V> {
        // SAFETY: as the caller's.
        unsafe { tiles::combine_rows::<V, DOTS>(logits, self.shard.rows, rows, &self.shard.leaves) }
    }

    /// Each row of the block with its row in the micro-batch.
    #[inline(always)]
    fn micro_batch(&self, rows: &Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        self.rows.index[rows.clone()].iter().map(|&t| t as usize).enumerate()
    }

    /// The share's column of a row's target, if the share has it.
    #[inline(always)]
    fn target(&self, t: usize) -> Option<usize> {
        let target = self.rows.targets[t] as usize;
        target.checked_sub(self.shard.first).filter(|&column| column < self.shard.rows)
    }

    #[inline(always)]
    unsafe fn logit(&self, row: Shared<f32>, target: Option<usize>) -> f32 {
        // SAFETY: the column is one of the row.
        target.map_or(f32::NEG_INFINITY, |column| unsafe { *row.get().add(column) })
    }
}
