//! Keeps a run's record while it goes: written whole before the first step, after it, at each checkpoint and at the end.

use std::fs::File;
use std::path::{Path, PathBuf};

use engine::Engine;
use record::{
    Change, Clock, Gate, Identity, KernelUse, PhaseBytes, RankMemory, Reading, Record, RecordError,
    Reserve, Rows, SigningKey, Status, TENSORS_FILE, TensorsAt, Verdict, durable,
};

use crate::contents;
use crate::error::{TrainError, of_ranks};
use crate::gates;
use crate::run_folder::{self, RunError};
use crate::surroundings::Surroundings;
use crate::tensors::{self, State};

/// The record of a run under way; its folder is this process's for as long. The first rank has it.
pub struct Recorder {
    folder: PathBuf,
    /// Given back when it is closed.
    _lock: File,
    record: Record,
    clock: Clock,
    tensors: Rows,
    /// The run's start as an earlier session recorded it.
    start: Option<State>,
    /// The state that this session goes on from, as it was recorded, until it is loaded.
    resumed: Option<State>,
    /// The state that this session began with, once it is known.
    began: Option<State>,
    /// Room to say how the run ended, also on a disk that has filled up.
    room: Option<Reserve>,
    /// Signs the seal.
    key: Option<SigningKey>,
}

/// Bytes that are held for the last record and the report.
pub(crate) const LAST_BYTES: u64 = 4 << 20;

