//! Keeps a run's record while it goes: written whole before the first step, after it, at each checkpoint and at the end.

use std::path::{Path, PathBuf};

use engine::{Engine, EngineError, Part};
use program::ParamId;
use record::{
    Change, Clock, Gate, Reading, Record, RecordError, Reserve, Rows, Session, SigningKey, Status,
    TENSORS_FILE, TensorsAt, Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::contents;
use crate::error::{TrainError, of_ranks};
use crate::gates;
use crate::surroundings::Surroundings;

/// A line of `tensors.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TensorsLine {
    /// Steps done.
    step: usize,
    /// SHA-256 of each trained tensor's f32 values, little-endian, by name.
    tensors: Map<String, Value>,
}

impl TensorsLine {
    /// Over the lines `name sha256` of every tensor.
    fn sha256(&self) -> String {
        let mut whole = Sha256::new();
        for (name, hash) in &self.tensors {
            whole.update(format!("{name} {}\n", hash.as_str().unwrap_or_default()));
        }
        record::hex(&whole.finalize())
    }
}

/// The record of a run under way.
pub(crate) struct Recorder {
    folder: PathBuf,
    record: Record,
    clock: Clock,
    tensors: Rows,
    /// Trained tensors at the run's start.
    start: Option<TensorsLine>,
    /// Room to say how the run ended, also on a disk that has filled up.
    room: Option<Reserve>,
    /// Signs the seal.
    key: Option<SigningKey>,
}

/// Bytes that are held for the last record and the report.
pub(crate) const LAST_BYTES: u64 = 4 << 20;

impl Recorder {
    /// Writes a new session of a record, in which `done` steps are done.
    pub(crate) fn begin(
        folder: &Path,
        mut record: Record,
        surroundings: &Surroundings,
        done: usize,
        changed: Vec<Change>,
    ) -> Result<Recorder, RecordError> {
        // Before it says that it runs, what it takes to say how it ended.
        let room = Some(Reserve::hold(folder, "record", LAST_BYTES)?);
        let key = surroundings.signing_key.as_deref().map(record::read_signing_key).transpose()?;
        let clock = Clock::start(Reading::now());
        record.status = Status::Running;
        record.sessions.push(Session {
            process: record::ProcessId::current(),
            binary: surroundings.binary.clone(),
            from_step: done,
            started: clock.started(),
            written: clock.started(),
            seconds: 0.0,
            clock_jumps: Vec::new(),
            clock_jump_count: 0,
            changed,
            git: surroundings.git.clone(),
            patch: None,
            machine: surroundings.machine.clone(),
            device: surroundings.device.clone(),
            cache: surroundings.cache.clone(),
            kernels: Vec::new(),
            peak_resident_bytes: None,
        });
        let patch = record::patch_file(record.sessions.len());
        if let (Some(written), Some(session)) =
            (surroundings.git.patch(), record.sessions.last_mut())
        {
            written.write(folder, &patch)?;
            // One that is too large is known by its hash.
            session.patch = folder.join(&patch).exists().then_some(patch);
        }
        for check in &surroundings.checks {
            record.note(check.clone());
        }
        record.tensors.retain(|at| done > 0 && at.step <= done);
        let (mut start, mut last) = (None, None);
        let tensors = Rows::open(folder, TENSORS_FILE, |line: &TensorsLine| {
            let stays = done > 0 && line.step <= done;
            if stays && start.is_none() {
                start = Some(line.clone());
            }
            if stays && line.step == done {
                last = Some(TensorsAt { step: done, sha256: line.sha256() });
            }
            stays
        })?;
        // A process that was killed between a checkpoint and its record left that one's hash out.
        if !record.tensors.iter().any(|at| at.step == done) {
            record.tensors.extend(last);
        }
        record.write(folder)?;
        record::unseal(folder)?;
        Ok(Recorder { folder: folder.to_owned(), record, clock, tensors, start, room, key })
    }

