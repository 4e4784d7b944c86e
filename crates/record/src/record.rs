//! `record.json`: what was asked, what ran and why, and what came of it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::ClockJump;
use crate::durable;
use crate::error::RecordError;
use crate::gate::Gate;
use crate::git::Git;
use crate::identity::{Change, Identity};
use crate::machine::{Binary, Machine};
use crate::process::{Life, ProcessId};
use crate::rows::STEPS_FILE;
use crate::seal::{LOCK_FILE, SEAL_FILE};

/// The record's file.
pub const RECORD_FILE: &str = "record.json";
/// The patch of a dirty tree.
pub const PATCH_FILE: &str = "changes.patch";
/// The file of a session's patch, sessions counted from 1.
pub fn patch_file(session: usize) -> String {
    match session {
        1 => PATCH_FILE.to_owned(),
        later => format!("changes-{later}.patch"),
    }
}

/// The format that this version writes and reads.
pub const FORMAT: u32 = 2;

/// The record of a run. Everything in it comes from what was executed: it is written before the first step, after it,
/// at each checkpoint and at the end, each time whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of samebit of the last session.
    pub version: String,
    /// What kind of run: `train`, `rl`.
    pub kind: String,
    /// How it stands.
    pub status: Status,
    /// Each start and resumption, oldest first; the last one is, or was, at work.
    pub sessions: Vec<Session>,
    /// Where the last session was begun: relative paths of its settings count from here.
    pub directory: PathBuf,
    /// The code that the directory held.
    pub git: Git,
    /// The machine of the last session.
    pub machine: Machine,
    /// Every setting: asked, run, and why.
    pub settings: Vec<Setting>,
    /// What makes the run this run: with the same identity it gives the same bytes.
    pub identity: Identity,
    /// BLAKE3 of each program's listing as it ran (what was kept and recomputed included), by name.
    pub programs: BTreeMap<String, String>,
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Adapters that were attached, by layer, as the graph that ran has them.
    pub adapters: Vec<LayerAdapters>,
    /// Optimizer steps of the whole run.
    pub steps: usize,
    /// Parameters that are trained.
    pub trained_parameters: usize,
    /// The data.
    pub data: DataRecord,
    /// Bytes by kind: planned, and as the engine has allocated them.
    pub memory: Memory,
    /// Every check and gate with its figure, in the order in which they first ran.
    pub gates: Vec<Gate>,
    /// Every tensor at the start, at each checkpoint and at the end; the tensors one by one are in `tensors.jsonl`.
    pub tensors: Vec<TensorsAt>,
}

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Status {
    /// A process is at it, or died at it: see [`Record::standing`].
    Running,
    /// Every step is done, or an early stop ended it.
    Finished {
        /// Steps done.
        step: usize,
        /// Its adapter or model, relative to the run's folder.
        product: PathBuf,
        /// Why it ended before its last step.
        early: Option<String>,
    },
    /// It was asked to stop and made a checkpoint.
    Stopped {
        /// Steps done.
        step: usize,
    },
    /// It failed. Nothing of the failed step was applied.
    Failed {
        /// The step that failed, from 1; absent where none was begun.
        step: Option<usize>,
        /// Where the step's samples come from; the first of them.
        samples: Vec<String>,
        /// What went wrong.
        error: String,
    },
}

impl Status {
    /// Whether a run in this state has a seal for certain: a failed one may have had no room for it.
    pub fn is_sealed(&self) -> bool {
        matches!(self, Status::Finished { .. } | Status::Stopped { .. })
    }

    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Finished { .. } => "finished",
            Status::Stopped { .. } => "stopped",
            Status::Failed { .. } => "failed",
        }
    }
}

/// How a run stands, its process looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As its status says.
    As(Status),
    /// It says that it runs, and its process does not: it can be resumed.
    Dead(String),
    /// It says that it runs, and its process cannot be looked up from here.
    Unknown(String),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Standing::As(status) => status.name(),
            Standing::Dead(_) => "dead",
            Standing::Unknown(_) => "unknown",
        })
    }
}

