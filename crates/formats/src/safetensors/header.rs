//! The header of a safetensors file.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::Error;
use crate::Dtype;

/// The longest header, bytes (the limit of the reference implementation).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The most tensors in a file.
pub const MAX_TENSORS: usize = 1 << 20;

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its storage format.
    pub dtype: Dtype,
    /// Its shape, slowest axis first.
    pub shape: Vec<usize>,
    /// First byte of its data, from the file's start.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// Everything before the tensor data.
#[derive(Clone, Debug)]
pub struct Header {
    /// The tensors in the order of their bytes.
    pub tensors: Vec<Tensor>,
    /// The free-form `__metadata__`, in the file's order.
    pub metadata: Vec<(String, String)>,
}

impl Header {
    /// Reads a header from a stream of `file_bytes` bytes that stands at the file's start. The
    /// tensor data is not read, but byte ranges are checked to cover it exactly: no overlap, no
    /// gap, nothing after the end.
    ///
    /// # Errors
    /// A variant of [`Error`] for each way in which the header can be wrong.
    pub fn read(mut reader: impl Read, file_bytes: u64) -> Result<Self, Error> {
        if file_bytes < 8 {
            return Err(Error::TooShort { found: file_bytes });
        }
        let mut length = [0; 8];
        reader.read_exact(&mut length)?;
        let needed = u64::from_le_bytes(length);
        if needed > MAX_HEADER_BYTES {
            return Err(Error::HeaderTooLarge { found: needed, limit: MAX_HEADER_BYTES });
        }
        let remaining = file_bytes - 8;
        if needed > remaining {
            return Err(Error::TruncatedHeader { needed, remaining });
        }
        let mut json = vec![0; needed as usize];
        reader.read_exact(&mut json)?;
        if let Some(&found) = json.first()
            && found != b'{'
        {
            return Err(Error::HeaderStart { found });
        }
        let raw: RawHeader = serde_json::from_slice(&json).map_err(Error::HeaderNotJson)?;
        Self::check(raw, 8 + needed, remaining - needed)
    }

    fn check(raw: RawHeader, data_begin: u64, data_bytes: u64) -> Result<Self, Error> {
        if raw.tensors.len() > MAX_TENSORS {
            return Err(Error::TooManyTensors { found: raw.tensors.len(), limit: MAX_TENSORS });
        }
        let mut names = HashSet::new();
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, entry) in raw.tensors {
            if !names.insert(name.clone()) {
                return Err(Error::DuplicateTensor { name });
            }
            tensors.push(check_entry(name, entry)?);
        }
        // Empty tensors come before the one that begins at the same byte.
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
        check_cover(&tensors, data_bytes)?;
        for tensor in &mut tensors {
            tensor.offset += data_begin;
        }
        Ok(Self { tensors, metadata: raw.metadata })
    }
}

/// Checks one tensor on its own; the offset is still relative to the data section.
fn check_entry(name: String, entry: RawEntry) -> Result<Tensor, Error> {
    let RawEntry { dtype, shape, data_offsets: (begin, end) } = entry;
    let Some(dtype) = Dtype::from_safetensors_name(&dtype) else {
        return Err(Error::UnknownDtype { name, found: dtype });
    };
    // A zero axis must not hide an overflow of the others, so axes are also checked one by one.
    let sizes: Option<Vec<usize>> = shape.iter().map(|&axis| usize::try_from(axis).ok()).collect();
    let elements = shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis));
    let (Some(sizes), Some(needed)) = (sizes, elements.and_then(|count| dtype.bytes_of(count)))
    else {
        return Err(Error::BadShape { name, shape });
    };
    let Some(found) = end.checked_sub(begin) else {
        return Err(Error::BackwardRange { name, begin, end });
    };
    if needed != found {
        return Err(Error::SizeMismatch { name, dtype, shape: sizes, needed, found });
    }
    Ok(Tensor { name, dtype, shape: sizes, offset: begin, bytes: found })
}

/// Checks that tensors, in the order of their bytes, cover `0..data_bytes` exactly.
fn check_cover(tensors: &[Tensor], data_bytes: u64) -> Result<(), Error> {
    let mut covered = 0;
    let mut before = "";
    for tensor in tensors {
        let end = tensor.offset + tensor.bytes;
        if tensor.offset < covered {
            return Err(Error::Overlap { first: before.to_owned(), second: tensor.name.clone() });
        }
        if end > data_bytes {
            return Err(Error::OutOfFile { name: tensor.name.clone(), end, data_bytes });
        }
        if tensor.offset > covered {
            return Err(Error::Gap { name: tensor.name.clone(), bytes: tensor.offset - covered });
        }
        covered = end;
        before = &tensor.name;
    }
    if covered < data_bytes {
        return Err(Error::TrailingBytes { bytes: data_bytes - covered });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's JSON with every entry kept, also those whose name appears twice.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: Vec<(String, String)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "__metadata__" {
                        header.metadata = map.next_value::<Pairs>()?.0;
                    } else {
                        header.tensors.push((key, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// An object of strings, every pair kept in order.
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Strings)
    }
}
