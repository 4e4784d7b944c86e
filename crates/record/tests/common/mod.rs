//! A run's folder as a trainer leaves it.

#![allow(dead_code)] // not every test file needs all of it

use std::fs;
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use record::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A finished run of a few steps.
pub(crate) struct Folder {
    root: TempDir,
    name: &'static str,
}

pub(crate) fn record() -> Record {
    let clock = Clock::start(Reading::now());
    Record {
        format: FORMAT,
        version: "0.1.0".into(),
        kind: "train".into(),
        status: Status::Finished { step: 4, product: "adapter".into(), early: None },
        sessions: vec![Session {
            process: ProcessId::current(),
            binary: Binary { path: "samebit".into(), bytes: 1, blake3: "bb".into(), built: None },
            from_step: 0,
            identity: String::new(),
            started: clock.started(),
            written: clock.looked(),
            seconds: 1.0,
            clock_jumps: Vec::new(),
            clock_jump_count: 0,
            changed: Vec::new(),
            git: Git::NoRepository,
            patch: None,
            machine: Machine::current(),
            device: "cpu".into(),
            cache: Value::Null,
            kernels: Vec::new(),
            peak_resident_bytes: Some(1 << 20),
        }],
        directory: "/somewhere".into(),
        git: Git::NoRepository,
        machine: Machine::current(),
        settings: vec![setting("model", json!("tiny <model>")), setting("lr", json!(1e-3))],
        identity: Identity {
            settings: [("lr".to_owned(), json!(1e-3))].into(),
            hashes: [("data".to_owned(), "aa".to_owned())].into(),
        },
        programs: [("train".to_owned(), "cc".to_owned())].into(),
        arithmetic: Arithmetic {
            profile: "cpu-f32".into(),
            device: "cpu".into(),
            kernels: vec![KernelUse {
                program: "train".into(),
                op: "MatMul q".into(),
                kernel: "avx512 packed f32".into(),
                layers: "0-3".into(),
                times: 8,
            }],
        },
        adapters: Vec::new(),
        steps: 4,
        trained_parameters: 10,
        data: DataRecord { samples: 3, tokens: 30, supervised: 12, ..DataRecord::default() },
        memory: Memory {
            ranks: vec![ranks("0", 64)],
            phases: Vec::new(),
            lease_bytes: Some(128),
            peak_resident_bytes: Some(1 << 20),
        },
        gates: vec![
            Gate::ok("loss within bounds", "2.0 of 11"),
            Gate::skipped("smoke", "not asked"),
        ],
        tensors: vec![TensorsAt { step: 0, sha256: "00".into() }],
    }
}

/// Memory of ranks that hold nothing but weights.
pub(crate) fn ranks(ranks: &str, bytes: usize) -> RankMemory {
    let kinds = vec![KindBytes { kind: "weights".into(), planned_bytes: bytes, used_bytes: bytes }];
    RankMemory { ranks: ranks.into(), kinds }
}

pub(crate) fn setting(key: &str, value: Value) -> Setting {
    Setting {
        key: key.into(),
        requested: value.clone(),
        source: json!("flag"),
        resolved: value,
        why: "flag".into(),
    }
}

/// A line of `steps.jsonl`.
pub(crate) fn step(step: usize, loss: f64, seconds: f64) -> Value {
    json!({"step": step, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens": 100, "seconds": seconds})
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Self::of(
            &record(),
            &[step(1, 3.0, 0.5), step(2, 2.5, 0.5), step(3, 2.2, 0.5), step(4, 2.1, 0.5)],
        )
    }

    pub(crate) fn of(record: &Record, steps: &[Value]) -> Folder {
        let folder = Folder { root: tempfile::tempdir().unwrap(), name: "run" };
        let path = folder.path();
        fs::create_dir_all(path.join("checkpoints/step-2")).unwrap();
        fs::create_dir_all(path.join("adapter")).unwrap();
        record.write(&path).unwrap();
        folder.lines(STEPS_FILE, steps);
        folder.lines(
            TENSORS_FILE,
            &[
                json!({"step": 0, "tensors": {"a": "1", "b": "2"}}),
                json!({"step": 2, "tensors": {"a": "3", "b": "4"}}),
            ],
        );
        fs::write(path.join("checkpoints/step-2/state.json"), "{}").unwrap();
        fs::write(path.join("checkpoints/step-2/state.safetensors"), [1, 2, 3]).unwrap();
        fs::write(path.join("adapter/adapter_model.safetensors"), [4, 5]).unwrap();
        folder
    }

    /// Ends the run as its record says, with a seal.
    pub(crate) fn conclude(&self, key: Option<&SigningKey>) -> Seal {
        conclude(&self.path(), &Record::read(&self.path()).unwrap(), key).unwrap()
    }

    /// The root, in which the run is one folder.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.path().join(self.name)
    }

    pub(crate) fn lines(&self, name: &str, lines: &[Value]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(self.path().join(name), text).unwrap();
    }

    /// Every file under the run, by path from it.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut waiting = vec![self.path()];
        while let Some(place) = waiting.pop() {
            for entry in fs::read_dir(place).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}