impl Recorder {
    /// Begins the folder of a new run, which must hold nothing.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn create(
        folder: &Path,
        record: Record,
        surroundings: &Surroundings,
    ) -> Result<Recorder, RunError> {
        let lock = run_folder::create(folder)?;
        let recorder = Self::begin(folder, lock, record, surroundings, 0, Vec::new())?;
        run_folder::make_checkpoints(folder)?;
        Ok(recorder)
    }

    /// Goes on with the run of a folder, whose record would begin as `now`, asked once the folder is this process's; gives
    /// the steps of its newest checkpoint.
    ///
    /// # Errors
    /// [`RunError::Changed`] where it is not the same run and the change is not let pass, [`RunError::Finished`] where
    /// nothing is left to do, and others.
    pub fn resume<E: From<RunError>>(
        folder: &Path,
        now: impl FnOnce() -> Result<Record, E>,
        surroundings: &Surroundings,
        product: &Path,
    ) -> Result<(Recorder, usize), E> {
        let (record, lock) = unfinished(folder, product)?;
        let now = now()?;
        Ok(Self::go_on(record, lock, now, folder, surroundings, product)?)
    }

    fn go_on(
        before: Record,
        lock: File,
        now: Record,
        folder: &Path,
        surroundings: &Surroundings,
        product: &Path,
    ) -> Result<(Recorder, usize), RunError> {
        // Before anything is written: what is refused stays as it is.
        let (changed, newest) = verify(folder, &before, &now, surroundings)?;
        run_folder::make_checkpoints(folder)?;
        run_folder::clean(folder)?;
        // A run that was killed between its product and its end makes both again, to the same bytes.
        durable::remove_folder(product)?;
        let done = newest.map_or(0, |(step, _)| step);
        let record = contents::renewed(before, now);
        let recorder = Self::begin(folder, lock, record, surroundings, done, changed)?;
        Ok((recorder, done))
    }

    /// Writes a new session of a record, in which `done` steps are done.
    fn begin(
        folder: &Path,
        lock: File,
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
        record.sessions.push(surroundings.session(&record.identity, &clock, done, changed));
        for check in &surroundings.checks {
            record.note(check.clone());
        }
        record.note(held(room.as_ref()));
        // Of steps that are made again.
        record.gates.retain(|gate| gate.step <= done);
        record.tensors.retain(|at| done > 0 && at.step <= done);
        // First of all files: a process that is killed before the others leaves a run that goes on, and none that is broken.
        record::set_seal_aside(folder)?;
        record.write(folder)?;
        record::unseal(folder)?;
        let patch = record::patch_file(record.sessions.len());
        if let (Some(written), Some(session)) =
            (surroundings.git.patch(), record.sessions.last_mut())
        {
            written.write(folder, &patch)?;
            // One that is too large is known by its hash.
            session.patch = folder.join(&patch).exists().then_some(patch);
        }
        let (mut start, mut resumed) = (None, None);
        let tensors = Rows::open(folder, TENSORS_FILE, |state: &State| {
            let stays = done > 0 && state.step <= done;
            if stays && start.is_none() {
                start = Some(state.clone());
            }
            if stays && state.step == done {
                resumed = Some(state.clone());
            }
            stays
        })?;
        // A process that was killed between a checkpoint and its record left that one's hash out.
        if !record.tensors.iter().any(|at| at.step == done) {
            let at = |state: &State| TensorsAt { step: done, sha256: state.sha256() };
            record.tensors.extend(resumed.as_ref().map(at));
        }
        record.write(folder)?;
        let folder = folder.to_owned();
        let began = None;
        Ok(Recorder {
            folder,
            _lock: lock,
            record,
            clock,
            tensors,
            start,
            resumed,
            began,
            room,
            key,
        })
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The run's identity.
    pub(crate) fn identity(&self) -> &Identity {
        &self.record.identity
    }

    /// Notes a gate; one that failed stops the run.
    ///
    /// # Errors
    /// [`TrainError::Gate`].
    pub fn gate(&mut self, gate: Gate) -> Result<(), TrainError> {
        let (failed, step) = (gate.verdict == Verdict::Failed, gate.step);
        self.note(gate.clone());
        if failed {
            return Err(TrainError::Gate { step, gate: Box::new(gate) });
        }
        Ok(())
    }

    /// Notes a gate of a run that goes on, or has failed already.
    pub fn note(&mut self, gate: Gate) {
        self.record.note(gate);
    }

    /// Hashes every tensor after `step` steps with `updates` updates, on the first rank while the others follow.
    ///
    /// The first time it is what this session begins with, before any step: it must be what was recorded where the
    /// session goes on from a checkpoint. Later it gates that each frozen tensor is as the session began with it, and
    /// that each trained one has changed since the run's start. Where no step was made since, nothing is judged.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn tensors(
        &mut self,
        engine: &Engine<'_>,
        step: usize,
        updates: u64,
    ) -> Result<(), TrainError> {
        if self.began.as_ref().is_some_and(|began| began.step == step) {
            return Ok(());
        }
        let now = State::of(engine, step).map_err(of_ranks)?;
        let (trained, frozen) = tensors::names(engine);
        let Some(began) = &self.began else { return self.begin_with(now, &trained) };
        let mut gates = vec![gates::frozen(&now.differing(began, &frozen), frozen.len())];
        if updates >= COMPARABLE_UPDATES {
            let start = self.start.as_ref().unwrap_or(began);
            gates.push(gates::changed(&now.same(start, &trained), trained.len()));
        }
        self.keep(&now)?;
        gates.into_iter().try_for_each(|gate| self.gate(gate.at(step)))
    }

    /// Takes the state that this session begins with.
    fn begin_with(&mut self, now: State, trained: &[String]) -> Result<(), TrainError> {
        let gate = self.resumed.take().map(|recorded| {
            gates::resumed(&now.differing(&recorded, trained), trained.len()).at(now.step)
        });
        if gate.is_none() {
            self.keep(&now)?;
        }
        self.began = Some(now);
        gate.map_or(Ok(()), |gate| self.gate(gate))
    }

    /// Adds a state to the record.
    fn keep(&mut self, state: &State) -> Result<(), RecordError> {
        self.tensors.append(state)?;
        self.tensors.sync()?;
        self.record.tensors.push(TensorsAt { step: state.step, sha256: state.sha256() });
        Ok(())
    }

    /// Takes what every rank holds by now. On the first rank, while the others follow.
    ///
    /// # Errors
    /// Another rank failed.
    pub(crate) fn memory(&mut self, engine: &Engine<'_>) -> Result<(), TrainError> {
        let lease = self.record.memory.lease_bytes;
        self.record.memory = contents::memory(engine, lease).map_err(of_ranks)?;
        Ok(())
    }

    /// Takes what ranks hold by now, where whoever runs knows it.
    pub fn holds(&mut self, ranks: Vec<RankMemory>, phases: Vec<PhaseBytes>) {
        (self.record.memory.ranks, self.record.memory.phases) = (ranks, phases);
    }

    /// Programs of an engine beside the one that the record began with.
    pub fn also_runs(&mut self, engine: &Engine<'_>) {
        self.record.programs.extend(contents::programs(engine));
    }

    /// Writes the record as things stand, with the kernels that ran.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn write(&mut self, kernels: Vec<KernelUse>) -> Result<(), RecordError> {
        self.refresh(kernels);
        self.record.write(&self.folder)
    }

    fn refresh(&mut self, kernels: Vec<KernelUse>) {
        self.clock.look(Reading::now());
        let (jumps, count) = self.clock.jumps();
        if let Some(session) = self.record.sessions.last_mut() {
            session.written = self.clock.looked();
            session.seconds = self.clock.elapsed().as_secs_f64();
            session.clock_jumps = jumps.to_vec();
            session.clock_jump_count = count;
            session.kernels = kernels;
            session.peak_resident_bytes = record::peak_resident_bytes();
            self.record.arithmetic.kernels = session.kernels.clone();
            self.record.memory.peak_resident_bytes = session.peak_resident_bytes;
        }
    }

    /// Looks at the clocks, so that a jump is placed where it happens.
    pub fn tick(&mut self) {
        self.clock.look(Reading::now());
    }

    /// Writes how the run ended, and seals it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn conclude(&mut self, kernels: Vec<KernelUse>, status: Status) -> Result<(), RecordError> {
        self.record.status = status;
        self.room = None;
        self.refresh(kernels);
        let reported = record::report::write(&self.folder, &self.record);
        record::conclude(&self.folder, &self.record, self.key.as_ref())?;
        reported
    }
}

