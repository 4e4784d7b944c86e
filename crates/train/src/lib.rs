//! The fine-tuning loop: settings, schedules, accumulation, checkpoints, resume.
//!
//! [`Settings`] are one definition: a TOML file, flags, a JSON schema. [`Requested`] is what was written and where;
//! [`Resolved`] is what runs and why. A [`Run`] joins an engine with loaded weights, a data set and resolved settings,
//! trains, and leaves a run folder: what was asked and run, every step, checkpoints, and the product.
//!
//! Nothing here prints: an [`Observer`] is told of every step and may stop the run.

mod batch;
pub mod contents;
mod error;
mod evaluation;
mod fingerprint;
pub mod gates;
mod lr;
mod observer;
pub mod probe;
mod product;
mod recorder;
mod run;
mod run_folder;
mod settings;
mod surroundings;
mod tensors;

pub use contents::requested;
pub use error::TrainError;
pub use evaluation::{EvalEvent, held_out};
pub use lr::LearningRate;
pub use observer::{Flow, Observer, StepEvent};
pub use product::{ADAPTER, adapter as write_adapter, model as write_model, path as product_path};
pub use recorder::Recorder;
pub use run::{FOLDER, Outcome, Run, Space};
pub use run_folder::{
    CHECKPOINTS, Files, RunError, at as checkpoint_at, check_free, checkpoints,
    load as load_checkpoint,
};
pub use settings::{
    Chosen, DataSource, Date, Facts, Mode, OrderKind, Profile, Requested, Resolved, ScheduleKind,
    Settings, SettingsError, Size, Source, TooLongPolicy, WeightType, default_sequences,
    settings_from_toml,
};
pub use surroundings::Surroundings;
