//! Writing a GGUF file, version 3, one tensor in memory at a time.
//!
//! Source: the GGUF specification of ggml, `docs/gguf.md`.

use std::collections::HashSet;
use std::path::Path;

use super::header::{DEFAULT_ALIGNMENT, MAX_AXES, MAX_TENSORS};
use super::{Array, Metadata, Value};
use crate::FormatError;
use crate::output::OutputTensor;
use crate::write::{atomic_file, io_error};

/// The longest tensor name that llama.cpp reads, bytes (`GGML_MAX_NAME` with its closing zero).
pub const MAX_WRITTEN_NAME_BYTES: usize = 63;

/// A tensor with its place in the data section.
struct Placed<'a> {
    tensor: OutputTensor<'a>,
    ggml_type: u32,
    offset: u64,
    bytes: u64,
}

/// Writes a GGUF file, replacing what is at `path` only when all of it is written and synced. Tensors have GGUF names,
/// and shapes with the slowest axis first; they are filled in the order given. Gives the file's size in bytes.
///
/// # Errors
/// [`FormatError::UnwritableTensor`], [`FormatError::Fill`], [`FormatError::WrongFillLength`] or [`FormatError::Io`];
/// in each case `path` is as it was.
pub fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: Vec<OutputTensor<'_>>,
) -> Result<u64, FormatError> {
    let placed = place(path, tensors)?;
    let header = header(metadata, &placed);
    let data: u64 = placed.last().map_or(0, |last| last.offset + padded(last.bytes));
    let total = header.len() as u64 + data;
    atomic_file(path, |writer| {
        let write_error = |error| io_error("write", path)(error);
        writer.write_all(&header).map_err(write_error)?;
        for Placed { tensor, bytes, .. } in placed {
            tensor.write(path, writer, bytes)?;
            let padding = padded(bytes) - bytes;
            writer
                .write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])
                .map_err(write_error)?;
        }
        Ok(())
    })?;
    Ok(total)
}

/// Bytes with what fills up to the next tensor.
fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(DEFAULT_ALIGNMENT)
}

fn place<'a>(path: &Path, tensors: Vec<OutputTensor<'a>>) -> Result<Vec<Placed<'a>>, FormatError> {
    /// Far above every file, so that sums of sizes cannot overflow.
    const MOST_BYTES: u64 = 1 << 60;
    let mut names = HashSet::new();
    let mut placed: Vec<Placed<'a>> = Vec::with_capacity(tensors.len());
    let mut offset = 0u64;
    for tensor in tensors {
        let unwritable = |reason| FormatError::UnwritableTensor {
            path: path.to_owned(),
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            reason,
        };
        let Some(ggml_type) = tensor.dtype.ggml_id() else {
            return Err(unwritable("GGUF has no such type"));
        };
        if tensor.shape.is_empty() || tensor.shape.len() > MAX_AXES as usize {
            return Err(unwritable("GGUF tensors have 1 to 4 axes"));
        }
        if tensor.shape.contains(&0) {
            return Err(unwritable("it has no numbers"));
        }
        if tensor.name.len() > MAX_WRITTEN_NAME_BYTES {
            return Err(unwritable("llama.cpp reads names of at most 63 bytes"));
        }
        let bytes = tensor.bytes().filter(|bytes| *bytes < MOST_BYTES - offset);
        let Some(bytes) = bytes else {
            return Err(unwritable(
                "its rows are no whole number of blocks, or its size overflows",
            ));
        };
        if !names.insert(tensor.name.clone()) || names.len() as u64 > MAX_TENSORS {
            return Err(unwritable("its name is taken, or there are too many tensors"));
        }
        placed.push(Placed { tensor, ggml_type, offset, bytes });
        offset += padded(bytes);
    }
    Ok(placed)
}

/// Everything before the tensor data, padded to where it begins.
fn header(metadata: &Metadata, tensors: &[Placed<'_>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        string(key, &mut out);
        out.extend(value_type(value).to_le_bytes());
        encode(value, &mut out);
    }
    for Placed { tensor, ggml_type, offset, .. } in tensors {
        string(&tensor.name, &mut out);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // The file's order is fastest axis first.
        out.extend(tensor.shape.iter().rev().flat_map(|&axis| (axis as u64).to_le_bytes()));
        out.extend(ggml_type.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(padded(out.len() as u64) as usize, 0);
    out
}

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The number of a value's type.
fn value_type(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(text) => string(text, out),
        Value::Array(array) => encode_array(array, out),
    }
}

fn encode_array(array: &Array, out: &mut Vec<u8>) {
    let (kind, plain): (u32, &[u8]) = match array {
        Array::U8(items) => (0, items),
        Array::I8(items) => (1, bytemuck::cast_slice(items)),
        Array::U16(items) => (2, bytemuck::cast_slice(items)),
        Array::I16(items) => (3, bytemuck::cast_slice(items)),
        Array::U32(items) => (4, bytemuck::cast_slice(items)),
        Array::I32(items) => (5, bytemuck::cast_slice(items)),
        Array::F32(items) => (6, bytemuck::cast_slice(items)),
        Array::Bool(_) => (7, &[]),
        Array::String(_) => (8, &[]),
        Array::U64(items) => (10, bytemuck::cast_slice(items)),
        Array::I64(items) => (11, bytemuck::cast_slice(items)),
        Array::F64(items) => (12, bytemuck::cast_slice(items)),
    };
    out.extend(kind.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::Bool(items) => out.extend(items.iter().map(|&flag| u8::from(flag))),
        Array::String(items) => items.iter().for_each(|text| string(text, out)),
        _ => out.extend_from_slice(plain),
    }
}
