//! From samples to the engine's micro-batches.

use data::{Dataset, Origin};
use engine::{INACTIVE, MicroBatch, Sequence};

/// The micro-batches of one optimizer step, with the step's global count of supervised tokens in every coefficient.
pub(crate) struct StepBatches {
    pub(crate) batches: Vec<MicroBatch>,
    pub(crate) sequences: usize,
    pub(crate) tokens: usize,
    pub(crate) supervised: usize,
}

impl StepBatches {
    /// Each supervised token's coefficient d loss / d log-prob is -1/N, where N counts the whole step: known before the
    /// first micro-batch runs.
    pub(crate) fn new(dataset: &Dataset, micro_batches: &[Vec<usize>]) -> StepBatches {
        let mut batches: Vec<MicroBatch> = micro_batches
            .iter()
            .map(|samples| MicroBatch {
                sequences: samples.iter().map(|&index| sequence(dataset, index)).collect(),
            })
            .collect();
        let supervised = batches.iter().map(MicroBatch::active).sum();
        let coef = (-1.0 / supervised as f64) as f32;
        for sequence in batches.iter_mut().flat_map(|batch| &mut batch.sequences) {
            let of = |&target: &u32| if target == INACTIVE { 0.0 } else { coef };
            sequence.coef = sequence.targets.iter().map(of).collect();
        }
        StepBatches {
            sequences: batches.iter().map(|batch| batch.sequences.len()).sum(),
            tokens: batches.iter().map(MicroBatch::tokens).sum(),
            supervised,
            batches,
        }
    }
}

fn sequence(dataset: &Dataset, index: usize) -> Sequence {
    let sample = dataset.sample(index);
    Sequence::next_tokens(sample.ids, sample.supervised)
}

/// The sum of the log-probs of active targets, in order.
pub(crate) fn sum_active(batch: &MicroBatch, logp: &[f32]) -> f64 {
    let targets = batch.sequences.iter().flat_map(|sequence| &sequence.targets);
    let active = targets.zip(logp).filter(|(target, _)| **target != INACTIVE);
    active.map(|(_, &logp)| f64::from(logp)).sum()
}

/// Where the sample comes from that has a row of a micro-batch.
pub(crate) fn origin_of_row(dataset: &Dataset, samples: &[usize], row: usize) -> Option<Origin> {
    let mut end = 0;
    let found = samples.iter().find(|&&index| {
        end += dataset.sample(index).ids.len();
        row < end
    });
    found.map(|&index| dataset.origin(index))
}
