//! Completions as every rank of the world has them, and the micro-batches that they make.

use engine::{Kept, MicroBatch, Sequence};
use rl::loss::Coefs;
use rollout::{Completion, Ending};

/// A completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Index of its prompt.
    pub(crate) prompt: usize,
    /// Tokens of its prompt.
    pub(crate) prompt_tokens: usize,
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// Log-prob of each token by the policy that chose it.
    pub(crate) logp: Vec<f32>,
    /// Log-prob of each over the whole vocabulary, at the same temperature.
    pub(crate) full_logp: Vec<f32>,
    /// The last candidate that each was chosen from.
    pub(crate) kept: Vec<Kept>,
    /// Whether it ended at a stop token.
    pub(crate) stopped: bool,
    pub(crate) advantage: f32,
    /// Log-prob of each token by the reference model, where the loss has a divergence.
    pub(crate) reference: Vec<f32>,
}

impl Sample {
    /// Takes every token away.
    pub(crate) fn clear(&mut self) {
        *self = Sample { prompt: self.prompt, stopped: self.stopped, ..Sample::default() };
    }
}

/// The reward is a plain function of the tokens; advantages are its distance from the mean of the group.
pub(crate) fn give_advantages(samples: &mut [Sample], group: usize) {
    let reward = |sample: &Sample| {
        let sum: u64 = sample.ids.iter().map(|id| u64::from(*id) % 7).sum();
        sum as f64 / sample.ids.len().max(1) as f64
    };
    for group in samples.chunks_mut(group) {
        let mean = group.iter().map(reward).sum::<f64>() / group.len() as f64;
        for sample in group {
            sample.advantage = (reward(sample) - mean) as f32;
        }
    }
}

/// A prompt with its completion: every token of the completion is a target of the row before it.
pub(crate) fn sequence(
    prompt: &[u32],
    sample: &Sample,
    truncated: bool,
    coefs: &Coefs,
) -> Sequence {
    let ids: Vec<u32> = prompt.iter().chain(&sample.ids).copied().collect();
    let supervised: Vec<bool> = (0..ids.len()).map(|at| at >= prompt.len()).collect();
    let rows = |values: &[f32]| {
        let mut all = vec![0.0; ids.len()];
        all[prompt.len() - 1..][..values.len()].copy_from_slice(values);
        all
    };
    let mut kept = Vec::new();
    if truncated {
        kept = vec![Kept::ALL; ids.len()];
        kept[prompt.len() - 1..][..sample.ids.len()].copy_from_slice(&sample.kept);
    }
    Sequence {
        coef: rows(&coefs.policy),
        coef_full: rows(&coefs.full),
        kept,
        ..Sequence::next_tokens(&ids, &supervised)
    }
}

/// Values of every token of a step, as the values of each sample's own tokens.
pub(crate) fn split(samples: &[Sample], batches: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let all = batches.concat();
    let mut row = 0;
    samples
        .iter()
        .map(|sample| {
            let first = row + sample.prompt_tokens - 1;
            row += sample.prompt_tokens + sample.ids.len();
            all[first..first + sample.ids.len()].to_vec()
        })
        .collect()
}

/// Tokens of micro-batches, for the ranks that have not the engine that made them: count of tokens, whether stopped, then
/// each token with what it was chosen from.
pub(crate) fn write(samples: &[Sample]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sample in samples {
        bytes.extend((sample.ids.len() as u32).to_le_bytes());
        bytes.push(u8::from(sample.stopped));
        for (at, id) in sample.ids.iter().enumerate() {
            bytes.extend(id.to_le_bytes());
            for value in [sample.logp[at], sample.full_logp[at], sample.kept[at].logit] {
                bytes.extend(value.to_le_bytes());
            }
            bytes.extend(sample.kept[at].id.to_le_bytes());
        }
    }
    bytes
}

/// Bytes of a token in [`write`].
const TOKEN: usize = 5 * 4;

/// What [`write`] wrote.
pub(crate) fn read(mut bytes: &[u8]) -> Option<Vec<Sample>> {
    let mut samples = Vec::new();
    while !bytes.is_empty() {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let (stopped, rest) = rest.split_first()?;
        let (tokens, rest) = rest.split_at_checked(TOKEN * u32::from_le_bytes(*count) as usize)?;
        bytes = rest;
        let mut sample = Sample { stopped: *stopped == 1, ..Sample::default() };
        for token in tokens.chunks_exact(TOKEN) {
            let word = |at: usize| {
                let b = &token[4 * at..];
                u32::from_le_bytes([b[0], b[1], b[2], b[3]])
            };
            sample.ids.push(word(0));
            sample.logp.push(f32::from_bits(word(1)));
            sample.full_logp.push(f32::from_bits(word(2)));
            sample.kept.push(Kept { logit: f32::from_bits(word(3)), id: word(4) });
        }
        samples.push(sample);
    }
    Some(samples)
}

/// What a scheduler made.
pub(crate) fn of_completion(completion: &Completion) -> Sample {
    let choices = &completion.choices;
    Sample {
        ids: completion.ids.clone(),
        logp: choices.iter().map(|choice| choice.logp).collect(),
        full_logp: choices.iter().map(|choice| choice.full_logp).collect(),
        kept: choices.iter().map(|choice| choice.kept).collect(),
        stopped: completion.ending == Ending::EndToken,
        ..Sample::default()
    }
}

/// The micro-batches of a step: equal numbers of samples, in order.
pub(crate) fn micro_batches(
    samples: &[Sample],
    accumulation: usize,
    sequence: impl Fn(usize, &Sample) -> Sequence,
) -> Vec<MicroBatch> {
    let each = samples.len() / accumulation;
    let of = |(batch, samples): (usize, &[Sample])| MicroBatch {
        sequences: samples.iter().enumerate().map(|(i, s)| sequence(batch * each + i, s)).collect(),
    };
    samples.chunks(each).enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ids: &[u32]) -> Sample {
        let values: Vec<f32> = ids.iter().map(|id| -(*id as f32)).collect();
        Sample {
            prompt_tokens: 2,
            ids: ids.to_vec(),
            logp: values.clone(),
            full_logp: values.iter().map(|v| v - 1.0).collect(),
            kept: ids.iter().map(|id| Kept { logit: 0.5, id: *id }).collect(),
            stopped: ids.len() > 1,
            ..Sample::default()
        }
    }

    #[test]
    fn completions_read_as_they_were_written() {
        let samples = [sample(&[3, 1]), sample(&[]), sample(&[2])];
        let bytes = write(&samples);
        let read_back = read(&bytes).unwrap();
        for (written, read) in samples.iter().zip(&read_back) {
            assert_eq!(*written, Sample { prompt_tokens: 2, ..read.clone() });
        }
        assert_eq!(read(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn values_of_rows_go_to_the_tokens_that_they_predict() {
        let samples = [sample(&[3, 1]), sample(&[2])];
        let found = split(&samples, &[vec![0.0, 1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]]);
        assert_eq!(found, [vec![1.0, 2.0], vec![5.0]]);
    }

    #[test]
    fn coefficients_are_on_the_rows_before_their_tokens() {
        let coefs = Coefs { policy: vec![0.5, 0.25], ..Coefs::default() };
        let sequence = sequence(&[7, 8], &sample(&[3, 1]), true, &coefs);
        assert_eq!(sequence.coef, [0.0, 0.5, 0.25, 0.0]);
        assert_eq!(sequence.coef_full, [0.0; 4]);
        assert_eq!(sequence.kept[1], Kept { logit: 0.5, id: 3 });
        assert_eq!(sequence.kept[0], Kept::ALL);
    }
}
