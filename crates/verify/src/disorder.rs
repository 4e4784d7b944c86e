//! What broken rules change on the host: [`Rule`]s that are no operation's.

use crate::perturb::Rule;
use crate::sample::Sample;
use engine::{Kept, MicroBatch, Sampling};

/// Micro-batches of a step whose tree the swap of two changes: of fewer, a sum is the same in either order.
pub(crate) const LEAST_MICRO_BATCHES: usize = 3;

/// How tokens are chosen under a rule.
pub(crate) fn sampling(rule: Option<Rule>, sampling: Sampling) -> Sampling {
    match rule {
        Some(Rule::Temperature) => Sampling { temperature: 2.0 * sampling.temperature, ..sampling },
        Some(Rule::DrawKey) => Sampling { seed: sampling.seed ^ 1, ..sampling },
        _ => sampling,
    }
}

/// What training is told that a token was chosen from.
pub(crate) fn kept(rule: Option<Rule>, kept: Kept, token: u32) -> Kept {
    match rule {
        Some(Rule::KeptSet) => Kept::ALL,
        // The last candidate itself is the one that ties; a row whose token it is keeps it.
        Some(Rule::Tie) if kept != Kept::ALL && kept.id != token => {
            Kept { id: kept.id.wrapping_sub(1), ..kept }
        }
        _ => kept,
    }
}

/// Changes completions as this rank of rollout has them.
pub(crate) fn completions(rule: Option<Rule>, last_of_rollout: bool, samples: &mut [Sample]) {
    match rule {
        Some(Rule::NoActiveToken) => samples.iter_mut().for_each(Sample::clear),
        Some(Rule::RolloutRank) if last_of_rollout => {
            if let Some(id) = samples.iter_mut().flat_map(|s| &mut s.ids).next() {
                *id ^= 1;
            }
        }
        _ => {}
    }
}

/// Changes the order of a step's sequences or micro-batches.
pub(crate) fn reorder(rule: Option<Rule>, batches: &mut [MicroBatch]) {
    match rule {
        Some(Rule::TokenOrder) => {
            batches
                .iter_mut()
                .filter(|b| b.sequences.len() > 1)
                .for_each(|b| b.sequences.swap(0, 1));
        }
        Some(Rule::MicroBatchTree) => batches.swap(1, 2),
        _ => {}
    }
}

/// Puts a value a token, found of [`reorder`]ed `batches`, back in the order of the data.
pub(crate) fn restore(rule: Option<Rule>, batches: &[MicroBatch], values: &mut [Vec<f32>]) {
    match rule {
        Some(Rule::TokenOrder) => {
            for (batch, values) in batches.iter().zip(values) {
                if let [first, second, ..] = batch.sequences.as_slice() {
                    let both = first.ids.len() + second.ids.len();
                    values[..both].rotate_left(first.ids.len());
                }
            }
        }
        Some(Rule::MicroBatchTree) => values.swap(1, 2),
        _ => {}
    }
}