    /// Notes a gate; one that failed stops the run.
    pub(crate) fn gate(&mut self, gate: Gate) -> Result<(), TrainError> {
        let (failed, step) = (gate.verdict == Verdict::Failed, gate.step);
        self.record.note(gate.clone());
        if failed {
            return Err(TrainError::Gate { step, gate: Box::new(gate) });
        }
        Ok(())
    }

    /// Hashes every trained tensor after `step` steps; gives the names of those that are as at the start.
    pub(crate) fn tensors(
        &mut self,
        engine: &Engine<'_>,
        step: usize,
    ) -> Result<Vec<String>, TrainError> {
        if self.record.tensors.iter().any(|at| at.step == step) {
            return Ok(Vec::new());
        }
        let mut line = TensorsLine { step, tensors: Map::new() };
        for id in contents::trained(engine) {
            let name = engine.graph.param_info(id).name.to_string();
            let hash = sha256(engine, id).map_err(of_ranks)?;
            line.tensors.insert(name, Value::String(hash));
        }
        self.tensors.append(&line)?;
        self.tensors.sync()?;
        self.record.tensors.push(TensorsAt { step, sha256: line.sha256() });
        let Some(start) = &self.start else {
            self.start = Some(line);
            return Ok(Vec::new());
        };
        let same = |(name, hash): &(&String, &Value)| start.tensors.get(*name) == Some(*hash);
        Ok(line.tensors.iter().filter(same).map(|(name, _)| name.clone()).collect())
    }

    /// Takes what every rank holds by now. On the first rank, while the others follow.
    pub(crate) fn memory(&mut self, engine: &Engine<'_>) -> Result<(), TrainError> {
        let lease = self.record.memory.lease_bytes;
        self.record.memory = contents::memory(engine, lease).map_err(of_ranks)?;
        Ok(())
    }

    /// Hash of the frozen weights at the start.
    pub(crate) fn frozen(&self) -> &str {
        self.record.identity.hashes.get(contents::WEIGHTS).map_or("", String::as_str)
    }

    /// Writes the record as things stand.
    pub(crate) fn write(&mut self, engine: &Engine<'_>) -> Result<(), RecordError> {
        self.refresh(engine);
        self.record.write(&self.folder)
    }

    fn refresh(&mut self, engine: &Engine<'_>) {
        self.clock.look(Reading::now());
        let (jumps, count) = self.clock.jumps();
        if let Some(session) = self.record.sessions.last_mut() {
            session.written = self.clock.looked();
            session.seconds = self.clock.elapsed().as_secs_f64();
            session.clock_jumps = jumps.to_vec();
            session.clock_jump_count = count;
            session.kernels = contents::kernels(engine);
            session.peak_resident_bytes = record::peak_resident_bytes();
            self.record.arithmetic.kernels = session.kernels.clone();
            self.record.memory.peak_resident_bytes = session.peak_resident_bytes;
        }
    }

    /// Looks at the clocks, so that a jump is placed where it happens.
    pub(crate) fn tick(&mut self) {
        self.clock.look(Reading::now());
    }

    /// Writes how the run ended, and seals it.
    pub(crate) fn conclude(
        &mut self,
        engine: &Engine<'_>,
        status: Status,
    ) -> Result<(), RecordError> {
        self.record.status = status;
        self.room = None;
        self.refresh(engine);
        let reported = record::report::write(&self.folder, &self.record);
        record::conclude(&self.folder, &self.record, self.key.as_ref())?;
        reported
    }
}

fn sha256(engine: &Engine<'_>, id: ParamId) -> Result<String, EngineError> {
    let mut hasher = Sha256::new();
    engine.visit_served(id, Part::Value, |numbers| {
        hasher.update(bytemuck::cast_slice(numbers));
        Ok::<(), EngineError>(())
    })?;
    Ok(record::hex(&hasher.finalize()))
}

/// Whether what LoRA trains has had gradients for two steps: A moves one step after B.
pub(crate) fn may_be_compared(step: usize) -> bool {
    step >= 2
}

/// The gate over [`Recorder::tensors`].
pub(crate) fn changed(engine: &Engine<'_>, unchanged: &[String]) -> Gate {
    gates::changed(unchanged, contents::trained(engine).count())
}
