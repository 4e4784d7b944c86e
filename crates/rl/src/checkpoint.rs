//! `checkpoints/step-N`: what resuming after N steps takes, whole tensors, so that any topology can go on from it.
//!
//! `state.safetensors` holds, for every trained parameter, its value and its two moments as f32; `state.json` the
//! position and the hash of the other file. Both are written to a folder beside the target, synced, and renamed.

use std::fs::{self, File, Permissions};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use engine::{Engine, Part};
use formats::Dtype;
use formats::safetensors::{self, Header, OutputTensor};
use program::ParamId;
use record::durable::{WRITING, sync_folder};
use record::hash_file;
use serde::{Deserialize, Serialize};
use train::CHECKPOINTS;

use crate::engines::Engines;
use crate::error::{RlError, at};
use crate::folder::{io, read_json, write_json};

const STATE_FILE: &str = "state.safetensors";
const POSITION_FILE: &str = "state.json";

#[derive(Serialize, Deserialize)]
struct Position {
    /// Steps done.
    step: usize,
    /// Optimizer updates done.
    updates: u64,
    /// BLAKE3 of the state file.
    state_blake3: String,
}

/// Value, first and second moment.
const PARTS: [(Part, &str); 3] =
    [(Part::Value, ""), (Part::FirstMoment, ".m"), (Part::SecondMoment, ".v")];

/// Trained parameters.
pub(crate) fn trained(engine: &Engine<'_>) -> Vec<ParamId> {
    let ids = engine.graph.param_ids();
    ids.filter(|&id| engine.graph.param_info(id).trainable).collect()
}

/// Saves the state after `step` steps; every rank of training takes part, rank 0 writes.
pub(crate) fn save(
    folder: &Path,
    engines: &Engines<'_>,
    step: usize,
    updates: u64,
) -> Result<Option<PathBuf>, RlError> {
    let Some(engine) = &engines.trainer else { return Ok(None) };
    let mut tensors = Vec::new();
    for id in trained(engine) {
        for (part, suffix) in PARTS {
            let whole = engine.gather_whole(id, part).map_err(at(step, "checkpoint"))?;
            if let Some(whole) = whole {
                tensors.push((id, format!("{}{suffix}", engine.graph.param_info(id).name), whole));
            }
        }
    }
    if !engines.leads() {
        return Ok(None);
    }
    let checkpoints = folder.join(CHECKPOINTS);
    let target = checkpoints.join(format!("step-{step}"));
    let staged = tempfile::Builder::new()
        .prefix(WRITING)
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(&checkpoints)
        .map_err(io("create a folder in", &checkpoints))?;
    let state = staged.path().join(STATE_FILE);
    let outputs = tensors.iter().map(|(id, name, whole)| {
        let cols = engine.graph.param_info(*id).cols;
        let shape = [whole.len() / cols, cols];
        OutputTensor::new(name.clone(), Dtype::F32, shape, move |writer| {
            writer.write_all(bytemuck::cast_slice(whole))?;
            Ok(())
        })
    });
    safetensors::write(&state, &[], outputs.collect()).map_err(Box::new)?;
    let position = Position { step, updates, state_blake3: hash_file(&state).map_err(Box::new)? };
    write_json(staged.path(), POSITION_FILE, &position)?;
    if target.exists() {
        // Of this very step, by a run that was resumed from an earlier one: the same bytes.
        fs::remove_dir_all(&target).map_err(io("replace", &target))?;
    }
    fs::rename(staged.path(), &target).map_err(io("rename a folder to", &target))?;
    // The folder has moved: there is nothing left for the guard to remove.
    let _moved = staged.keep();
    sync_folder(&checkpoints).map_err(Box::new)?;
    Ok(Some(target))
}

/// Checkpoints of a run, by steps done, oldest first.
fn all(folder: &Path) -> Result<Vec<(usize, PathBuf)>, RlError> {
    train::checkpoints(folder).map_err(io("read", &folder.join(CHECKPOINTS)))
}

/// The newest checkpoint, if there is any.
pub(crate) fn newest(folder: &Path) -> Result<Option<(usize, PathBuf)>, RlError> {
    Ok(all(folder)?.pop())
}

/// The checkpoint after `step` steps, if it is there.
pub(crate) fn of_step(folder: &Path, step: usize) -> Option<PathBuf> {
    let path = folder.join(CHECKPOINTS).join(format!("step-{step}"));
    path.is_dir().then_some(path)
}

/// Removes all but the `keep` newest checkpoints, and what interrupted writes left.
pub(crate) fn prune(folder: &Path, keep: usize) -> Result<(), RlError> {
    let found = all(folder)?;
    for (_, path) in &found[..found.len().saturating_sub(keep)] {
        fs::remove_dir_all(path).map_err(io("remove", path))?;
    }
    let checkpoints = folder.join(CHECKPOINTS);
    for entry in fs::read_dir(&checkpoints).map_err(io("read", &checkpoints))? {
        let path = entry.map_err(io("read", &checkpoints))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if name.starts_with(WRITING) {
            fs::remove_dir_all(&path).map_err(io("remove", &path))?;
        }
    }
    Ok(())
}

/// Gives this rank's trainer the state of a checkpoint; the updates that it has done.
pub(crate) fn load(checkpoint: &Path, engine: &mut Engine<'_>) -> Result<u64, RlError> {
    let position: Position = read_json(&checkpoint.join(POSITION_FILE))?;
    let path = checkpoint.join(STATE_FILE);
    let wrong = |reason: String| RlError::Folder { path: path.clone(), reason };
    let found = hash_file(&path).map_err(Box::new)?;
    if found != position.state_blake3 {
        let written = &position.state_blake3;
        return Err(wrong(format!(
            "it is damaged: its bytes hash to {found} and were written as {written}. Remove the checkpoint's folder to \
             resume from the one before"
        )));
    }
    let file = File::open(&path).map_err(io("open", &path))?;
    let bytes = file.metadata().map_err(io("read", &path))?.len();
    let header = Header::read(BufReader::new(&file), bytes).map_err(|e| wrong(e.to_string()))?;
    let read = |name: &str, elements: usize| {
        let tensor = header.tensors.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.ok_or_else(|| wrong(format!("it has no tensor `{name}`")))?;
        if tensor.dtype != Dtype::F32 || tensor.bytes != 4 * elements as u64 {
            return Err(wrong(format!("`{name}` has not {elements} numbers of F32")));
        }
        let mut numbers = vec![0f32; elements];
        (&file)
            .seek(SeekFrom::Start(tensor.offset))
            .and_then(|_| (&file).read_exact(bytemuck::cast_slice_mut(&mut numbers)))
            .map_err(io("read", &path))?;
        Ok(numbers)
    };
    for id in trained(engine) {
        let param = engine.graph.param_info(id);
        let elements = param.padded_rows * param.cols;
        let name = param.name.to_string();
        let value = read(&name, elements)?;
        let m = read(&format!("{name}.m"), elements)?;
        let v = read(&format!("{name}.v"), elements)?;
        engine.write_whole(id, &value);
        engine.write_whole_moments(id, &m, &v).map_err(|e| wrong(e.to_string()))?;
    }
    Ok(position.updates)
}