/// Whether the run of a folder may go on, as [`Recorder::resume`] finds it, and whether its newest checkpoint is whole;
/// nothing is written. Gives the steps of that checkpoint, and what changed and was let pass.
pub(crate) fn resumable<E: From<RunError>>(
    folder: &Path,
    now: impl FnOnce() -> Result<Record, E>,
    surroundings: &Surroundings,
    product: &Path,
) -> Result<(usize, Vec<Change>), E> {
    let (record, _lock) = unfinished(folder, product)?;
    let (changed, newest) = verify(folder, &record, &now()?, surroundings)?;
    if let Some((_, checkpoint)) = &newest {
        run_folder::verify_state(checkpoint)?;
    }
    Ok((newest.map_or(0, |(step, _)| step), changed))
}

/// Steps of a checkpoint, and its folder.
type Saved = (usize, PathBuf);

/// What changed since a record and was let pass, and the run's newest checkpoint, whose logs are the run's.
fn verify(
    folder: &Path,
    was: &Record,
    now: &Record,
    surroundings: &Surroundings,
) -> Result<(Vec<Change>, Option<Saved>), RunError> {
    let newest = run_folder::newest(folder)?;
    let has_state = newest.is_some();
    let allowed = &surroundings.allow_changed;
    let changed = run_folder::verify(folder, was, &now.identity, allowed, has_state)?;
    if let Some((step, checkpoint)) = &newest {
        run_folder::verify_checkpoint(folder, checkpoint, was)?;
        if *step > now.steps {
            let (path, step, steps) = (folder.to_owned(), *step, now.steps);
            return Err(RunError::BeyondTheEnd { path, step, steps });
        }
    }
    Ok((changed, newest))
}

/// Takes the folder of a run that is not finished, and its record.
fn unfinished(folder: &Path, product: &Path) -> Result<(Record, File), RunError> {
    // A folder without a run gets no lock file.
    Record::read(folder)?;
    let lock = run_folder::lock(folder)?;
    // Before the lock another process may have gone on with it, to its end.
    let record = Record::read(folder)?;
    let Status::Finished { .. } = record.status else { return Ok((record, lock)) };
    let (path, product) = (folder.to_owned(), product.to_owned());
    Err(RunError::Finished { path, product })
}

/// Updates after which everything that LoRA trains has had gradients: A moves one update after B.
const COMPARABLE_UPDATES: u64 = 2;

/// Whether the room to say how the run ends is held, and not only counted.
fn held(room: Option<&Reserve>) -> Gate {
    const NAME: &str = "disk space is held";
    match room {
        Some(room) if !room.is_held() => Gate::skipped(
            NAME,
            "this file system cannot hold it: a disk that fills up may end a save",
        ),
        _ => Gate::ok(NAME, format!("{LAST_BYTES} bytes to say how the run ends")),
    }
}
