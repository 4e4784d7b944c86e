//! What can go wrong in a run.

use engine::EngineError;
use formats::FormatError;

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
    /// The engine has no training program.
    #[error("the engine was not planned for training")]
    NotPlanned,
    /// The adapter could not be initialised.
    #[error("before the first step: {source}")]
    Prepare {
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
         samples: {samples}"
    )]
    NonFiniteGradient {
        /// The step, from 1.
        step: usize,
        /// The norm.
        norm: f32,
        /// Where the first samples of the step come from.
        samples: String,
    },
    /// The engine failed. Nothing was updated.
    #[error("step {step}: {source}")]
    Step {
        /// The step, from 1.
        step: usize,
        /// Why.
        source: Box<EngineError>,
    },
    /// Ranks could not join what they hold.
    #[error(transparent)]
    Ranks {
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
