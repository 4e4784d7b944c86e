//! The header of a GGUF file: magic, version, metadata and the table of tensors.
//!
//! Source: the GGUF specification of ggml, `docs/gguf.md`, version 3.

use std::collections::HashSet;
use std::io::Read;

use super::cursor::Cursor;
use super::{Array, Error, Metadata, Value};
use crate::Dtype;

/// The most metadata entries that are read.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// The most tensors that are read.
pub const MAX_TENSORS: u64 = 1 << 17;
/// The longest metadata key or tensor name, bytes (the specification's limit for keys).
pub const MAX_NAME_BYTES: u64 = (1 << 16) - 1;
/// The longest string value, bytes.
pub const MAX_STRING_BYTES: u64 = 1 << 24;
/// The most elements of an array.
pub const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
/// The most axes of a tensor (`GGML_MAX_DIMS`).
pub const MAX_AXES: u32 = 4;
/// The largest `general.alignment`, bytes.
pub const MAX_ALIGNMENT: u64 = 1 << 16;
/// The alignment of tensor data where `general.alignment` is absent, bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// A tensor of a GGUF file, under the file's own name and in the file's own row order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in the file, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// The storage format.
    pub dtype: Dtype,
    /// The shape with the slowest axis first, `[out, in]` (the reverse of the file's order).
    pub shape: Vec<usize>,
    /// First byte of its data, from the file's start.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// Everything before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// The key-value metadata.
    pub metadata: Metadata,
    /// The tensors in the file's order.
    pub tensors: Vec<Tensor>,
}

impl Header {
    /// Reads a header from a stream of `file_bytes` bytes that stands at the file's start. The
    /// tensor data is not read, but every tensor is checked to lie inside the file, aligned and
    /// apart from the others.
    ///
    /// # Errors
    /// A variant of [`Error`] for each way in which the header can be wrong.
    pub fn read(reader: impl Read, file_bytes: u64) -> Result<Self, Error> {
        let mut cursor = Cursor::new(reader, file_bytes);
        read_preamble(&mut cursor)?;
        let tensor_count = cursor.count(MAX_TENSORS, "the number of tensors")?;
        let entry_count = cursor.count(MAX_METADATA_ENTRIES, "the number of metadata entries")?;
        let mut metadata = Metadata::default();
        for _ in 0..entry_count {
            let key = cursor.string(MAX_NAME_BYTES, "a metadata key")?;
            let value = read_value(&mut cursor, &key)?;
            metadata.insert(key, value)?;
        }
        let alignment = alignment(&metadata)?;
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..tensor_count {
            let tensor = read_tensor(&mut cursor, alignment)?;
            if !names.insert(tensor.name.clone()) {
                return Err(Error::DuplicateTensor { name: tensor.name });
            }
            tensors.push(tensor);
        }
        // `at` is at most the file's length and the alignment is small, so this cannot overflow.
        let data_begin = cursor.at().next_multiple_of(alignment);
        place(&mut tensors, data_begin, file_bytes)?;
        Ok(Self { metadata, tensors })
    }
}

fn read_preamble<R: Read>(cursor: &mut Cursor<R>) -> Result<(), Error> {
    let magic = cursor.bytes::<4>("the magic number")?;
    if &magic != b"GGUF" {
        return Err(Error::BadMagic { found: magic });
    }
    match cursor.u32("the version")? {
        3 => Ok(()),
        // Versions are small numbers: one in the upper half was written in the other byte order.
        found if found & 0xffff == 0 && found != 0 => Err(Error::BigEndian),
        found => Err(Error::UnsupportedVersion { found }),
    }
}

fn read_value<R: Read>(cursor: &mut Cursor<R>, key: &str) -> Result<Value, Error> {
    let kind = cursor.u32("the type of a metadata value")?;
    let what = "a metadata value";
    Ok(match kind {
        0 => Value::U8(u8::from_le_bytes(cursor.bytes(what)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.bytes(what)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.bytes(what)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.bytes(what)?)),
        4 => Value::U32(cursor.u32(what)?),
        5 => Value::I32(i32::from_le_bytes(cursor.bytes(what)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.bytes(what)?)),
        7 => Value::Bool(boolean(cursor.bytes::<1>(what)?[0], key)?),
        8 => Value::String(cursor.string(MAX_STRING_BYTES, "a metadata string")?),
        9 => Value::Array(read_array(cursor, key)?),
        10 => Value::U64(cursor.u64(what)?),
        11 => Value::I64(i64::from_le_bytes(cursor.bytes(what)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.bytes(what)?)),
        found => {
            return Err(Error::UnknownValueType { key: key.to_owned(), found });
        }
    })
}

