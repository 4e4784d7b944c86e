//! Reinforcement learning on the programs of training and generation: groups of completions (GRPO and its kin) and
//! pairs (DPO).
//!
//! [`RlSettings`] are one definition, as `train::Settings` are: a TOML file, flags, a JSON schema. A step generates
//! completions, [grades](rewards) them, turns rewards into [advantages](advantage) and those, with token log-probs, into
//! coefficients ([`loss`], [`dpo`]); one backward pass takes coefficients back. Coefficients are known before the
//! training pass runs, since the log-probs that they are made of are the rollout's own bytes; the training pass finds
//! them again, and a single differing byte ends the run. Every step is stored ([`StepRecord`]) and can be
//! [replayed](replay).
//!
//! Nothing here prints: an [`Observer`] is told of every step and may stop the run.

pub mod advantage;
mod batch;
mod checkpoint;
pub mod dpo;
mod engines;
mod error;
mod event;
mod folder;
mod grading;
mod grpo;
pub mod loss;
mod pairs;
mod prompts;
pub mod replay;
pub mod rewards;
mod rollout;
mod run;
mod settings;
mod store;
mod sync;

pub use engines::Engines;
pub use error::RlError;
pub use event::{Flow, Observer, RlEvent, Timing};
pub use folder::{RECORD_FILE, RlRecord, read_record};
pub use prompts::{Pair, Prompt, PromptError, read_pairs, read_prompts};
pub use run::{Data, Outcome, Run};
pub use settings::{
    Dpo, FailurePolicy, Grpo, KlPlace, Method, MethodKind, Resolved, Reward, RewardKind, RlSettings,
};
pub use store::{Sample, StepRecord, Update, read_step};
