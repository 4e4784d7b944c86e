//! One row of logits as candidates: weights, the order, prefixes of it, log-probs.

use canon::log_sum_exp::LogSumExp;
use canon::policy::{Kept, order};
use canon::tree;
use program::topology::VOCAB_TILE;
use std::ops::Range;

/// Candidates sorted at first; each time more are needed, four times as many.
const SORTED_FIRST: usize = 64;

/// The candidates of one row, scaled once.
pub(crate) struct Candidates {
    /// Scaled logits by id.
    logits: Vec<f32>,
    /// (max, Σexp) of every tile of 128 words.
    tiles: Vec<LogSumExp>,
    /// The greatest logit.
    best: f32,
    /// Ids, of which the first `sorted` are the first in the order.
    ids: Vec<u32>,
    sorted: usize,
}

impl Candidates {
    /// Takes at least one logit, all finite.
    pub(crate) fn new(logits: Vec<f32>) -> Self {
        let tiles: Vec<LogSumExp> = canon::fused(&logits[..], tiles);
        let best = tiles.iter().map(|tile| tile.max).fold(f32::NEG_INFINITY, f32::max);
        let ids = (0..logits.len() as u32).collect();
        Candidates { logits, tiles, best, ids, sorted: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The sum of every candidate's weight: over tiles ascending, in f64.
    pub(crate) fn total(&self) -> f64 {
        let part =
            |tile: &LogSumExp| f64::from(tile.sum) * f64::from(canon::exp(tile.max - self.best));
        self.tiles.iter().map(part).sum()
    }

    /// The candidate at a place of the order, with its scaled logit.
    pub(crate) fn at(&mut self, place: usize) -> (f32, u32) {
        if place >= self.sorted {
            self.sort_to(place + 1);
        }
        let id = self.ids[place];
        (self.logits[id as usize], id)
    }

    /// The weight `e^(logit - best)` of the candidate at a place.
    pub(crate) fn weight(&mut self, place: usize) -> f64 {
        let (logit, _) = self.at(place);
        f64::from(canon::exp(logit - self.best))
    }

    fn sort_to(&mut self, least: usize) {
        let end = least.max(4 * self.sorted).max(SORTED_FIRST).min(self.ids.len());
        let logits = &self.logits;
        let by = |&a: &u32, &b: &u32| order((logits[a as usize], a), (logits[b as usize], b));
        let rest = &mut self.ids[self.sorted..];
        let wanted = end - self.sorted;
        if wanted < rest.len() {
            rest.select_nth_unstable_by(wanted, by);
        }
        rest[..wanted].sort_unstable_by(by);
        self.sorted = end;
    }

    /// The last of the first `count` candidates.
    pub(crate) fn kept(&mut self, count: usize) -> Kept {
        if count == self.len() {
            return Kept::ALL;
        }
        let (logit, id) = self.at(count - 1);
        Kept { logit, id }
    }

    /// The log-prob of a candidate among those that are kept: the bits of the head's operation over a vocabulary with
    /// these leaves.
    pub(crate) fn log_prob(&self, id: u32, kept: Kept, leaves: &[Range<usize>]) -> f32 {
        let tiles = self.kept_tiles(kept);
        let lse = canon::fused((&tiles[..], leaves), |(tiles, leaves)| lse(tiles, leaves));
        self.logits[id as usize] - lse
    }

    /// (max, Σexp) of every tile's kept candidates.
    fn kept_tiles(&self, kept: Kept) -> Vec<LogSumExp> {
        if kept == Kept::ALL {
            return self.tiles.clone();
        }
        let tile = |(number, logits): (usize, &[f32])| {
            let first = (number * VOCAB_TILE) as u32;
            let mut masked = [f32::NEG_INFINITY; VOCAB_TILE];
            for ((to, &logit), id) in masked.iter_mut().zip(logits).zip(first..) {
                if kept.keeps(logit, id) {
                    *to = logit;
                }
            }
            match masked.iter().all(|&logit| logit == f32::NEG_INFINITY) {
                true => LogSumExp::EMPTY,
                false => LogSumExp::of_tile(&masked),
            }
        };
        self.logits.chunks(VOCAB_TILE).enumerate().map(tile).collect()
    }
}

/// The log-prob of a token over the whole vocabulary, from logits as they are: the bits of the head's operation at
/// temperature 1 over a vocabulary with these leaves.
pub fn log_prob(logits: &[f32], token: u32, leaves: &[Range<usize>]) -> f32 {
    let lse = canon::fused((logits, leaves), |(logits, leaves)| lse(&tiles(logits), leaves));
    logits[token as usize] - lse
}

#[inline(always)]
fn tiles(logits: &[f32]) -> Vec<LogSumExp> {
    logits.chunks(VOCAB_TILE).map(LogSumExp::of_tile).collect()
}

/// Tiles in the tree of their leaf, leaves in theirs; tiles past the words are padding.
fn lse(tiles: &[LogSumExp], leaves: &[Range<usize>]) -> f32 {
    let tile = |i: usize| tiles.get(i).copied().unwrap_or(LogSumExp::EMPTY);
    let leaf = |i: usize| {
        let first = leaves[i].start / VOCAB_TILE;
        let count = leaves[i].len() / VOCAB_TILE;
        tree::fold(count, |n| tile(first + n), LogSumExp::combine).unwrap_or(LogSumExp::EMPTY)
    };
    tree::fold(leaves.len(), leaf, LogSumExp::combine).unwrap_or(LogSumExp::EMPTY).value()
}
