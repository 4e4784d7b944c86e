//! What can go wrong in a verification, apart from bytes that differ.

use engine::EngineError;
use fabric::FabricError;
use program::topology::TopologyError;
use rollout::{RolloutError, SyncError};

/// A run that proves nothing: none of these counts as passing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A topology that the model or the width cannot take.
    #[error("{side} topology: {source}")]
    Topology {
        /// Training or rollout.
        side: &'static str,
        /// Why.
        source: TopologyError,
    },
    /// A coefficient that no loss has.
    #[error("kl-coef = {value}: a finite number, 0 for no divergence in the loss")]
    KlCoef {
        /// The coefficient.
        value: f64,
    },
    /// Settings that leave nothing to compare.
    #[error("{what} = {value}: {needed}")]
    Setting {
        /// Which.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it must be.
        needed: &'static str,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Rollout failed.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// Ranks could not exchange.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Rollout ranks came to different completions.
    #[error("step {step}: rollout rank {rank} has other completions than rank 0")]
    RolloutRanks {
        /// The step, from 1.
        step: usize,
        /// The rank.
        rank: usize,
    },
    /// Bytes of another rank that are no completions.
    #[error("step {step}: the completions of rollout rank 0 cannot be read")]
    Completions {
        /// The step, from 1.
        step: usize,
    },
    /// Bytes of another rank that are not what a run saw.
    #[error("what the first rank saw cannot be read: {reason}")]
    Seen {
        /// Why.
        reason: String,
    },
    /// No token that is learnt from.
    #[error("step {step}: no active token; raise the response length")]
    NoActiveTokens {
        /// The step, from 1.
        step: usize,
    },
    /// Every advantage is zero: nothing would be learnt.
    #[error("step {step}: every advantage is zero; take more samples or a higher temperature")]
    NoAdvantage {
        /// The step, from 1.
        step: usize,
    },
    /// A figure that is not a number.
    #[error("step {step}: the {what} is {value}")]
    NonFinite {
        /// The step, from 1.
        step: usize,
        /// Which.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// A weight that an update with a gradient left as it was.
    #[error("step {step}: {parameter} has a gradient and was not changed by the update")]
    Unchanged {
        /// The step, from 1.
        step: usize,
        /// The parameter.
        parameter: String,
    },
    /// Fewer updates than were asked for.
    #[error("step {step} did not run")]
    MissingStep {
        /// The first that is missing, from 1.
        step: usize,
    },
    /// The run is not of what the reference is of.
    #[error(
        "{what} is not the reference's: the two runs are of different things and prove nothing"
    )]
    Identity {
        /// What differs.
        what: String,
    },
    /// Weights did not pass from training to rollout.
    #[error(transparent)]
    Pass(#[from] SyncError),
    /// Rollout does not hold what training has, though its own check found nothing.
    #[error("step {step}: {parameter} of rollout is not that of training after the sync")]
    Sync {
        /// The step, from 1.
        step: usize,
        /// The parameter.
        parameter: String,
    },
    /// A rule that does nothing at this model and topology.
    #[error("{rule} changes nothing here: {needed}")]
    NothingToPerturb {
        /// The rule.
        rule: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// A rank failed.
    #[error("rank {rank} failed at {operation}: {message}")]
    Rank {
        /// The first rank to fail.
        rank: usize,
        /// What it was at.
        operation: String,
        /// Why.
        message: String,
    },
    /// The small model cannot be made so.
    #[error("the small model: {reason}")]
    SmallModel {
        /// Why.
        reason: String,
    },
    /// One rank beside one rank.
    #[error(
        "one rank would be compared with itself: name a topology (--tp, --cp, --dp, --rollout-tp, --rollout-cp) or --matrix"
    )]
    OneRank,
    /// Training ranks that gathered other values.
    #[error("step {step}: training rank {rank} has another {what} than rank 0")]
    TrainingRanks {
        /// The step, from 1; 0 for the weights before the first.
        step: usize,
        /// The rank.
        rank: usize,
        /// What differs first.
        what: String,
    },
    /// No gradient at all.
    #[error("step {step}: every gradient is zero, so that the update proves nothing")]
    NoGradient {
        /// The step, from 1.
        step: usize,
    },
    /// The archive of runs.
    #[error("{path}: {reason}")]
    Archive {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
}
