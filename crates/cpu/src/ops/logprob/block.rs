//! One pass over the logits of a few rows while they lie in the second-level cache.

use std::ops::Range;

use program::ops::VocabShard;

use super::{gradient, tiles};
use crate::context::{Context, Shared};
use crate::ops::lanes::{Units, for_units, shifted};
use crate::simd::{LANES, Vector, ln};

/// Bytes of logits of a block, to lie in a second-level cache.
const BLOCK_BYTES: usize = 1 << 20;

/// The active rows of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Row of the micro-batch of each row of logits.
    pub(super) index: &'a [u32],
    /// Targets of the micro-batch.
    pub(super) targets: &'a [u32],
}

/// What is made of a row of logits. Arrays have a place for every row of the
/// micro-batch.
#[derive(Clone, Copy)]
pub(super) enum Outcome<'a> {
    /// `lse = max + ln Σexp`, `logp = logit[target] − lse`; with `coef`, the logits
    /// become their gradient.
    LogProbs { logp: Shared<f32>, lse: Option<Shared<f32>>, coef: Option<&'a [f32]> },
    /// `[max, Σexp, logit[target]]`, the logit −∞ where the share lacks the target.
    Stats { stats: Shared<f32> },
    /// The logits become their gradient.
    Gradient { lse: &'a [f32], coef: &'a [f32] },
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
                Outcome::LogProbs { logp, lse: kept, coef } => {
                    let (max, sum) = self.log_sum_exp::<V>(logits, rows.len());
                    let lse = max.add(ln(sum)).to_array();
                    for (r, t) in self.micro_batch(&rows) {
                        let target = self.target(t);
                        logp.get().add(t).write(self.logit(row(r), target) - lse[r]);
                        if let Some(kept) = kept {
                            kept.get().add(t).write(lse[r]);
                        }
                        if let Some(coef) = coef {
                            gradient::row::<V>(row(r), words, share, target, lse[r], coef[t]);
                        }
                    }
                }
                Outcome::Stats { stats } => {
                    let (max, sum) = self.log_sum_exp::<V>(logits, rows.len());
                    let (max, sum) = (max.to_array(), sum.to_array());
                    for (r, t) in self.micro_batch(&rows) {
                        let logit = self.logit(row(r), self.target(t));
                        stats.get().add(3 * t).cast::<[f32; 3]>().write([max[r], sum[r], logit]);
                    }
                }
                Outcome::Gradient { lse, coef } => {
                    for (r, t) in self.micro_batch(&rows) {
                        let target = self.target(t);
                        gradient::row::<V>(row(r), words, share, target, lse[t], coef[t]);
                    }
                }
            }
        }
    }

    /// `(max, Σexp)` of a block's rows. A function, not a closure: only what is inlined
    /// is compiled for the instruction set.
    #[inline(always)]
    unsafe fn log_sum_exp<V: Vector>(&self, logits: Shared<f32>, rows: usize) -> (V, V) {
        // SAFETY: as the caller's.
        unsafe { tiles::combine_rows::<V>(logits, self.shard.rows, rows, &self.shard.leaves) }
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
