//! The record of a run: what was asked, what ran and why, and what came of it.
//!
//! A run's folder holds [`Record`] (`record.json`), files of lines that only grow ([`rows`]: steps, evaluations, hashes of
//! tensors), checkpoints, the product, and a report with plots ([`report`]). A run that has ended is sealed by hash
//! ([`conclude`]); notes go beside it ([`annotate`]) and never into it. [`compare`] says what differs between two runs, and
//! [`Index`] lists the runs under a folder from a database that can always be built again.
//!
//! This crate knows no model and no engine: whoever runs fills the record in. Nothing here prints.

mod annotation;
mod clock;
mod compare;
pub mod durable;
mod error;
mod gate;
mod git;
mod identity;
mod index;
mod machine;
mod process;
mod record;
pub mod report;
pub mod rows;
mod seal;
mod space;

pub use annotation::{ANNOTATIONS_FILE, Annotation, annotate, annotations};
pub use clock::{Clock, ClockJump, Reading, rfc3339};
pub use compare::{Difference, FirstStep, Pair, compare};
pub use ed25519_dalek::{SigningKey, VerifyingKey};
pub use error::RecordError;
pub use gate::{Gate, Verdict};
pub use git::{Git, PATCH_BYTES_LIMIT, Patch, Repository};
pub use identity::{Change, Identity, SETTINGS};
pub use index::{INDEX_FILE, Index, Listed};
pub use machine::{Binary, Built, Machine, hash_file, peak_resident_bytes};
pub use process::{Life, ProcessId};
pub use record::*;
pub use rows::{EVALS_FILE, Rows, SECONDS, STEPS_FILE, TENSORS_FILE};
pub use seal::{
    Broken, LOCK_FILE, SEAL_FILE, Seal, Signed, conclude, hex, look_at_seal, read_public_key,
    read_seal, read_signing_key, set_seal_aside, unseal,
};
pub use space::{Reserve, free_bytes};
