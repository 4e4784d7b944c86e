//! The folder of a run: what was asked and run, every step, checkpoints.
//!
//! `run.json` is written once, before the first step. `steps.jsonl` gets a line a step. `checkpoints/step-N` holds
//! what resuming after N steps takes. Files appear whole or not at all.

mod checkpoint;
mod durable;
mod error;
mod record;
mod steps;

pub use checkpoint::CHECKPOINTS;
pub(crate) use checkpoint::{at, clean, load, newest, prune, save};
pub use error::{Change, RunError};
pub use record::{Identity, RECORD_FILE, RunRecord, read_record};
pub(crate) use record::{create, lock, verify};
pub use steps::STEPS_FILE;
pub(crate) use steps::StepsLog;
