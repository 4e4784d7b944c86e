//! What a run's record holds beside the run: the code, the binary, the machine, what was checked before.

use std::collections::BTreeMap;
use std::path::PathBuf;

use record::{
    Binary, Change, Clock, Gate, Git, Identity, Machine, ProcessId, RecordError, Session,
};
use serde_json::Value;

/// Gathered by whoever starts the run, as it is when the run starts.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The working directory: relative paths of settings count from it.
    pub directory: PathBuf,
    /// The code that it holds.
    pub git: Git,
    /// The program that runs.
    pub binary: Binary,
    /// The machine.
    pub machine: Machine,
    /// What computes, in words: `cpu, avx512, 2 threads`.
    pub device: String,
    /// Hashes that join the run's identity beside those of data, weights and programs: `template`, `tokenizer`.
    pub hashes: BTreeMap<String, String>,
    /// What the encode cache did; null where there was none.
    pub cache: Value,
    /// Checks made before the run.
    pub checks: Vec<Gate>,
    /// Changes that a resumed run lets pass, by key: see [`record::Change::allowed_by`].
    pub allow_changed: Vec<String>,
    /// File of the key that signs the seal of the run.
    pub signing_key: Option<PathBuf>,
}

impl Surroundings {
    /// This process in its working directory, with nothing checked.
    ///
    /// # Errors
    /// [`RecordError::Io`]: the working directory or the binary cannot be read.
    pub fn current() -> Result<Surroundings, RecordError> {
        let directory = std::env::current_dir().map_err(|source| RecordError::Io {
            action: "find",
            path: ".".into(),
            source,
        })?;
        Ok(Surroundings {
            git: Git::of(&directory),
            directory,
            binary: Binary::current()?,
            machine: Machine::current(),
            device: String::new(),
            hashes: BTreeMap::new(),
            cache: Value::Null,
            checks: Vec::new(),
            allow_changed: Vec::new(),
            signing_key: None,
        })
    }

    /// The session of a run that this process begins after `done` steps; its patch is not kept yet.
    pub(crate) fn session(
        &self,
        identity: &Identity,
        clock: &Clock,
        done: usize,
        changed: Vec<Change>,
    ) -> Session {
        Session {
            process: ProcessId::current(),
            binary: self.binary.clone(),
            from_step: done,
            identity: identity.hash(),
            started: clock.started(),
            written: clock.started(),
            seconds: 0.0,
            clock_jumps: Vec::new(),
            clock_jump_count: 0,
            changed,
            git: self.git.clone(),
            patch: None,
            machine: self.machine.clone(),
            device: self.device.clone(),
            cache: self.cache.clone(),
            kernels: Vec::new(),
            peak_resident_bytes: None,
        }
    }
}
