//! Writing safetensors: one file, or shards with an index, one tensor in memory at a time.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::write::{atomic_file, atomic_json, io_error};
use crate::{Dtype, FormatError};

/// Why a caller could not produce a tensor's bytes.
pub type FillError = Box<dyn std::error::Error + Send + Sync>;

/// Writes a tensor's bytes, little-endian and row by row, to the stream that it is given.
type Fill<'a> = Box<dyn FnOnce(&mut dyn Write) -> Result<(), FillError> + 'a>;

/// A tensor to write.
pub struct OutputTensor<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    fill: Fill<'a>,
}

impl<'a> OutputTensor<'a> {
    /// A tensor whose bytes `fill` writes when its turn comes: exactly as many as type and shape
    /// need.
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), FillError> + 'a,
    ) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), fill: Box::new(fill) }
    }

    /// An f32 tensor that is in memory.
    pub fn f32(name: impl Into<String>, shape: impl Into<Vec<usize>>, numbers: &'a [f32]) -> Self {
        Self::new(name, Dtype::F32, shape, |writer| {
            Ok(writer.write_all(bytemuck::cast_slice(numbers))?)
        })
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

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
            fill(path, writer, tensor, bytes)?;
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

/// Lets the caller write a tensor, and holds it to the number of bytes.
fn fill(
    path: &Path,
    writer: &mut dyn Write,
    tensor: OutputTensor<'_>,
    needed: u64,
) -> Result<(), FormatError> {
    let OutputTensor { name, fill, .. } = tensor;
    let mut counted = Counted { writer, left: needed, over: 0 };
    let result = fill(&mut counted);
    let found = needed - counted.left + counted.over;
    if counted.over > 0 || (result.is_ok() && counted.left > 0) {
        return Err(FormatError::WrongFillLength { path: path.to_owned(), name, needed, found });
    }
    result.map_err(|source| FormatError::Fill { path: path.to_owned(), name, source })
}

/// Passes on no more bytes than a tensor takes.
struct Counted<'a> {
    writer: &'a mut dyn Write,
    left: u64,
    /// Bytes offered beyond the tensor's end.
    over: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.over = bytes.len() as u64 - self.left;
            self.left = 0;
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "more bytes than the tensor takes",
            ));
        }
        let written = self.writer.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
