//! A micro-batch: sequences packed one after the other, each isolated from the others.

use crate::error::EngineError;
use canon::policy::Kept;
use program::buffer::Live;
use program::{Rank, Topology};
use std::ops::Range;

/// The target of a token that nothing is learned from.
pub const INACTIVE: u32 = u32::MAX;

/// One sequence of a micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, the token whose log-prob given the tokens up to this one is wanted, or [`INACTIVE`].
    pub targets: Vec<u32>,
    /// For each token, d loss / d log-prob of its target; empty when only scoring.
    pub coef: Vec<f32>,
    /// For each token, the last candidate that its target was chosen from, where the job's head is truncated; empty
    /// where every candidate is kept.
    pub kept: Vec<Kept>,
    /// For each token, d loss / d entropy; empty for none.
    pub coef_entropy: Vec<f32>,
    /// For each token, d loss / d log-prob over the whole vocabulary; empty for none.
    pub coef_full: Vec<f32>,
}

impl Sequence {
    /// A sequence that predicts each next token where `supervised[t + 1]`.
    pub fn next_tokens(ids: &[u32], supervised: &[bool]) -> Sequence {
        assert_eq!(ids.len(), supervised.len(), "one flag a token");
        let target = |t: usize| match supervised.get(t + 1) {
            Some(true) => ids[t + 1],
            _ => INACTIVE,
        };
        Sequence {
            ids: ids.to_vec(),
            targets: (0..ids.len()).map(target).collect(),
            ..Sequence::default()
        }
    }

    /// The last kept candidate of each token.
    fn kept(&self) -> impl Iterator<Item = Kept> {
        let kept = (!self.kept.is_empty()).then_some(&self.kept);
        (0..self.ids.len()).map(move |t| kept.map_or(Kept::ALL, |kept| kept[t]))
    }

    /// Targets that are active.
    pub fn active(&self) -> usize {
        self.targets.iter().filter(|&&t| t != INACTIVE).count()
    }
}

/// Coefficients as given, or zeros.
fn coefs(given: &[f32], length: usize) -> Vec<f32> {
    if given.is_empty() { vec![0.0; length] } else { given.to_vec() }
}

/// Sequences that run together, in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MicroBatch {
    /// The sequences.
    pub sequences: Vec<Sequence>,
}

/// One rank's inputs of a micro-batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    pub(crate) kept: Vec<Kept>,
    /// This rank's tokens of the micro-batch.
    pub(crate) tokens: Range<usize>,
    pub(crate) segments: Vec<u32>,
    pub(crate) all_segments: Vec<u32>,
    pub(crate) live: Live,
}