fn read_array<R: Read>(cursor: &mut Cursor<R>, key: &str) -> Result<Array, Error> {
    let kind = cursor.u32("the element type of an array")?;
    let count = cursor.count(MAX_ARRAY_ELEMENTS, "the length of an array")?;
    Ok(match kind {
        0 => Array::U8(cursor.blob(count, "an array")?),
        1 => Array::I8(numbers(cursor, count, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, count, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, count, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, count, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, count, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, count, f32::from_le_bytes)?),
        7 => {
            let bytes = cursor.blob(count, "an array")?;
            Array::Bool(bytes.into_iter().map(|byte| boolean(byte, key)).collect::<Result<_, _>>()?)
        }
        8 => {
            // A string takes at least its length field.
            cursor.require_array(count, 8, "an array of strings")?;
            let mut items = Vec::with_capacity(count);
            for _ in 0..count {
                items.push(cursor.string(MAX_STRING_BYTES, "a metadata string")?);
            }
            Array::String(items)
        }
        9 => {
            return Err(Error::NestedArray { key: key.to_owned() });
        }
        10 => Array::U64(numbers(cursor, count, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, count, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, count, f64::from_le_bytes)?),
        found => {
            return Err(Error::UnknownValueType { key: key.to_owned(), found });
        }
    })
}

fn numbers<R: Read, T, const N: usize>(
    cursor: &mut Cursor<R>,
    count: usize,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    cursor.require_array(count, N as u64, "an array")?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(decode(cursor.bytes("an array")?));
    }
    Ok(items)
}

fn boolean(byte: u8, key: &str) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Error::BadBool { key: key.to_owned(), found }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    let found = metadata.u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if found.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&found) {
        Ok(found)
    } else {
        Err(Error::BadAlignment { found, limit: MAX_ALIGNMENT })
    }
}

/// Reads one line of the tensor table; the offset is still relative to the data section.
fn read_tensor<R: Read>(cursor: &mut Cursor<R>, alignment: u64) -> Result<Tensor, Error> {
    let name = cursor.string(MAX_NAME_BYTES, "a tensor's name")?;
    let rank = cursor.u32("a tensor's rank")?;
    if rank == 0 || rank > MAX_AXES {
        return Err(Error::BadRank { name, found: rank, limit: MAX_AXES });
    }
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        shape.push(cursor.u64("a tensor's shape")?);
    }
    let ggml_type = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    let Some(dtype) = Dtype::from_ggml_id(ggml_type) else {
        return Err(Error::UnsupportedTensorType { name, ggml_type });
    };
    let elements = shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis));
    let elements = match elements {
        Some(count) if count > 0 && usize::try_from(count).is_ok() => count,
        _ => return Err(Error::BadShape { name, shape }),
    };
    let block = dtype.block_elements() as u64;
    if !shape[0].is_multiple_of(block) {
        return Err(Error::PartialBlock { name, row: shape[0], block, dtype });
    }
    let Some(bytes) = dtype.bytes_of(elements) else {
        return Err(Error::BadShape { name, shape });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(Error::Misaligned { name, offset, alignment });
    }
    // The product fits usize and no axis is zero, so every axis does.
    let shape = shape.iter().rev().map(|&axis| axis as usize).collect();
    Ok(Tensor { name, dtype, shape, offset, bytes })
}

/// Makes offsets absolute and checks that tensors lie inside the file and apart from each other.
fn place(tensors: &mut [Tensor], data_begin: u64, file_bytes: u64) -> Result<(), Error> {
    for tensor in tensors.iter_mut() {
        let begin = tensor.offset.saturating_add(data_begin);
        let end = begin.saturating_add(tensor.bytes);
        if end > file_bytes {
            return Err(Error::OutOfFile { name: tensor.name.clone(), begin, end, file_bytes });
        }
        tensor.offset = begin;
    }
    let mut by_offset: Vec<&Tensor> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(Error::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}
