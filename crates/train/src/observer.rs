//! What a run tells while it goes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::evaluation::EvalEvent;

/// One optimizer step: a line of `steps.jsonl`. Everything but `seconds` is part of what a run repeats to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepEvent {
    /// Steps done, this one included.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// The epoch, from 0.
    pub epoch: usize,
    /// Mean negative log-probability of the supervised tokens, nats, before the update: summed in f64 in the order of the
    /// data.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f32,
    /// Norm of the gradient, before clipping.
    pub grad_norm: f32,
    /// What the gradient was multiplied by: 1, or less where it was clipped.
    pub grad_scale: f32,
    /// Logical micro-batches.
    pub micro_batches: usize,
    /// Sequences in them.
    pub sequences: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Tokens that were learnt.
    pub supervised: usize,
    /// Wall-clock time of the step, seconds.
    pub seconds: f64,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// On with the next step.
    Continue,
    /// Save a checkpoint and stop.
    Stop,
}

/// Nobody: the observer of ranks that are not the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silent;

impl Observer for Silent {
    fn step(&mut self, _event: &StepEvent) -> Flow {
        Flow::Continue
    }
}

/// Who is told.
pub trait Observer {
    /// The run begins at a step (from 0; not 0 when it resumes) of `steps`.
    fn start(&mut self, step: usize, steps: usize) {
        let _ = (step, steps);
    }

    /// A logical micro-batch of the current step is through: `done` of `total` that this replica runs.
    fn micro_batch(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// A step is through and written to `steps.jsonl`.
    fn step(&mut self, event: &StepEvent) -> Flow;

    /// The held-out samples were evaluated, and the line written to `evals.jsonl`.
    fn evaluated(&mut self, event: &EvalEvent) {
        let _ = event;
    }

    /// A checkpoint is in its place.
    fn saved(&mut self, checkpoint: &Path) {
        let _ = checkpoint;
    }
}
