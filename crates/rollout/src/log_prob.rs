//! The log-prob of a chosen token from a row of logits: the canon's tiles and tree, as scoring computes it.

use canon::leaves::VOCAB_TILE;
use canon::log_sum_exp::LogSumExp;

/// log p(`token`) over the whole vocabulary; `logits` are those of its words, `width` the canon's width.
///
/// Padding columns are −∞: they make whole tiles of nothing, and change nothing in the last tile with words.
pub(crate) fn log_prob(logits: &[f32], token: u32, width: usize) -> f32 {
    let padded = logits.len().next_multiple_of(VOCAB_TILE * width);
    let tiles = padded / VOCAB_TILE;
    let mut pairs: Vec<LogSumExp> = logits.chunks(VOCAB_TILE).map(LogSumExp::of_tile).collect();
    pairs.resize(tiles, LogSumExp::EMPTY);
    let leaves: Vec<LogSumExp> = pairs.chunks(tiles / width).map(LogSumExp::combine_all).collect();
    logits[token as usize] - LogSumExp::combine_all(&leaves).value()
}
