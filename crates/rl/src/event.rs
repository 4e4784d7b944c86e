//! What a run tells while it goes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::dpo::DpoMeasured;
use crate::loss::Measured;

/// Seconds of a step's parts: no part of what a run repeats to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Generating.
    pub rollout: f64,
    /// Grading.
    pub reward: f64,
    /// Scoring, training, updating.
    pub train: f64,
    /// Passing weights to the rollout engine.
    pub sync: f64,
    /// All of the step, evaluation included.
    pub total: f64,
}

/// One step: a line of `steps.jsonl`. Everything but `seconds` is part of what a run repeats to the bit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RlEvent {
    /// Steps done, this one included.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// Completions generated, or completions of pairs.
    pub samples: usize,
    /// Mean reward of graded completions, before any divergence is charged.
    pub reward: f64,
    /// Mean length of a completion, tokens.
    pub length: f64,
    /// Completions that ended at the most tokens.
    pub cut: usize,
    /// Completions without text.
    pub empty: usize,
    /// Completions that could not be graded and were left out.
    pub dropped: usize,
    /// Groups.
    pub groups: usize,
    /// Groups from which nothing can be learnt: equal rewards, or fewer than two.
    pub uniform: usize,
    /// Bytes in which log-probs of training differ from those of the rollout: 0, or the run ends.
    pub differing_bytes: usize,
    /// Tokens whose log-probs were compared.
    pub compared: usize,
    /// Updates done in this step; 0 where nothing could be learnt.
    pub updates: usize,
    /// Updates of the whole run so far.
    pub updates_done: usize,
    /// The loss of the last update.
    pub loss: f64,
    /// What the last update's loss measured.
    pub measured: Option<Measured>,
    /// What the last update's pairs measured.
    pub pairs: Option<DpoMeasured>,
    /// Mean entropy a token, where the loss has a bonus.
    pub entropy: Option<f64>,
    /// Mean divergence of the rollout from the reference a token, where the reward is charged with it.
    pub reward_kl: Option<f64>,
    /// Learning rate.
    pub lr: f32,
    /// Gradient norm of the last update, before clipping.
    pub grad_norm: f32,
    /// What its gradient was multiplied by.
    pub grad_scale: f32,
    /// Hash of the trained weights after the step, the same in trainer and rollout engine.
    pub weights: String,
    /// Mean reward of greedy completions of the held-out prompts after the step, where it was measured.
    pub eval_reward: Option<f64>,
    /// Tokens of all sequences that were trained on.
    pub tokens: usize,
    /// Seconds.
    pub seconds: Timing,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// On with the next step.
    Continue,
    /// Save a checkpoint and stop.
    Stop,
}

/// Who is told.
pub trait Observer {
    /// The run begins at a step (from 0; not 0 when it resumes) of `steps`.
    fn start(&mut self, step: usize, steps: usize) {
        let _ = (step, steps);
    }

    /// Held-out prompts were graded before the first step.
    fn before(&mut self, eval_reward: f64) {
        let _ = eval_reward;
    }

    /// `done` of `total` completions of the current step are there.
    fn rollout(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// Whether the run was asked to stop. A grader that fails then does not fail the run, which stops.
    fn asked_to_stop(&self) -> bool {
        false
    }

    /// A step is through and written to `steps.jsonl`.
    fn step(&mut self, event: &RlEvent) -> Flow;

    /// A checkpoint is in its place.
    fn saved(&mut self, checkpoint: &Path) {
        let _ = checkpoint;
    }
}
