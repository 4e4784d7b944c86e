//! What can go wrong in a run.

use std::path::PathBuf;

use engine::EngineError;
use record::{RecordError, Status};
use rollout::{RolloutError, SyncError};
use train::{RunError, TrainError};

use crate::prompts::PromptError;
use crate::rewards::{RewardError, VerifierError};

/// A run that failed. Its checkpoints are as before the step.
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
        "step {step}, update {update}: the training pass found other log-probs than the scoring pass; this update was not made"
    )]
    NotRepeated {
        /// The step, from 1.
        step: usize,
        /// The update in it, from 1.
        update: usize,
    },
    /// Before any update, a token has another probability in training than in the rollout.
    #[error(
        "step {step}: before any update the ratio of training's probability to the rollout's is {least} to {most}, not \
         exactly 1. Nothing was updated"
    )]
    Ratio {
        /// The step, from 1.
        step: usize,
        /// The least ratio.
        least: f64,
        /// The greatest.
        most: f64,
    },
    /// The log-prob of a token is not finite. Nothing was updated.
    #[error(
        "step {step}: the log-prob of a token of {sample} is {value}; nothing was updated. Lower the learning rate, or \
         look at that sample in the step before"
    )]
    NonFinite {
        /// The step, from 1.
        step: usize,
        /// Where the sample's prompt comes from.
        sample: String,
        /// The value.
        value: f32,
    },
    /// Weights did not arrive, or an update with a gradient changed none.
    #[error("step {step}, passing weights to rollout: {source}")]
    Sync {
        /// The step, from 1; 0 is before the first.
        step: usize,
        /// Why.
        source: Box<SyncError>,
    },
    /// No step had anything to teach.
    #[error(
        "none of {steps} steps taught anything: of {groups} groups {uniform} had equal rewards, so there was no update and \
         the product would be the base model. Look at the completions in rollouts/, make prompts easier or harder, raise \
         `group` or `temperature`, or give a reward with more steps"
    )]
    NothingTaught {
        /// Steps done.
        steps: usize,
        /// Groups of all of them.
        groups: usize,
        /// Groups of equal rewards.
        uniform: usize,
    },
    /// A stored step cannot be understood, or is not there.
    #[error("{}: {reason}", path.display())]
    Stored {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The lead rank could not be given what it asked for.
    #[error(transparent)]
    Served {
        /// Why.
        source: Box<EngineError>,
    },
    /// The run's folder, its record, a gate, the product.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// Ranks were told something that is no message of a run.
    #[error("a message between ranks cannot be read: {0}")]
    Message(String),
}

impl From<TrainError> for RlError {
    fn from(error: TrainError) -> RlError {
        RlError::Train(error.into())
    }
}

impl From<RunError> for RlError {
    fn from(error: RunError) -> RlError {
        TrainError::from(error).into()
    }
}

impl From<RecordError> for RlError {
    fn from(error: RecordError) -> RlError {
        TrainError::from(error).into()
    }
}

impl RlError {
    pub(crate) fn served(error: EngineError) -> RlError {
        RlError::Served { source: error.into() }
    }

    /// What the record says of a run that failed so.
    pub(crate) fn status(&self) -> Status {
        let (step, samples) = match self {
            RlError::Train(error) => return error.status(),
            RlError::NonFinite { step, sample, .. } => (Some(*step), vec![sample.clone()]),
            RlError::Reward(RewardError::Ungraded { step, prompt, .. }) => {
                (Some(*step), vec![prompt.clone()])
            }
            RlError::Reward(
                RewardError::NoneGraded { step, .. } | RewardError::Outage { step, .. },
            )
            | RlError::Rollout { step, .. }
            | RlError::Engine { step, .. }
            | RlError::Differs { step, .. }
            | RlError::Ratio { step, .. }
            | RlError::NotRepeated { step, .. }
            | RlError::Sync { step, .. } => (Some(*step), Vec::new()),
            _ => (None, Vec::new()),
        };
        Status::Failed { step, samples, error: self.to_string() }
    }
}

/// Names the step and the place of an engine's error.
pub(crate) fn at(step: usize, what: &'static str) -> impl Fn(EngineError) -> RlError {
    move |error| RlError::Engine { step, what, source: Box::new(error) }
}
