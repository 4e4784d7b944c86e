//! The fine-tuning loop: settings, schedules, accumulation, checkpoints, resume.
//!
//! [`Settings`] are one definition: a TOML file, flags, a JSON schema. [`Requested`] is what was written and where;
//! [`Resolved`] is what runs and why. A [`Run`] joins an engine with loaded weights, a data set and resolved settings,
//! trains, and leaves a run folder: what was asked and run, every step, checkpoints, and the product.
//!
//! Nothing here prints: an [`Observer`] is told of every step and may stop the run.

mod batch;
mod error;
mod fingerprint;
mod lr;
mod observer;
mod product;
mod run;
mod run_folder;
mod settings;

pub use error::TrainError;
pub use lr::LearningRate;
pub use observer::{Flow, Observer, Silent, StepEvent};
pub use run::{Outcome, Run};
pub use run_folder::{
    CHECKPOINTS, Change, Identity, RECORD_FILE, RunError, RunRecord, STEPS_FILE, read_record,
};
pub use settings::{
    Chosen, Facts, Mode, Profile, Requested, Resolved, ScheduleKind, Settings, SettingsError, Size,
    Source, TooLongPolicy, WeightType, default_sequences,
};