/// One process's work on the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The process.
    pub process: ProcessId,
    /// Its program.
    pub binary: Binary,
    /// Steps that were done when it began.
    pub from_step: usize,
    /// Hash of the run's identity as it was from here on ([`Identity::hash`]).
    #[serde(default)]
    pub identity: String,
    /// The wall clock at its start, RFC 3339 in UTC.
    pub started: String,
    /// The wall clock when it last wrote the record.
    pub written: String,
    /// Seconds from start to then by the steady clock: the wall clock may jump.
    pub seconds: f64,
    /// The first jumps of the wall clock against the steady one (a sleep of the machine counts as one).
    pub clock_jumps: Vec<ClockJump>,
    /// How many there were.
    pub clock_jump_count: usize,
    /// What had changed since the session before, and was let pass.
    pub changed: Vec<Change>,
    /// The code in the working directory.
    pub git: Git,
    /// The file with what the code has that its commit has not, where it has such.
    pub patch: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// What computed, such as `cpu, Avx512, 2 threads`.
    pub device: String,
    /// What the encode cache did.
    pub cache: Value,
    /// Kernels that operations took in it.
    pub kernels: Vec<KernelUse>,
    /// The most that the first rank's process has held, where the system tells.
    pub peak_resident_bytes: Option<usize>,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Its key.
    pub key: String,
    /// As it was asked for; null where a default was taken.
    pub requested: Value,
    /// Where it was asked for: a file, or `flag`.
    pub source: Value,
    /// As it ran; null where the mode has none.
    pub resolved: Value,
    /// Why.
    pub why: String,
}

/// The arithmetic as it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// The profile, such as `cpu-f32`: it alone decides the bits.
    pub profile: String,
    /// What ran it, such as `cpu, Avx512, 2 threads`.
    pub device: String,
    /// Kernels that operations took, counted as they ran.
    pub kernels: Vec<KernelUse>,
}

/// One way that operations took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelUse {
    /// The program: `train`, `optimizer`, …
    pub program: String,
    /// The operation, such as `Attention` or `MatMul q`.
    pub op: String,
    /// The kernel that ran it.
    pub kernel: String,
    /// Layers that took it, such as `0-29` or `0,4-7`; empty for operations outside layers.
    pub layers: String,
    /// How many times.
    pub times: u64,
}

/// Adapters of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerAdapters {
    /// The layer; absent outside layers.
    pub layer: Option<usize>,
    /// Paths of the adapted modules.
    pub modules: Vec<String>,
    /// Their rank.
    pub rank: usize,
    /// Their scale.
    pub scale: f64,
}

/// The data as it was encoded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataRecord {
    /// Samples.
    pub samples: usize,
    /// Tokens.
    pub tokens: usize,
    /// Tokens that are learnt.
    pub supervised: usize,
    /// What encoding found, truncation included.
    pub report: Value,
    /// How the first epoch fills its micro-batches.
    pub packing: Value,
    /// Hash of which samples each step sees.
    #[serde(default)]
    pub order: String,
    /// What the encode cache did.
    pub cache: Value,
    /// Samples held out for evaluation, and how they were chosen.
    pub evaluation: Value,
}

/// Memory, planned and used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Of each distinct rank, in the order of ranks; with phases, in the one that holds most.
    pub ranks: Vec<RankMemory>,
    /// By rank and phase, where training and rollout share the memory in turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseBytes>,
    /// The lease of a rank, where there is one.
    pub lease_bytes: Option<usize>,
    /// The most that the first rank's process has held, where the system tells.
    pub peak_resident_bytes: Option<usize>,
}

impl Memory {
    /// Whether the first rank is not the only one.
    pub fn has_several_ranks(&self) -> bool {
        self.ranks.iter().any(|of| of.ranks != "0")
    }
}

/// Memory of ranks that planned and used the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// The ranks, such as `0` or `0-3,6`.
    pub ranks: String,
    /// Bytes on each of them, by kind.
    pub kinds: Vec<KindBytes>,
}

/// Bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes {
    /// The ledger's row.
    pub kind: String,
    /// In the plan.
    pub planned_bytes: usize,
    /// Allocated by the engine.
    pub used_bytes: usize,
}

/// Bytes that a rank holds in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBytes {
    /// The rank of the world.
    pub rank: usize,
    /// `train`, `sync`, `rollout`.
    pub phase: String,
    /// In the plan.
    pub planned_bytes: usize,
    /// Allocated by its engines.
    pub used_bytes: usize,
}

/// Every tensor after so many steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorsAt {
    /// Steps done; 0 is the start.
    pub step: usize,
    /// SHA-256 over the lines `name sha256` of every tensor, in the model's order.
    pub sha256: String,
}