impl MicroBatch {
    /// Tokens of every sequence.
    pub fn tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.ids.len()).sum()
    }

    /// Active targets of every sequence.
    pub fn active(&self) -> usize {
        self.sequences.iter().map(Sequence::active).sum()
    }

    /// Token ids, one sequence after the other.
    pub(crate) fn all_ids(&self) -> Vec<u32> {
        self.sequences.iter().flat_map(|s| s.ids.iter().copied()).collect()
    }

    pub(crate) fn all_targets(&self) -> Vec<u32> {
        self.sequences.iter().flat_map(|s| s.targets.iter().copied()).collect()
    }

    pub(crate) fn all_coef(&self) -> Vec<f32> {
        self.sequences.iter().flat_map(|s| s.coef.iter().copied()).collect()
    }

    pub(crate) fn all_kept(&self) -> Vec<Kept> {
        self.sequences.iter().flat_map(Sequence::kept).collect()
    }

    pub(crate) fn all_coef_entropy(&self) -> Vec<f32> {
        self.sequences.iter().flat_map(|s| coefs(&s.coef_entropy, s.ids.len())).collect()
    }

    pub(crate) fn all_coef_full(&self) -> Vec<f32> {
        self.sequences.iter().flat_map(|s| coefs(&s.coef_full, s.ids.len())).collect()
    }

    /// What rank `rank` reads: its contiguous range of tokens, and the pieces of sequences in it.
    pub(crate) fn inputs(
        &self,
        topology: &Topology,
        rank: Rank,
        capacity: usize,
        most_segments: usize,
    ) -> Result<Inputs, EngineError> {
        let (tokens, segments) = (self.tokens(), self.sequences.len());
        if tokens > capacity || segments > most_segments {
            return Err(EngineError::OverCapacity {
                tokens,
                segments,
                capacity,
                most: most_segments,
            });
        }
        let share = capacity.div_ceil(topology.cp);
        let (start, end) = ((share * rank.cp).min(tokens), (share * (rank.cp + 1)).min(tokens));
        let mut inputs = Inputs::default();
        let mut row = 0;
        for sequence in &self.sequences {
            let length = sequence.ids.len();
            assert_eq!(sequence.targets.len(), length, "one target a token");
            inputs.all_segments.extend([row as u32, length as u32, 0, row as u32]);
            let (from, to) = (row.max(start), (row + length).min(end));
            if from < to {
                let first = (from - row) as u32;
                inputs.segments.extend([
                    (from - start) as u32,
                    (to - from) as u32,
                    first,
                    row as u32,
                ]);
                let piece = from - row..to - row;
                inputs.ids.extend(&sequence.ids[piece.clone()]);
                inputs.positions.extend(piece.clone().map(|p| p as u32));
                inputs.targets.extend(&sequence.targets[piece.clone()]);
                inputs.kept.extend(sequence.kept().skip(piece.start).take(piece.len()));
            }
            row += length;
        }
        inputs.live = Live {
            tokens: end - start,
            all_tokens: tokens,
            picked: 0,
            segments: inputs.segments.len() / 4,
            all_segments: segments,
            blocks: 0,
            micro_batches: 0,
        };
        inputs.tokens = start..end;
        Ok(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lengths: &[usize]) -> MicroBatch {
        let sequence = |&n: &usize| Sequence {
            ids: (0..n as u32).collect(),
            targets: vec![INACTIVE; n],
            ..Sequence::default()
        };
        MicroBatch { sequences: lengths.iter().map(sequence).collect() }
    }

    #[test]
    fn context_ranks_take_contiguous_tokens_and_know_where_their_keys_begin() {
        let topology = Topology::new(1, 2).unwrap();
        let batch = batch(&[3, 5]);
        let of = |cp| batch.inputs(&topology, Rank { tp: 0, cp, dp: 0 }, 8, 4).unwrap();
        let (first, second) = (of(0), of(1));
        assert_eq!(first.positions, [0, 1, 2, 0]);
        assert_eq!(first.segments, [0, 3, 0, 0, 3, 1, 0, 3]);
        assert_eq!(second.positions, [1, 2, 3, 4]);
        assert_eq!(second.segments, [0, 4, 1, 3]);
        assert_eq!(second.all_segments, [0, 3, 0, 0, 3, 5, 0, 3]);
        assert_eq!((first.live.tokens, second.live.tokens), (4, 4));
    }

    #[test]
    fn a_rank_past_the_end_has_no_tokens() {
        let topology = Topology::new(1, 4).unwrap();
        let inputs = batch(&[5]).inputs(&topology, Rank { tp: 0, cp: 3, dp: 0 }, 16, 4).unwrap();
        assert_eq!((inputs.live.tokens, inputs.live.segments), (0, 0));
    }

    #[test]
    fn too_many_tokens_or_sequences_are_refused() {
        let topology = Topology::single();
        for (lengths, capacity, most) in [(&[9][..], 8, 4), (&[1, 1][..], 8, 1)] {
            let refused = batch(lengths).inputs(&topology, Rank::FIRST, capacity, most);
            assert!(matches!(refused, Err(EngineError::OverCapacity { .. })));
        }
    }
}
