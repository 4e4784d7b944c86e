//! Writing safetensors: one file, or shards with an index, one tensor in memory at a time.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::FormatError;
use crate::output::OutputTensor;
use crate::write::{atomic_file, atomic_json, io_error};

/// A tensor whose type, shape and size have been checked.
struct Planned<'a> {
    tensor: OutputTensor<'a>,
    type_name: &'static str,
    bytes: u64,
}

fn plan<'a>(path: &Path, tensors: Vec<OutputTensor<'a>>) -> Result<Vec<Planned<'a>>, FormatError> {
    let mut names = HashSet::new();
    let mut planned = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let unwritable = |reason| FormatError::UnwritableTensor {
            path: path.to_owned(),
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            reason,
        };
        let Some(type_name) = tensor.dtype.safetensors_name() else {
            return Err(unwritable("safetensors has no such type"));
        };
        let elements =
            tensor.shape.iter().try_fold(1u64, |count, &axis| count.checked_mul(axis as u64));
        let Some(bytes) = elements.and_then(|count| tensor.dtype.bytes_of(count)) else {
            return Err(unwritable("its size overflows"));
        };
        if tensor.name == "__metadata__" || !names.insert(tensor.name.clone()) {
            return Err(unwritable("its name is taken"));
        }
        planned.push(Planned { tensor, type_name, bytes });
    }
    Ok(planned)
}

/// Writes one safetensors file, replacing what is at `path` only when all of it is written and
/// synced.
///
/// Tensors are laid out by falling alignment and then by name, as the reference implementation
/// does.
///
/// # Errors
/// [`FormatError::UnwritableTensor`], [`FormatError::Fill`], [`FormatError::WrongFillLength`] or
/// [`FormatError::Io`]; in each case `path` is as it was.
pub fn write(
    path: &Path,
    metadata: &[(&str, &str)],
    tensors: Vec<OutputTensor<'_>>,
) -> Result<(), FormatError> {
    write_planned(path, metadata, plan(path, tensors)?)
}

/// Writes `stem.safetensors`, or, where the tensors take more than `max_shard_bytes`,
/// `stem-00001-of-0000N` and so on with `stem.safetensors.index.json`, filled in the order given. A
/// tensor larger than a shard gets one of its own. Gives the names of the files.
///
/// # Errors
/// As [`write()`]. Shards that were finished before the error stay; the index is written last.
pub fn write_sharded(
    folder: &Path,
    stem: &str,
    max_shard_bytes: u64,
    metadata: &[(&str, &str)],
    tensors: Vec<OutputTensor<'_>>,
) -> Result<Vec<PathBuf>, FormatError> {
    let planned = plan(folder, tensors)?;
    let total: u64 = planned.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes));
    let shards = split(planned, max_shard_bytes);
    if shards.len() <= 1 {
        let file = format!("{stem}.safetensors");
        write_planned(&folder.join(&file), metadata, shards.into_iter().flatten().collect())?;
        return Ok(vec![file.into()]);
    }
    let mut weight_map = Map::new();
    let mut files = Vec::new();
    let count = shards.len();
    for (at, shard) in shards.into_iter().enumerate() {
        let file = format!("{stem}-{:05}-of-{count:05}.safetensors", at + 1);
        for planned in &shard {
            weight_map.insert(planned.tensor.name.clone(), json!(file));
        }
        write_planned(&folder.join(&file), metadata, shard)?;
        files.push(file.into());
    }
    weight_map.sort_keys();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    let file = format!("{stem}.safetensors.index.json");
    atomic_json(&folder.join(&file), &index)?;
    files.push(file.into());
    Ok(files)
}

/// Cuts tensors into shards in the order given.
fn split(planned: Vec<Planned<'_>>, max_shard_bytes: u64) -> Vec<Vec<Planned<'_>>> {
    let mut shards: Vec<Vec<Planned<'_>>> = Vec::new();
    let mut filled = 0u64;
    for tensor in planned {
        match shards.last_mut() {
            Some(shard) if filled.saturating_add(tensor.bytes) <= max_shard_bytes => {
                filled += tensor.bytes;
                shard.push(tensor);
            }
            _ => {
                filled = tensor.bytes;
                shards.push(vec![tensor]);
            }
        }
    }
    shards
}

fn write_planned(
    path: &Path,
    metadata: &[(&str, &str)],
    mut planned: Vec<Planned<'_>>,
) -> Result<(), FormatError> {
    planned.sort_by(|a, b| {
        let width = |planned: &Planned<'_>| planned.tensor.dtype.block_bytes();
        width(b).cmp(&width(a)).then_with(|| a.tensor.name.cmp(&b.tensor.name))
    });
    let header = header(metadata, &planned);
    atomic_file(path, |writer| {
        let write_error = |error| io_error("write", path)(error);
        writer.write_all(&(header.len() as u64).to_le_bytes()).map_err(write_error)?;
        writer.write_all(header.as_bytes()).map_err(write_error)?;
        for Planned { tensor, bytes, .. } in planned {
            tensor.write(path, writer, bytes)?;
        }
        Ok(())
    })
}

/// The header's JSON, padded with spaces so that the data begins at a multiple of 8.
fn header(metadata: &[(&str, &str)], planned: &[Planned<'_>]) -> String {
    let mut object = Map::new();
    if !metadata.is_empty() {
        let pairs = metadata.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
        object.insert("__metadata__".to_owned(), Value::Object(pairs.collect()));
    }
    let mut begin = 0u64;
    for Planned { tensor, type_name, bytes } in planned {
        let end = begin.saturating_add(*bytes);
        object.insert(
            tensor.name.clone(),
            json!({"dtype": type_name, "shape": tensor.shape, "data_offsets": [begin, end]}),
        );
        begin = end;
    }
    let mut text = Value::Object(object).to_string();
    let padded = text.len().next_multiple_of(8);
    text.extend(std::iter::repeat_n(' ', padded - text.len()));
    text
}
