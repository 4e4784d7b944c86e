//! Weights, arenas and an executor: what runs a model's programs on one rank.
//!
//! A [`Blueprint`] plans everything a job will run, before anything is allocated. An [`Engine`] allocates what the
//! blueprint says, loads weights, and runs: training steps ([`Engine::train_micro_batch`], [`Engine::update`]), scoring
//! ([`Engine::score`]), prefill and decoding ([`Engine::advance`]).

mod adapter;
mod batch;
mod blueprint;
mod candidates;
mod error;
mod exchange;
mod fit;
mod generate;
mod kernels;
mod load;
mod optimizer;
mod phases;
mod probe;
mod profile;
mod run;
mod sampling;
mod step;
mod whole;

pub use batch::{INACTIVE, MicroBatch, Sequence};
pub use blueprint::{Blueprint, Compiled, GenerateShape, Job, TrainShape, head_chunk};
pub use candidates::log_prob;
pub use canon::policy::Kept;
pub use error::EngineError;
pub use exchange::Exchange;
pub use fit::{Fit, Fitter, Largest, StepShape, Workspace};
pub use generate::{Advance, Row};
pub use kernels::{KernelUse, ProductShape};
pub use optimizer::{Hyper, UpdateReport};
pub use phases::{Phase, PhaseLedger, Phases};
pub use profile::{KernelRow, Profile};
pub use run::Engine;
pub use sampling::{Choice, LEAST_TEMPERATURE, Sampler, Sampling, SamplingError};
pub use step::TokenMeasures;
pub use whole::{MOST_ACTIONS, Part, RankLedgers};
