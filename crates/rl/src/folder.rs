//! A run's folder: `rl.json`, `steps.jsonl`, `rollouts/`, `checkpoints/`, the product. Files appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use record::durable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use train::Requested;

use crate::error::RlError;
use crate::event::RlEvent;
use crate::settings::{Resolved, RlSettings};

/// The record's file.
pub const RECORD_FILE: &str = "rl.json";
/// The log's file.
pub(crate) const STEPS_FILE: &str = "steps.jsonl";
/// The largest JSON file of a run, bytes.
const JSON_BYTES_LIMIT: u64 = 1 << 30;

/// What was asked and what runs: `rl.json`, written before the first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RlRecord {
    /// Version of samebit.
    pub version: String,
    /// What was asked.
    pub requested: Requested<RlSettings>,
    /// What runs, and why.
    pub resolved: Resolved,
    /// Hash of the prompts or pairs as tokens.
    pub data: String,
    /// Mean reward of greedy completions of the held-out prompts before the first step.
    pub eval_reward: Option<f64>,
}

pub(crate) fn io<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> RlError + use<'a> {
    move |source| RlError::Io { action, path: path.to_owned(), source }
}

/// Writes a value as compact JSON: a step's rollouts are large.
pub(crate) fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<(), RlError> {
    let mut text = serde_json::to_vec(value).map_err(|error| RlError::Folder {
        path: folder.join(name),
        reason: format!("it cannot be written as JSON: {error}"),
    })?;
    text.push(b'\n');
    Ok(durable::write(folder, name, &text).map_err(Box::new)?)
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RlError> {
    let wrong = |reason| RlError::Folder { path: path.to_owned(), reason };
    let bytes = fs::metadata(path).map_err(io("read", path))?.len();
    if bytes > JSON_BYTES_LIMIT {
        return Err(wrong(format!("{bytes} bytes are over the limit of {JSON_BYTES_LIMIT}")));
    }
    let text = fs::read(path).map_err(io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}

/// Reads the record of a run.
///
/// # Errors
/// [`RlError::Folder`] where there is no run or it cannot be understood, [`RlError::Io`].
pub fn read_record(folder: &Path) -> Result<RlRecord, RlError> {
    let path = folder.join(RECORD_FILE);
    if !path.exists() {
        let reason = format!("there is no run of `samebit rl` here (no {RECORD_FILE})");
        return Err(RlError::Folder { path: folder.to_owned(), reason });
    }
    read_json(&path)
}

/// Begins a run's folder, which must hold nothing.
pub(crate) fn create(folder: &Path, record: &RlRecord) -> Result<(), RlError> {
    fs::create_dir_all(folder).map_err(io("create", folder))?;
    if let Some(entry) = fs::read_dir(folder).map_err(io("read", folder))?.next() {
        let name = entry.map_err(io("read", folder))?.file_name();
        let reason = format!(
            "the folder is not empty (it holds `{}`): resume the run there, or choose another folder",
            name.to_string_lossy()
        );
        return Err(RlError::Folder { path: folder.to_owned(), reason });
    }
    for name in [crate::store::ROLLOUTS, train::CHECKPOINTS] {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(io("create", &path))?;
    }
    write_json(folder, RECORD_FILE, record)
}

/// Takes a run's folder for this process, until the file is closed.
pub(crate) fn lock(folder: &Path) -> Result<File, RlError> {
    let path = folder.join(RECORD_FILE);
    let file = File::open(&path).map_err(io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(RlError::Folder {
            path: folder.to_owned(),
            reason: "it is in use by another run: wait for it, or stop it".into(),
        }),
        Err(fs::TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// Checks that the run in a folder is this one: settings but for those that change no bit, and data.
pub(crate) fn verify(folder: &Path, now: &RlRecord) -> Result<RlRecord, RlError> {
    /// Settings of training that a resumed run may have otherwise.
    const FREE: [&str; 6] = ["out", "data", "save_every", "keep_checkpoints", "threads", "memory"];
    let then = read_record(folder)?;
    let settings = |record: &RlRecord| {
        let mut value = serde_json::to_value(&record.resolved).unwrap_or_default();
        if let Some(train) = value.get_mut("train").and_then(|t| t.as_object_mut()) {
            train.retain(|key, _| !FREE.contains(&key.as_str()));
        }
        let mut flat = Vec::new();
        flatten("", &value, &mut flat);
        flat
    };
    let changed = |what: &str, was: &str, is: &str| RlError::Folder {
        path: folder.to_owned(),
        reason: format!(
            "the run cannot be resumed: {what} was {was} and is {is}. Put it back, or start another run"
        ),
    };
    let (was, is) = (settings(&then), settings(now));
    let other = was.iter().zip(&is).find(|(a, b)| a != b);
    if let Some(((key, was), (_, is))) = other {
        return Err(changed(&format!("`{key}`"), was, is));
    }
    for (what, was, is) in [
        ("the number of settings", &was.len().to_string(), &is.len().to_string()),
        ("the data (hash)", &then.data, &now.data),
        ("the version of samebit", &then.version, &now.version),
    ] {
        if was != is {
            return Err(changed(what, was, is));
        }
    }
    Ok(then)
}

/// Values by path, without the reasons why they were chosen.
fn flatten(path: &str, value: &serde_json::Value, out: &mut Vec<(String, String)>) {
    match value {
        serde_json::Value::Object(map) if map.contains_key("why") => {
            out.push((path.to_owned(), map.get("value").map_or(String::new(), |v| v.to_string())));
        }
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, out);
            }
        }
        other => out.push((path.to_owned(), other.to_string())),
    }
}

/// The log, kept to the lines of `steps` done steps.
pub(crate) struct StepsLog {
    path: PathBuf,
    file: File,
}

impl StepsLog {
    pub(crate) fn open(folder: &Path, steps: usize) -> Result<StepsLog, RlError> {
        let path = folder.join(STEPS_FILE);
        let text = if steps == 0 {
            String::new()
        } else {
            fs::read_to_string(&path).map_err(io("read", &path))?
        };
        let kept: Vec<&str> = text.split_inclusive('\n').take(steps).collect();
        if kept.len() < steps || kept.last().is_some_and(|line| !line.ends_with('\n')) {
            let reason = format!("fewer whole lines than the {steps} steps of the checkpoint");
            return Err(RlError::Folder { path, reason });
        }
        durable::write(folder, STEPS_FILE, kept.concat().as_bytes()).map_err(Box::new)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(io("open", &path))?;
        Ok(StepsLog { path, file })
    }

    pub(crate) fn append(&mut self, event: &RlEvent) -> Result<(), RlError> {
        let mut line = serde_json::to_vec(event).map_err(|error| RlError::Folder {
            path: self.path.clone(),
            reason: format!("a step cannot be written as JSON: {error}"),
        })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(io("write", &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), RlError> {
        self.file.sync_all().map_err(io("sync", &self.path))
    }
}
