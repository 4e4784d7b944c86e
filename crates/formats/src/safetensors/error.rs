//! Every way a safetensors file or its index can be wrong.

use thiserror::Error;

use crate::Dtype;

/// What is wrong with a safetensors file. The file's path is added by
/// [`crate::FormatError::Safetensors`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a read.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
    /// The file is too short to hold the length of its header.
    #[error(
        "truncated: {found} bytes are too few for a safetensors file, whose first 8 are the header's length"
    )]
    TooShort {
        /// Bytes in the file.
        found: u64,
    },
    /// The header's length is over the format's limit.
    #[error(
        "the header's length is {found} bytes, over the limit of {limit}: this is not a safetensors file, or it is damaged"
    )]
    HeaderTooLarge {
        /// The length found, bytes.
        found: u64,
        /// The largest length allowed, bytes.
        limit: u64,
    },
    /// The file ends inside its header.
    #[error(
        "truncated: the header needs {needed} bytes but only {remaining} are left; download the file again"
    )]
    TruncatedHeader {
        /// The header's length, bytes.
        needed: u64,
        /// Bytes in the file after the length.
        remaining: u64,
    },
    /// The header is not JSON of the right form.
    #[error("the header is not valid: {0}")]
    HeaderNotJson(#[source] serde_json::Error),
    /// The header does not begin with `{`.
    #[error(
        "the header begins with byte 0x{found:02x}, not with {{: this is not a safetensors file"
    )]
    HeaderStart {
        /// The byte found.
        found: u8,
    },
    /// The same tensor name twice.
    #[error("tensor \"{name}\" appears twice in the header")]
    DuplicateTensor {
        /// The tensor's name.
        name: String,
    },
    /// More tensors than the limit.
    #[error("the header lists {found} tensors, over the limit of {limit}")]
    TooManyTensors {
        /// Tensors listed.
        found: usize,
        /// The most allowed.
        limit: usize,
    },
    /// A type that safetensors does not define, or one of less than a byte.
    #[error("tensor \"{name}\" has the type \"{found}\", which is not supported")]
    UnknownDtype {
        /// The tensor's name.
        name: String,
        /// The type found.
        found: String,
    },
    /// More numbers than can be counted.
    #[error("tensor \"{name}\" has the impossible shape {shape:?}")]
    BadShape {
        /// The tensor's name.
        name: String,
        /// The shape.
        shape: Vec<u64>,
    },
    /// A byte range that ends before it begins.
    #[error("tensor \"{name}\" has the byte range {begin}..{end}, which ends before it begins")]
    BackwardRange {
        /// The tensor's name.
        name: String,
        /// First byte, in the data section.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A byte range of another length than the shape needs.
    #[error(
        "tensor \"{name}\" of type {dtype} and shape {shape:?} needs {needed} bytes but its range holds {found}"
    )]
    SizeMismatch {
        /// The tensor's name.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes that type and shape need.
        needed: u64,
        /// Bytes in its range.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// Bytes between tensors that belong to none.
    #[error("{bytes} bytes before tensor \"{name}\" belong to no tensor")]
    Gap {
        /// The tensor after the gap.
        name: String,
        /// Length of the gap, bytes.
        bytes: u64,
    },
    /// A tensor's bytes reach past the file's end.
    #[error(
        "tensor \"{name}\" ends at byte {end} of the data but the file holds {data_bytes}: it is truncated; download it again"
    )]
    OutOfFile {
        /// The tensor's name.
        name: String,
        /// One past its last byte, in the data section.
        end: u64,
        /// Bytes of data in the file.
        data_bytes: u64,
    },
    /// Bytes after the last tensor.
    #[error("{bytes} bytes after the last tensor belong to no tensor")]
    TrailingBytes {
        /// How many.
        bytes: u64,
    },
}

/// What is wrong with a `model.safetensors.index.json` or with the shards that it names.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file is too large to be an index.
    #[error("the index is {found} bytes, over the limit of {limit}")]
    TooLarge {
        /// Its size, bytes.
        found: u64,
        /// The largest size allowed, bytes.
        limit: u64,
    },
    /// The file is not JSON with a `weight_map` of strings.
    #[error("the index is not valid: {0}")]
    NotJson(#[source] serde_json::Error),
    /// The same tensor name twice.
    #[error("tensor \"{name}\" appears twice in weight_map")]
    DuplicateTensor {
        /// The tensor's name.
        name: String,
    },
    /// `weight_map` is empty.
    #[error("weight_map names no tensors")]
    Empty,
    /// More shards than the limit.
    #[error("weight_map names {found} shards, over the limit of {limit}")]
    TooManyShards {
        /// Shards named.
        found: usize,
        /// The most allowed.
        limit: usize,
    },
    /// A shard's name that leads out of the folder.
    #[error(
        "weight_map names the shard \"{shard}\": a shard must be a plain file name in the index's folder"
    )]
    BadShardName {
        /// The name.
        shard: String,
    },
    /// A shard that is not in the folder.
    #[error("shard \"{shard}\" is missing: download the checkpoint again")]
    MissingShard {
        /// The shard's file name.
        shard: String,
    },
    /// A tensor that its shard lacks.
    #[error(
        "tensor \"{name}\" should be in shard \"{shard}\" but is not: index and shards are from different checkpoints"
    )]
    NotInShard {
        /// The tensor's name.
        name: String,
        /// The shard's file name.
        shard: String,
    },
    /// A tensor that the index does not place in the shard that holds it.
    #[error(
        "shard \"{shard}\" holds tensor \"{name}\", which the index does not place there: index and shards are from different checkpoints"
    )]
    NotInIndex {
        /// The tensor's name.
        name: String,
        /// The shard's file name.
        shard: String,
    },
}
