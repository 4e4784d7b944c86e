//! `run.json`: what was asked, what runs, and what a resumed run must agree with.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::Path;

use data::{PackReport, Report};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::durable::{read_json, sync_folder, write_json};
use super::error::{Change, RunError, io};
use crate::settings::{Requested, Resolved};

/// The record's file.
pub const RECORD_FILE: &str = "run.json";

/// Settings that a resumed run may have otherwise: they change no bit of it.
const FREE: [&str; 9] =
    ["out", "data", "save_every", "keep_checkpoints", "threads", "memory", "tp", "cp", "dp"];

/// What makes a run this run: with the same identity it gives the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Values of the settings that can change a bit or the plan, by key.
    pub settings: BTreeMap<String, Value>,
    /// Hash of the encoded data ([`data::Dataset::identity`]).
    pub data: String,
    /// Hash of the base weights.
    pub weights: String,
    /// Hash of the programs.
    pub program: String,
    /// Version of samebit: kernels may differ between versions.
    pub version: String,
}

impl Identity {
    /// Joins the settings with the hashes.
    pub(crate) fn new(
        resolved: &Resolved,
        data: String,
        weights: String,
        program: String,
    ) -> Identity {
        let settings = match serde_json::to_value(resolved) {
            Ok(Value::Object(map)) => map,
            other => unreachable!("settings are an object: {other:?}"),
        };
        let value = |chosen: Value| chosen.get("value").cloned().unwrap_or(Value::Null);
        let settings = settings
            .into_iter()
            .filter(|(key, _)| !FREE.contains(&key.as_str()))
            .map(|(key, chosen)| (key, value(chosen)))
            .collect();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Identity { settings, data, weights, program, version }
    }

    /// What is otherwise in `now`.
    fn changes(&self, now: &Identity) -> Vec<Change> {
        let change = |what: String, was: &dyn ToString, is: &dyn ToString| Change {
            what,
            was: was.to_string(),
            is: is.to_string(),
        };
        let keys: std::collections::BTreeSet<&String> =
            self.settings.keys().chain(now.settings.keys()).collect();
        let of = |settings: &BTreeMap<String, Value>, key: &String| {
            settings.get(key).cloned().unwrap_or(Value::Null)
        };
        let mut changes: Vec<Change> = keys
            .into_iter()
            .map(|key| (key, of(&self.settings, key), of(&now.settings, key)))
            .filter(|(_, was, is)| was != is)
            .map(|(key, was, is)| change(format!("`{key}`"), &was, &is))
            .collect();
        for (what, was, is) in [
            ("the encoded data (hash)", &self.data, &now.data),
            ("the base weights (hash)", &self.weights, &now.weights),
            ("the program (hash)", &self.program, &now.program),
            ("the version of samebit", &self.version, &now.version),
        ] {
            if was != is {
                changes.push(change(what.to_owned(), was, is));
            }
        }
        changes
    }
}

/// The record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of samebit.
    pub version: String,
    /// What was asked.
    pub requested: Requested,
    /// What runs, and why.
    pub resolved: Resolved,
    /// What a resumed run must agree with.
    pub identity: Identity,
    /// Optimizer steps.
    pub steps: usize,
    /// Parameters that are trained.
    pub trained_parameters: usize,
    /// Planned bytes by kind; the engine has allocated them.
    pub ledger_bytes: BTreeMap<String, usize>,
    /// What was encoded.
    pub data: Report,
    /// How the first epoch fills its micro-batches.
    pub packing: PackReport,
}

/// Begins a run's folder, which must hold no run.
pub(crate) fn create(folder: &Path, record: &RunRecord) -> Result<(), RunError> {
    fs::create_dir_all(folder).map_err(io("create", folder))?;
    if folder.join(RECORD_FILE).exists() {
        return Err(RunError::RunExists { path: folder.to_owned() });
    }
    let mut entries = fs::read_dir(folder).map_err(io("read", folder))?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(io("read", folder))?.file_name();
        let name = name.to_string_lossy().into_owned();
        return Err(RunError::NotEmpty { path: folder.to_owned(), name });
    }
    let checkpoints = folder.join(super::CHECKPOINTS);
    fs::create_dir_all(&checkpoints).map_err(io("create", &checkpoints))?;
    sync_folder(folder)?;
    write_json(folder, RECORD_FILE, record)
}

/// Takes a run's folder for this process, until the file is closed.
pub(crate) fn lock(folder: &Path) -> Result<File, RunError> {
    let path = folder.join(RECORD_FILE);
    let file = File::open(&path).map_err(io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RunError::InUse { path: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// Reads the record of a run.
///
/// # Errors
/// [`RunError::NoRun`], [`RunError::Io`], [`RunError::Malformed`].
pub fn read_record(folder: &Path) -> Result<RunRecord, RunError> {
    let path = folder.join(RECORD_FILE);
    if !path.exists() {
        return Err(RunError::NoRun { path: folder.to_owned(), file: RECORD_FILE });
    }
    read_json(&path)
}

/// Checks that a run in a folder is the one described by `now`.
pub(crate) fn verify(folder: &Path, now: &Identity) -> Result<(), RunError> {
    let changes = read_record(folder)?.identity.changes(now);
    if changes.is_empty() {
        return Ok(());
    }
    Err(RunError::Changed { path: folder.to_owned(), changes })
}
