//! From samples to the engine's micro-batches, and per-token values back.

use data::{Arrangement, Packing, pack};
use engine::{Engine, EngineError, INACTIVE, MicroBatch, Sequence};

use crate::store::Sample;

/// Samples in logical micro-batches.
pub(crate) struct Packed {
    /// Samples of each micro-batch.
    pub(crate) micro_batches: Vec<Vec<usize>>,
}

impl Packed {
    /// Packs the samples that have tokens and that `wanted` takes, in order.
    pub(crate) fn new(
        samples: &[Sample],
        wanted: impl Fn(usize) -> bool,
        tokens: usize,
        sequences: usize,
    ) -> Packed {
        let order: Vec<usize> =
            (0..samples.len()).filter(|&i| !samples[i].ids.is_empty() && wanted(i)).collect();
        let lengths: Vec<usize> =
            samples.iter().map(|s| s.prompt_ids.len() + s.ids.len()).collect();
        let arrangement = Arrangement::Shuffled;
        let packing = Packing { tokens, sequences, accumulation: 1, seed: 0, arrangement };
        Packed { micro_batches: pack(&order, &lengths, &packing) }
    }

    pub(crate) fn len(&self) -> usize {
        self.micro_batches.len()
    }

    /// Tokens of every sequence.
    pub(crate) fn tokens(&self, samples: &[Sample]) -> usize {
        let all = self.micro_batches.iter().flatten();
        all.map(|&i| samples[i].prompt_ids.len() + samples[i].ids.len()).sum()
    }

    /// The engine's micro-batch `index`, with coefficients where there are some.
    pub(crate) fn batch(
        &self,
        index: usize,
        samples: &[Sample],
        coefs: Option<&[crate::loss::Coefs]>,
    ) -> MicroBatch {
        let sequence = |&i: &usize| sequence(&samples[i], coefs.map(|coefs| &coefs[i]));
        MicroBatch { sequences: self.micro_batches[index].iter().map(sequence).collect() }
    }

    /// Runs `run` over this replica's micro-batches and gives every replica's values by sample, completion tokens only.
    pub(crate) fn by_sample(
        &self,
        engine: &mut Engine<'_>,
        samples: &[Sample],
        mut run: impl FnMut(&mut Engine<'_>, usize) -> Result<Vec<f32>, EngineError>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let total = self.len();
        let mut mine = Vec::new();
        for index in engine.micro_batches_of(total) {
            mine.push(run(engine, index)?);
        }
        let all = engine.gather_micro_batches(total, mine)?;
        Ok(self.split(samples, &all))
    }

    /// Which of `samples` samples are in a micro-batch.
    pub(crate) fn took_part(&self, samples: usize) -> Vec<bool> {
        let mut took_part = vec![false; samples];
        self.micro_batches.iter().flatten().for_each(|&i| took_part[i] = true);
        took_part
    }

    /// The sample that a row of a micro-batch is of.
    pub(crate) fn sample_of_row(
        &self,
        index: usize,
        row: usize,
        samples: &[Sample],
    ) -> Option<usize> {
        let mut end = 0;
        self.micro_batches[index].iter().copied().find(|&i| {
            end += samples[i].prompt_ids.len() + samples[i].ids.len();
            row < end
        })
    }

    /// Values of micro-batches, a list a sample.
    pub(crate) fn split(&self, samples: &[Sample], values: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut found = vec![Vec::new(); samples.len()];
        for (indices, values) in self.micro_batches.iter().zip(values) {
            let mut row = 0;
            for &i in indices {
                let (prompt, length) = (samples[i].prompt_ids.len(), samples[i].ids.len());
                // The row of a token predicts the next one.
                let first = row + prompt - 1;
                found[i] = values[first..first + length].to_vec();
                row += prompt + length;
            }
        }
        found
    }
}

/// A prompt with its completion, whose tokens are the targets.
fn sequence(sample: &Sample, coefs: Option<&crate::loss::Coefs>) -> Sequence {
    let (prompt, length) = (sample.prompt_ids.len(), sample.ids.len());
    let ids: Vec<u32> = sample.prompt_ids.iter().chain(&sample.ids).copied().collect();
    let total = ids.len();
    let first = prompt - 1;
    let mut targets = vec![INACTIVE; total];
    targets[first..first + length].copy_from_slice(&sample.ids);
    let spread = |values: &[f32]| {
        let mut all = vec![0.0; total];
        all[first..first + values.len()].copy_from_slice(values);
        all
    };
    let mut sequence = Sequence { ids, targets, ..Sequence::default() };
    if !sample.kept.is_empty() {
        let mut kept = vec![engine::Kept::ALL; total];
        kept[first..first + length].copy_from_slice(&sample.kept());
        sequence.kept = kept;
    }
    if let Some(coefs) = coefs {
        sequence.coef = spread(&coefs.policy);
        sequence.coef_full = spread(&coefs.full);
        sequence.coef_entropy = spread(&coefs.entropy);
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prompt: usize, completion: usize) -> Sample {
        Sample {
            prompt_ids: (0..prompt as u32).collect(),
            ids: (0..completion as u32).map(|i| 10 + i).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn values_of_rows_come_back_by_sample() {
        let samples = [sample(2, 3), sample(1, 0), sample(3, 2), sample(2, 2)];
        let packed = Packed::new(&samples, |i| i != 3, 12, 4);
        assert_eq!(packed.micro_batches, [vec![0, 2]]);
        assert_eq!(packed.tokens(&samples), 10);
        let rows: Vec<f32> = (0..10).map(|row| row as f32).collect();
        let found = packed.split(&samples, &[rows]);
        assert_eq!(found, [vec![1.0, 2.0, 3.0], vec![], vec![7.0, 8.0], vec![]]);
        let of_row = |row| packed.sample_of_row(0, row, &samples);
        assert_eq!([4, 5, 9, 10].map(of_row), [Some(0), Some(2), Some(2), None]);
    }

    #[test]
    fn a_completions_tokens_are_targets_of_the_rows_before_them() {
        let coefs = crate::loss::Coefs { policy: vec![0.5, 0.25], ..Default::default() };
        let sequence = sequence(&sample(3, 2), Some(&coefs));
        assert_eq!(sequence.ids, [0, 1, 2, 10, 11]);
        assert_eq!(sequence.targets, [INACTIVE, INACTIVE, 10, 11, INACTIVE]);
        assert_eq!(sequence.coef, [0.0, 0.0, 0.5, 0.25, 0.0]);
        assert_eq!(sequence.coef_full, [0.0; 5]);
        assert!(sequence.kept.is_empty());
    }
}
