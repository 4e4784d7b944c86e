//! The folder of a run: its record, every step, checkpoints.
//!
//! `record.json` says what was asked, what ran and why ([`record::Record`]). `steps.jsonl` gets a line a step.
//! `checkpoints/step-N` holds what resuming after N steps takes. Files appear whole or not at all.

mod checkpoint;
mod error;
mod files;
mod folder;
mod logs;

pub use checkpoint::{CHECKPOINTS, at, checkpoints, load};
pub(crate) use checkpoint::{bytes, clean, held_bytes, newest, verify_checkpoint, verify_state};
pub use error::RunError;
pub use files::Files;
pub use folder::check_free;
pub(crate) use folder::{create, lock, make_checkpoints, need_space, verify};