impl Record {
    /// Reads the record of a run.
    ///
    /// # Errors
    /// [`RecordError::NoRun`], [`RecordError::Io`], [`RecordError::Malformed`], [`RecordError::Format`].
    pub fn read(folder: &Path) -> Result<Record, RecordError> {
        let path = folder.join(RECORD_FILE);
        if !path.exists() {
            return Err(RecordError::NoRun { path: folder.to_owned(), file: RECORD_FILE });
        }
        let value: Value = durable::read_json(&path).map_err(damaged)?;
        let Some(found) = value["format"].as_u64() else {
            let reason = "it has no number `format`".to_owned();
            return Err(damaged(RecordError::Malformed { path, reason }));
        };
        if found != u64::from(FORMAT) {
            let version = value["version"].as_str().unwrap_or("unknown").to_owned();
            return Err(RecordError::Format { path, found, known: FORMAT, version });
        }
        serde_json::from_value(value)
            .map_err(|error| damaged(RecordError::Malformed { path, reason: error.to_string() }))
    }

    /// Writes the record whole, in place of the one before.
    ///
    /// # Errors
    /// As [`durable::write_json`].
    pub fn write(&self, folder: &Path) -> Result<(), RecordError> {
        durable::write_json(folder, RECORD_FILE, self)
    }

    /// How the run stands: a run that says that it runs is looked up by its process's number and start.
    pub fn standing(&self) -> Standing {
        if self.status != Status::Running {
            return Standing::As(self.status.clone());
        }
        match self.sessions.last().map(|session| session.process.life()) {
            Some(Life::Alive) => Standing::As(Status::Running),
            Some(Life::Dead(why)) => Standing::Dead(why),
            Some(Life::Unknown(why)) => Standing::Unknown(why),
            None => Standing::Dead("no process ever began it".into()),
        }
    }

    /// A setting as it ran.
    pub fn setting(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }

    /// Notes a check or gate: one line a name, with the latest figure, how often it ran, and a failure kept.
    pub fn note(&mut self, gate: Gate) {
        match self.gates.iter_mut().find(|known| known.name == gate.name) {
            Some(known) => known.again(gate),
            None => self.gates.push(gate),
        }
    }
}

/// Says of a record that cannot be understood what can be done.
fn damaged(error: RecordError) -> RecordError {
    match error {
        RecordError::Malformed { path, reason } => {
            let advice = "the record is damaged: put it back from a copy. Logs and checkpoints beside it are untouched";
            RecordError::Malformed { path, reason: format!("{reason}; {advice}") }
        }
        other => other,
    }
}

/// Whether a folder is a run's: it holds a record, whatever became of it, or what only a run has beside one.
pub(crate) fn is_run(folder: &Path) -> bool {
    let has = |name: &str| fs::symlink_metadata(folder.join(name)).is_ok();
    has(RECORD_FILE) || has(SEAL_FILE) || (has(STEPS_FILE) && has(LOCK_FILE))
}

/// Folders of runs under a root, sorted; `depth` levels below the root are looked at.
///
/// # Errors
/// [`RecordError::Io`] for the root itself; a folder below it that cannot be read holds no run that could be shown.
pub fn find(root: &Path, depth: usize) -> Result<Vec<PathBuf>, RecordError> {
    let mut found = Vec::new();
    let mut waiting = vec![(root.to_owned(), depth)];
    fs::read_dir(root).map_err(crate::error::io("read", root))?;
    while let Some((folder, left)) = waiting.pop() {
        if is_run(&folder) {
            found.push(folder);
            continue;
        }
        let entries = if left == 0 { None } else { fs::read_dir(&folder).ok() };
        for entry in entries.into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push((entry.path(), left - 1));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_has_a_patch_of_its_own() {
        assert_eq!(
            [1, 2, 10].map(patch_file),
            ["changes.patch", "changes-2.patch", "changes-10.patch"]
        );
    }

    #[test]
    fn what_ended_as_it_should_is_sealed() {
        for (status, sealed) in [
            (Status::Running, false),
            (Status::Finished { step: 4, product: "adapter".into(), early: None }, true),
            (Status::Stopped { step: 2 }, true),
            (Status::Failed { step: None, samples: vec![], error: "e".into() }, false),
        ] {
            assert_eq!(status.is_sealed(), sealed, "{}", status.name());
        }
    }

    #[test]
    fn ranks_are_several_where_any_is_not_the_first() {
        let memory = |of: &[&str]| {
            let ranks = of
                .iter()
                .map(|ranks| RankMemory { ranks: (*ranks).into(), ..RankMemory::default() });
            Memory { ranks: ranks.collect(), ..Memory::default() }
        };
        assert!(!memory(&[]).has_several_ranks() && !memory(&["0"]).has_several_ranks());
        assert!(memory(&["0-3"]).has_several_ranks() && memory(&["0", "1"]).has_several_ranks());
    }
}
