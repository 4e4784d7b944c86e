//! What can go wrong in a run.

use std::path::PathBuf;

use engine::EngineError;
use formats::FormatError;
use rollout::RolloutError;

use crate::prompts::PromptError;
use crate::rewards::{RewardError, VerifierError};

/// A run that failed. Where a step failed, nothing of that step was applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RlError {
    /// The prompts.
    #[error(transparent)]
    Prompts(#[from] PromptError),
    /// The rewards.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The verifier.
    #[error(transparent)]
    Verifier(#[from] VerifierError),
    /// Generation.
    #[error("step {step}, rollout: {source}")]
    Rollout {
        /// The step, from 1.
        step: usize,
        /// Why.
        source: Box<RolloutError>,
    },
    /// The engine, in a step.
    #[error("step {step}, {what}: {source}")]
    Engine {
        /// The step, from 1.
        step: usize,
        /// At what.
        what: &'static str,
        /// Why.
        source: Box<EngineError>,
    },
    /// Other ranks.
    #[error(transparent)]
    Ranks(#[from] fabric::FabricError),
    /// Training found other log-probs than the rollout did.
    #[error(
        "step {step}: {bytes} bytes of log-probs differ between training and rollout; the first: sample {sample}, token \
         {token}: {training:e} in training and {rollout:e} in the rollout. Nothing was updated"
    )]
    Differs {
        /// The step, from 1.
        step: usize,
        /// Bytes that differ.
        bytes: usize,
        /// The first sample that does.
        sample: usize,
        /// Its first token that does.
        token: usize,
        /// Log-prob there in training.
        training: f32,
        /// Log-prob there in the rollout.
        rollout: f32,
    },
    /// A forward pass of an update gave other log-probs than its coefficients were made of.
    #[error(
        "step {step}, update {update}: the training pass found other log-probs than the scoring pass; nothing was updated"
    )]
    NotRepeated {
        /// The step, from 1.
        step: usize,
        /// The update in it, from 1.
        update: usize,
    },
    /// Weights did not arrive.
    #[error(
        "step {step}: the rollout engine's weights hash to {rollout} and the trainer's to {trainer} after they were passed"
    )]
    NotPassed {
        /// The step, from 1.
        step: usize,
        /// Hash in the trainer.
        trainer: String,
        /// Hash in the rollout engine.
        rollout: String,
    },
    /// An update with a gradient that changed nothing.
    #[error(
        "step {step}: the gradient norm is {norm:e} and no weight changed; raise the learning rate"
    )]
    Unchanged {
        /// The step, from 1.
        step: usize,
        /// The norm.
        norm: f32,
    },
    /// The run folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the run folder cannot be understood, or is another run's.
    #[error("{}: {reason}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The report could not be written.
    #[error(transparent)]
    Report(#[from] Box<record::RecordError>),
    /// A file could not be written.
    #[error(transparent)]
    Format(#[from] Box<FormatError>),
    /// Ranks were told something that is no message of a run.
    #[error("a message between ranks cannot be read: {0}")]
    Message(String),
}

/// Names the step and the place of an engine's error.
pub(crate) fn at(step: usize, what: &'static str) -> impl Fn(EngineError) -> RlError {
    move |error| RlError::Engine { step, what, source: Box::new(error) }
}
