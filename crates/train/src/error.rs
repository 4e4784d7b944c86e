//! What can go wrong in a run.

use engine::EngineError;
use formats::FormatError;
use record::{Gate, RecordError, Status};

use crate::run_folder::RunError;

/// A run that failed. Where a step failed, nothing of that step was applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The run folder.
    #[error(transparent)]
    Folder(#[from] RunError),
    /// The data.
    #[error(transparent)]
    Data(#[from] data::DataError),
    /// The product could not be written.
    #[error(transparent)]
    Format(#[from] Box<FormatError>),
    /// A rank that was started with something else than the first.
    #[error(
        "this rank has other settings, other data or another program than the first rank: every process of a run must see the \
         same files and be the same build"
    )]
    OtherRun,
    /// The engine was planned for another job than the settings ask for.
    #[error("the engine was planned with {what} {planned} and the settings ask for {needed}")]
    OtherPlan {
        /// What differs.
        what: &'static str,
        /// In the plan.
        planned: usize,
        /// In the settings.
        needed: usize,
    },
    /// A warm-up that the run never ends.
    #[error(
        "`warmup_steps` is {warmup} and the run has {steps} steps: the learning rate would never reach its peak; lower \
         it, give `warmup_ratio` instead, or train longer"
    )]
    Warmup {
        /// Steps of the warm-up.
        warmup: usize,
        /// Steps of the run.
        steps: usize,
    },
    /// The engine has no training program.
    #[error("the engine was not planned for training")]
    NotPlanned,
    /// The step before a run, on one sample, failed.
    #[error("a step on {sample}: {source}")]
    Probe {
        /// Where the sample comes from.
        sample: String,
        /// Why.
        source: Box<EngineError>,
    },
    /// Ranks could not join what they hold.
    #[error(transparent)]
    Ranks {
        /// Why.
        source: Box<EngineError>,
    },
    /// The log-prob of a supervised token is not finite. Nothing was updated.
    #[error(
        "step {step}: the log-prob of a token of {sample} is {value}; nothing was updated. Lower the learning rate, or \
         look at that sample"
    )]
    NonFiniteLoss {
        /// The step, from 1.
        step: usize,
        /// Where the sample comes from.
        sample: String,
        /// The value.
        value: f32,
    },
    /// The gradient norm is not finite. Nothing was updated.
    #[error(
        "step {step}: the gradient norm is {norm}; nothing was updated. Lower the learning rate, or look at the step's \
         samples: {}", samples.join(", ")
    )]
    NonFiniteGradient {
        /// The step, from 1.
        step: usize,
        /// The norm.
        norm: f32,
        /// Where the first samples of the step come from.
        samples: Vec<String>,
    },
    /// The loss is out of the bounds that the vocabulary implies. Nothing was updated.
    #[error(
        "step {step}: the loss is {loss:.4} nats and may be at most {limit:.4}; nothing was updated. In the first step the \
         model was not made for this data: look at the template, the tokenizer and the mask of {}. Later it diverged: \
         lower the learning rate. `loss_limit` sets another bound", samples.join(", ")
    )]
    LossOutOfBounds {
        /// The step, from 1.
        step: usize,
        /// The loss.
        loss: f64,
        /// The most that it may be.
        limit: f64,
        /// Where the first samples of the step come from.
        samples: Vec<String>,
    },
    /// A gate does not hold.
    #[error("after step {step}: {}: {}; {}", gate.name, gate.figure, gate.advice)]
    Gate {
        /// Steps done.
        step: usize,
        /// The gate.
        gate: Box<Gate>,
    },
    /// An evaluation failed.
    #[error("evaluation after step {step}: {source}")]
    Evaluation {
        /// Steps done.
        step: usize,
        /// Why.
        source: Box<EngineError>,
    },
    /// The settings ask for evaluation and no held-out data was given.
    #[error("the settings ask for evaluation and there is no held-out data")]
    NoHeldOut,
    /// The engine failed. Nothing was updated.
    #[error("step {step}: {source}")]
    Step {
        /// The step, from 1.
        step: usize,
        /// Why.
        source: Box<EngineError>,
    },
    /// The product could not be made.
    #[error("after the last step: {source}")]
    Product {
        /// Why.
        source: Box<EngineError>,
    },
}

impl From<RecordError> for TrainError {
    fn from(error: RecordError) -> Self {
        TrainError::Folder(error.into())
    }
}

/// Ranks that could not join what they hold.
pub(crate) fn of_ranks(error: EngineError) -> TrainError {
    TrainError::Ranks { source: error.into() }
}

impl TrainError {
    /// What the record says of a run that failed so.
    pub fn status(&self) -> Status {
        let (step, samples) = match self {
            TrainError::NonFiniteLoss { step, sample, .. } => (Some(*step), vec![sample.clone()]),
            TrainError::NonFiniteGradient { step, samples, .. }
            | TrainError::LossOutOfBounds { step, samples, .. } => (Some(*step), samples.clone()),
            TrainError::Step { step, .. }
            | TrainError::Gate { step, .. }
            | TrainError::Evaluation { step, .. } => (Some(*step), Vec::new()),
            _ => (None, Vec::new()),
        };
        Status::Failed { step, samples, error: self.to_string() }
    }
}
