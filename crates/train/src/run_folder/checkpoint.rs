//! `checkpoints/step-N`: what resuming after N steps takes.
//!
//! `state.safetensors` holds, for every trained parameter, its value and its two moments as f32, so that resuming
//! continues the same bits; `state.json` holds the position and the hash of the other file. Both are written to a
//! folder beside the target, synced, and renamed.

use std::fs::{self, File, Permissions};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use engine::{Engine, EngineError, Part};
use formats::Dtype;
use formats::safetensors::{self, Header, OutputTensor, Tensor};
use program::ParamId;
use record::durable::{self, WRITING, sync_folder};
use record::{Identity, Record, hash_file};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::error::{RunError, io};
use super::logs::Logs;

/// The folder of checkpoints in a run's folder.
pub const CHECKPOINTS: &str = "checkpoints";
const STATE_FILE: &str = "state.safetensors";
const POSITION_FILE: &str = "state.json";

#[derive(Serialize, Deserialize)]
struct Position<P> {
    /// Steps done.
    step: usize,
    /// What the loop needs besides.
    progress: P,
    /// BLAKE3 of the state file.
    state_blake3: String,
    /// The run's logs so far.
    logs: Logs,
    /// Hash of the run's identity ([`record::Identity::hash`]).
    identity: String,
}

/// What is saved of a parameter, in order.
const PARTS: [Part; 3] = [Part::Value, Part::FirstMoment, Part::SecondMoment];

/// Elements of a parameter's tensors, padding rows included: whole ones, so that a run may go on at another topology.
fn shape(engine: &Engine<'_>, id: ParamId) -> [usize; 2] {
    let param = engine.graph.param_info(id);
    [param.padded_rows, param.cols]
}

/// Trained parameters with the names of their three tensors.
fn trained(engine: &Engine<'_>) -> Vec<(ParamId, [String; 3])> {
    let ids = engine.graph.param_ids();
    let trained = ids.filter(|&id| engine.blueprint.store.slot(id).state.is_some());
    trained
        .map(|id| {
            let name = &engine.graph.param_info(id).name;
            (id, [name.to_string(), format!("{name}.m"), format!("{name}.v")])
        })
        .collect()
}

/// Saves the state after `step` steps; gives its folder. On the first rank, while the others follow.
pub(super) fn save(
    folder: &Path,
    engine: &Engine<'_>,
    step: usize,
    progress: &impl Serialize,
    identity: &Identity,
) -> Result<PathBuf, RunError> {
    let checkpoints = folder.join(CHECKPOINTS);
    let target = at(folder, step);
    let staged = tempfile::Builder::new()
        .prefix(WRITING)
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(&checkpoints)
        .map_err(io("create a folder in", &checkpoints))?;
    let state = staged.path().join(STATE_FILE);
    safetensors::write(&state, &[], tensors(engine)).map_err(Box::new)?;
    let (state_blake3, logs) = (hash_file(&state)?, Logs::of(folder)?);
    let position = Position { step, progress, state_blake3, logs, identity: identity.hash() };
    durable::write_json(staged.path(), POSITION_FILE, &position)?;
    if target.exists() {
        // Of this very step, by a run that was resumed from an earlier one: the same bytes.
        fs::remove_dir_all(&target).map_err(io("replace", &target))?;
    }
    fs::rename(staged.path(), &target).map_err(io("rename a folder to", &target))?;
    // The folder has moved: there is nothing left for the guard to remove.
    let _moved = staged.keep();
    sync_folder(&checkpoints)?;
    Ok(target)
}

/// Each tensor is read from the engine when its turn comes to be written.
fn tensors<'a>(engine: &'a Engine<'_>) -> Vec<OutputTensor<'a>> {
    let mut tensors = Vec::new();
    for (id, names) in trained(engine) {
        for (part, name) in PARTS.into_iter().zip(names) {
            tensors.push(OutputTensor::new(name, Dtype::F32, shape(engine, id), move |writer| {
                engine.visit_served(id, part, |numbers| {
                    Ok(writer.write_all(bytemuck::cast_slice(numbers))?)
                })
            }));
        }
    }
    tensors
}

