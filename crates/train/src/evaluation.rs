//! Evaluation on held-out samples, and the early stop.

use std::time::Instant;

use canon::random::{Numbers, Purpose};
use data::Dataset;
use engine::{Engine, EngineError};
use serde::{Deserialize, Serialize};

use crate::batch::{StepBatches, sum_active};
use crate::settings::Resolved;

/// One evaluation: a line of `evals.jsonl`. Everything but `seconds` is part of what a run repeats to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalEvent {
    /// Steps done.
    pub step: usize,
    /// Mean negative log-probability of the held-out supervised tokens, nats.
    pub loss: f64,
    /// Samples.
    pub samples: usize,
    /// Supervised tokens.
    pub supervised: usize,
    /// The lowest loss so far, this one included.
    pub best_loss: f64,
    /// Steps after which it was found.
    pub best_step: usize,
    /// Evaluations since then.
    pub since_best: usize,
    /// Wall-clock time, seconds.
    pub seconds: f64,
}

/// What evaluations have found so far: part of a checkpoint, so that a resumed run stops where an unbroken one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Evaluations {
    /// The lowest loss with its step.
    best: Option<(f64, usize)>,
    /// Evaluations since.
    since_best: usize,
}

impl Evaluations {
    /// Takes a loss in; the same loss again is no improvement.
    fn take(&mut self, loss: f64, step: usize) -> (f64, usize) {
        match self.best {
            Some((best, at)) if loss >= best => {
                self.since_best += 1;
                (best, at)
            }
            _ => {
                self.best = Some((loss, step));
                self.since_best = 0;
                (loss, step)
            }
        }
    }

    /// Why the run is to stop, if it is.
    pub(crate) fn exhausted(&self, patience: Option<usize>) -> Option<String> {
        let (patience, (best, step)) = (patience?, self.best?);
        (self.since_best >= patience).then(|| {
            format!(
                "{} evaluations without improvement on {best} after step {step}",
                self.since_best
            )
        })
    }
}

/// Evaluates an engine that was planned with scoring.
pub(crate) fn evaluate(
    engine: &mut Engine<'_>,
    resolved: &Resolved,
    held_out: &Dataset,
    so_far: &mut Evaluations,
    step: usize,
) -> Result<EvalEvent, EngineError> {
    let begin = Instant::now();
    // In order: an evaluation of the same weights gives the same bits, whatever the seed.
    let order: Vec<usize> = (0..held_out.len()).collect();
    let packed = data::pack(&order, &held_out.lengths(), &resolved.packing());
    let (mut sum, mut supervised) = (0.0, 0);
    for samples in &packed {
        let batches = StepBatches::new(held_out, std::slice::from_ref(samples));
        for batch in &batches.batches {
            sum += sum_active(batch, &engine.score(batch)?);
        }
        supervised += batches.supervised;
    }
    let loss = -sum / supervised as f64;
    let (best_loss, best_step) = so_far.take(loss, step);
    Ok(EvalEvent {
        step,
        loss,
        samples: held_out.len(),
        supervised,
        best_loss,
        best_step,
        since_best: so_far.since_best,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Stream of the random numbers that hold samples out; epochs use the streams from 0 on.
const HELD_OUT_STREAM: u64 = u64::MAX;

/// Which of `samples` samples a fraction holds out: at least one is held out and at least one stays, and the choice
/// depends on the seed and the number of samples alone. Both lists ascend. `None` where there are not two samples.
pub fn held_out(samples: usize, fraction: f64, seed: u64) -> Option<(Vec<usize>, Vec<usize>)> {
    if samples < 2 {
        return None;
    }
    let count = ((samples as f64 * fraction).round() as usize).clamp(1, samples - 1);
    let mut order: Vec<usize> = (0..samples).collect();
    Numbers::new(seed, Purpose::Order, HELD_OUT_STREAM).shuffle(&mut order);
    let (out, stay) = order.split_at(count);
    let sorted = |list: &[usize]| {
        let mut list = list.to_vec();
        list.sort_unstable();
        list
    };
    Some((sorted(stay), sorted(out)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_evaluations_without_a_lower_loss() {
        let mut found = Evaluations::default();
        assert_eq!(found.exhausted(Some(1)), None);
        assert_eq!(found.take(2.0, 10), (2.0, 10));
        assert_eq!(found.exhausted(Some(1)), None);
        assert_eq!(found.take(2.0, 20), (2.0, 10), "the same is no improvement");
        assert!(found.exhausted(Some(1)).is_some_and(|why| why.contains("after step 10")));
        assert_eq!(found.exhausted(Some(2)), None);
        assert_eq!(found.exhausted(None), None);
        assert_eq!(found.take(1.5, 30), (1.5, 30));
        assert_eq!(found.exhausted(Some(1)), None);
    }

    #[test]
    fn a_fraction_holds_out_some_and_leaves_some() {
        let (stay, out) = held_out(100, 0.1, 7).unwrap();
        assert_eq!((stay.len(), out.len()), (90, 10));
        let mut all = [stay.clone(), out.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert_eq!(held_out(100, 0.1, 7), Some((stay, out.clone())));
        assert_ne!(held_out(100, 0.1, 8).unwrap().1, out);
        assert_eq!(held_out(2, 0.001, 0).unwrap().1.len(), 1);
        assert_eq!(held_out(2, 0.999, 0).unwrap().0.len(), 1);
        assert_eq!(held_out(1, 0.5, 0), None);
    }
}