/// Bytes of a checkpoint, at most: three f32 tensors a trained parameter, and their names.
pub(crate) fn bytes(engine: &Engine<'_>) -> u64 {
    /// JSON about one tensor, without its name, and its part of what there is about the checkpoint.
    const ABOUT_BYTES: usize = 256;
    let of = |(id, names): (ParamId, [String; 3])| {
        let names: usize = names.iter().map(|name| name.len() + ABOUT_BYTES).sum();
        3 * size_of::<f32>() * shape(engine, id).iter().product::<usize>() + names
    };
    trained(engine).into_iter().map(of).sum::<usize>() as u64
}

/// Bytes that a run's folder holds of checkpoints, and of room for what is to come: its own, where it goes on.
///
/// # Errors
/// A folder is there and cannot be read.
pub(crate) fn held_bytes(folder: &Path) -> Result<u64, RunError> {
    let mut waiting = vec![folder.to_owned()];
    let mut held = 0;
    while let Some(place) = waiting.pop() {
        if !place.exists() {
            continue;
        }
        for entry in fs::read_dir(&place).map_err(io("read", &place))? {
            let path = entry.map_err(io("read", &place))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            let counts = place != folder || name == CHECKPOINTS || name.starts_with(WRITING);
            let about = fs::symlink_metadata(&path).map_err(io("look at", &path))?;
            match (counts, about.is_dir()) {
                (false, _) => (),
                (true, true) => waiting.push(path),
                (true, false) => held += about.len(),
            }
        }
    }
    Ok(held)
}

/// Checkpoints of a run, by steps done, oldest first.
///
/// # Errors
/// The folder of checkpoints cannot be read.
pub fn checkpoints(folder: &Path) -> std::io::Result<Vec<(usize, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder.join(CHECKPOINTS)) {
        // Where a run was killed before it made the folder.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if let Some(step) = name.strip_prefix("step-").and_then(|step| step.parse().ok()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

fn all(folder: &Path) -> Result<Vec<(usize, PathBuf)>, RunError> {
    checkpoints(folder).map_err(io("read", &folder.join(CHECKPOINTS)))
}

/// The folder of the checkpoint after `step` steps.
pub fn at(folder: &Path, step: usize) -> PathBuf {
    folder.join(CHECKPOINTS).join(format!("step-{step}"))
}

/// The newest checkpoint, if there is any.
pub(crate) fn newest(folder: &Path) -> Result<Option<(usize, PathBuf)>, RunError> {
    Ok(all(folder)?.pop())
}

/// Removes all but the `keep` newest checkpoints.
pub(super) fn prune(folder: &Path, keep: usize) -> Result<(), RunError> {
    let found = all(folder)?;
    for (_, path) in &found[..found.len().saturating_sub(keep)] {
        fs::remove_dir_all(path).map_err(io("remove", path))?;
    }
    Ok(())
}

/// Removes what interrupted writes left.
pub(crate) fn clean(folder: &Path) -> Result<(), RunError> {
    for place in [folder.to_owned(), folder.join(CHECKPOINTS)] {
        for entry in fs::read_dir(&place).map_err(io("read", &place))? {
            let path = entry.map_err(io("read", &place))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if name.starts_with(WRITING) {
                let removed =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(io("remove", &path))?;
            }
        }
    }
    Ok(())
}

/// Gives an engine the state of a checkpoint made after `step` steps; gives what the loop needs besides.
///
/// # Errors
/// [`RunError`]: it cannot be read, is damaged, or is another model's.
pub fn load<P: DeserializeOwned>(
    checkpoint: &Path,
    engine: &mut Engine<'_>,
    step: usize,
) -> Result<P, RunError> {
    let position: Position<P> = position(checkpoint)?;
    if position.step != step {
        return Err(RunError::State {
            path: checkpoint.join(POSITION_FILE),
            reason: format!("it says step {} in a folder for step {step}", position.step),
        });
    }
    State::open(intact(checkpoint, &position)?)?.load(engine)?;
    Ok(position.progress)
}

/// The state file of a checkpoint, which must be as it was written.
fn intact<P>(checkpoint: &Path, position: &Position<P>) -> Result<PathBuf, RunError> {
    let path = checkpoint.join(STATE_FILE);
    let found = hash_file(&path)?;
    if found != position.state_blake3 {
        return Err(RunError::Damaged { path, written: position.state_blake3.clone(), found });
    }
    Ok(path)
}

/// Refuses a checkpoint whose state is not as it was written.
pub(crate) fn verify_state(checkpoint: &Path) -> Result<(), RunError> {
    let position: Position<IgnoredAny> = position(checkpoint)?;
    intact(checkpoint, &position).map(drop)
}

/// What a checkpoint says of itself.
fn position<P: DeserializeOwned>(checkpoint: &Path) -> Result<Position<P>, RunError> {
    let path = checkpoint.join(POSITION_FILE);
    durable::read_json(&path).map_err(|error| RunError::Unusable {
        path: checkpoint.to_owned(),
        reason: error.to_string(),
    })
}

/// Refuses a checkpoint that was made with other logs than those of its run's folder, or by another run than that of the
/// record there: with settings and an identity that none of its sessions had.
pub(crate) fn verify_checkpoint(
    folder: &Path,
    checkpoint: &Path,
    record: &Record,
) -> Result<(), RunError> {
    let position: Position<IgnoredAny> = position(checkpoint)?;
    position.logs.verify(folder, checkpoint)?;
    if !record.sessions.iter().any(|session| session.identity == position.identity) {
        let reason = "it is another run's: no session of the record had its settings and its data";
        return Err(RunError::Unusable { path: checkpoint.to_owned(), reason: reason.into() });
    }
    Ok(())
}

/// Reads a checkpoint that was just made and compares it with the engine, byte for byte: nothing may be removed for it
/// before it is known to be good.
pub(super) fn compare(checkpoint: &Path, engine: &Engine<'_>) -> Result<u64, RunError> {
    let position: Position<IgnoredAny> = durable::read_json(&checkpoint.join(POSITION_FILE))?;
    let path = checkpoint.join(STATE_FILE);
    let found = hash_file(&path)?;
    if found != position.state_blake3 {
        let reason = format!("it hashes to {found} and was written as {}", position.state_blake3);
        return Err(RunError::Unfaithful { path, reason });
    }
    State::open(path)?.compare(engine)
}

/// An open state file.
struct State {
    path: PathBuf,
    file: File,
    tensors: Vec<Tensor>,
}

impl State {
    fn open(path: PathBuf) -> Result<State, RunError> {
        let file = File::open(&path).map_err(io("open", &path))?;
        let bytes = file.metadata().map_err(io("read", &path))?.len();
        let header = Header::read(BufReader::new(&file), bytes)
            .map_err(|error| RunError::State { path: path.clone(), reason: error.to_string() })?;
        Ok(State { path, file, tensors: header.tensors })
    }

    fn load(&self, engine: &mut Engine<'_>) -> Result<(), RunError> {
        let trained = trained(engine);
        if self.tensors.len() != 3 * trained.len() {
            let (has, takes) = (self.tensors.len(), 3 * trained.len());
            return Err(self.wrong(format!("it has {has} tensors and the model takes {takes}")));
        }
        for (id, [value, m, v]) in trained {
            let elements = shape(engine, id).iter().product();
            let read = |name: &str| self.read(name, elements);
            let (value, m, v) = (read(&value)?, read(&m)?, read(&v)?);
            engine.write_whole(id, &value);
            let written = engine.write_whole_moments(id, &m, &v);
            written.map_err(|error: EngineError| self.wrong(error.to_string()))?;
        }
        Ok(())
    }

    /// Bytes that were compared.
    fn compare(&self, engine: &Engine<'_>) -> Result<u64, RunError> {
        let mut compared = 0;
        for (id, names) in trained(engine) {
            for (part, name) in PARTS.into_iter().zip(names) {
                let read = self.read(&name, shape(engine, id).iter().product())?;
                let mut rest: &[u8] = bytemuck::cast_slice(&read);
                engine.visit_served(id, part, |numbers| {
                    let (mine, later) = rest.split_at(size_of_val(numbers));
                    rest = later;
                    if mine == bytemuck::cast_slice::<f32, u8>(numbers) {
                        return Ok(());
                    }
                    let reason = format!("`{name}` has other bytes than the run");
                    Err(RunError::Unfaithful { path: self.path.clone(), reason })
                })?;
                compared += size_of_val(&read[..]) as u64;
            }
        }
        Ok(compared)
    }

    fn read(&self, name: &str, elements: usize) -> Result<Vec<f32>, RunError> {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.ok_or_else(|| self.wrong(format!("it has no tensor `{name}`")))?;
        if tensor.dtype != Dtype::F32 || tensor.bytes != 4 * elements as u64 {
            let reason = format!(
                "`{name}` has {} bytes of {:?}, not {elements} of F32",
                tensor.bytes, tensor.dtype
            );
            return Err(self.wrong(reason));
        }
        let mut numbers = vec![0f32; elements];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(tensor.offset))
            .and_then(|_| file.read_exact(bytemuck::cast_slice_mut(&mut numbers)))
            .map_err(io("read", &self.path))?;
        Ok(numbers)
    }

    fn wrong(&self, reason: String) -> RunError {
        RunError::State { path: self.path.clone(), reason }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use engine::{Blueprint, Job, TrainShape};
    use families::{BuildOptions, LoraSpec, Train};
    use oracle::{Oracle, Precision};
    use program::keep::{Keep, Level};
    use program::{Rank, Topology};

    /// A tiny model with adapters whose values are the element's index.
    pub(in crate::run_folder) fn engine() -> Engine<'static> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../families/tests/golden/llama");
        let checkpoint = formats::Checkpoint::open(&model).unwrap();
        let spec = LoraSpec { r: 2, alpha: 4.0, rslora: false, targets: vec!["all-linear".into()] };
        let options = BuildOptions { train: Train::Lora(spec), ..BuildOptions::default() };
        let graph = families::build(checkpoint.config(), &options).unwrap().graph;
        let keep = Keep::uniform(Level::All);
        let shape = TrainShape { tokens: 8, segments: 2, accumulation: 1, keep, coef_known: true };
        let job = Job { train: Some(shape), ..Job::default() };
        let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &|_, _| 0);
        let executor = Box::new(Oracle::new(Precision::F32));
        let mut engine = Engine::new(graph, blueprint, executor).unwrap();
        for (id, _) in trained(&engine) {
            let count = engine.graph.param_info(id).elements();
            engine.write_param(id, &(0..count).map(|i| i as f32).collect::<Vec<_>>());
        }
        engine
    }

    fn saved(engine: &Engine<'_>) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(CHECKPOINTS)).unwrap();
        let checkpoint = save(folder.path(), engine, 3, &7, &Identity::default()).unwrap();
        (folder, checkpoint)
    }

    fn reason(result: Result<u64, RunError>) -> String {
        match result {
            Err(RunError::Unfaithful { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_written_reads_back_and_its_size_was_foreseen() {
        let engine = engine();
        let (folder, checkpoint) = saved(&engine);
        let elements: usize =
            trained(&engine).iter().map(|(id, _)| engine.graph.param_info(*id).elements()).sum();
        assert_eq!(compare(&checkpoint, &engine).unwrap(), 3 * 4 * elements as u64);
        let files = fs::read_dir(&checkpoint).unwrap();
        let used: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(used <= bytes(&engine) && 2 * used > bytes(&engine), "{used}");
        assert_eq!(held_bytes(folder.path()).unwrap(), used);
        assert_eq!(held_bytes(&folder.path().join("none")).unwrap(), 0);
        assert_eq!(newest(folder.path()).unwrap(), Some((3, checkpoint)));
    }

    #[test]
    fn a_byte_that_reads_back_otherwise_is_named() {
        let mut engine = engine();
        let (_folder, checkpoint) = saved(&engine);
        let (id, names) = trained(&engine).pop().unwrap();
        let mut values = engine.read_param(id);
        let last = values.len() - 1;
        values[last] = -values[last];
        engine.write_param(id, &values);
        assert_eq!(
            reason(compare(&checkpoint, &engine)),
            format!("`{}` has other bytes than the run", names[0])
        );
        values[last] = -values[last];
        engine.write_param(id, &values);
        compare(&checkpoint, &engine).unwrap();

        let state = checkpoint.join(STATE_FILE);
        let mut bytes = fs::read(&state).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&state, bytes).unwrap();
        assert!(reason(compare(&checkpoint, &engine)).contains("and was written as"));
    }

    #[test]
    fn a_state_that_is_not_as_it_was_written_is_damaged() {
        let (_folder, checkpoint) = saved(&engine());
        verify_state(&checkpoint).unwrap();
        let state = checkpoint.join(STATE_FILE);
        let mut bytes = fs::read(&state).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&state, bytes).unwrap();
        assert!(matches!(verify_state(&checkpoint), Err(RunError::Damaged { .. })));
    }

    #[test]
    fn a_run_without_a_folder_of_checkpoints_has_none_and_what_is_no_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(checkpoints(folder.path()).unwrap(), []);
        fs::write(folder.path().join(CHECKPOINTS), "").unwrap();
        let refused = checkpoints(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::NotADirectory);
    }
}
