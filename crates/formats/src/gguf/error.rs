//! Every way a GGUF file can be wrong.

use thiserror::Error;

/// What is wrong with a GGUF file. The file's path is added by [`crate::FormatError::Gguf`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a read.
    #[error("reading failed: {0}")]
    Io(#[from] std::io::Error),
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it begins with {found:02x?}, not with \"GGUF\"")]
    BadMagic {
        /// The bytes found.
        found: [u8; 4],
    },
    /// The file was written on a big-endian machine.
    #[error(
        "the file is big-endian; only little-endian GGUF is read: convert it with gguf-convert-endian"
    )]
    BigEndian,
    /// A version other than 3.
    #[error(
        "GGUF version {found} is not supported: only version 3 is; convert the model again with a current llama.cpp"
    )]
    UnsupportedVersion {
        /// The version found.
        found: u32,
    },
    /// The file ends inside its header.
    #[error(
        "truncated: {what} at byte {at} needs {needed} bytes but only {remaining} are left; download the file again"
    )]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Offset from the file's start, bytes.
        at: u64,
        /// Bytes needed.
        needed: u64,
        /// Bytes left in the file.
        remaining: u64,
    },
    /// A count or length is over a limit of this reader.
    #[error(
        "{what} is {found}, over the limit of {limit}: the file is damaged or not meant for this program"
    )]
    OverLimit {
        /// What is too large.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {at} is not valid UTF-8")]
    NotUtf8 {
        /// What was being read.
        what: &'static str,
        /// Offset from the file's start, bytes.
        at: u64,
    },
    /// A metadata value has a type number that does not exist.
    #[error("metadata key \"{key}\" has value type {found}, which GGUF does not define")]
    UnknownValueType {
        /// The metadata key.
        key: String,
        /// The type number found.
        found: u32,
    },
    /// An array of arrays.
    #[error("metadata key \"{key}\" is an array of arrays, which is not supported")]
    NestedArray {
        /// The metadata key.
        key: String,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key \"{key}\" holds the byte {found} where a boolean (0 or 1) is expected")]
    BadBool {
        /// The metadata key.
        key: String,
        /// The byte found.
        found: u8,
    },
    /// The same metadata key twice.
    #[error("metadata key \"{key}\" appears twice")]
    DuplicateKey {
        /// The metadata key.
        key: String,
    },
    /// A metadata key that is required is absent.
    #[error("metadata key \"{key}\" is missing")]
    MissingKey {
        /// The metadata key.
        key: String,
    },
    /// A metadata value has another type than its key needs.
    #[error("metadata key \"{key}\" holds {found} where {expected} is expected")]
    WrongValueType {
        /// The metadata key.
        key: String,
        /// The type needed.
        expected: &'static str,
        /// The type found.
        found: &'static str,
    },
    /// `general.alignment` is not a power of two.
    #[error(
        "general.alignment is {found}: it must be a power of two, at least 8 and at most {limit}"
    )]
    BadAlignment {
        /// The alignment found, bytes.
        found: u64,
        /// The largest alignment allowed, bytes.
        limit: u64,
    },
    /// The same tensor name twice.
    #[error("tensor \"{name}\" appears twice")]
    DuplicateTensor {
        /// The tensor's name in the file.
        name: String,
    },
    /// A tensor has more axes than GGUF allows, or none.
    #[error("tensor \"{name}\" has {found} axes: 1 to {limit} are allowed")]
    BadRank {
        /// The tensor's name in the file.
        name: String,
        /// Axes found.
        found: u32,
        /// The most axes allowed.
        limit: u32,
    },
    /// A tensor is stored in a format that is not read.
    #[error(
        "tensor \"{name}\" is stored as {}, which is not supported: use a file in \
         F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K", super::type_name(*.ggml_type)
    )]
    UnsupportedTensorType {
        /// The tensor's name in the file.
        name: String,
        /// The number of its type (`enum ggml_type`).
        ggml_type: u32,
    },
    /// A row is no whole number of quantization blocks.
    #[error(
        "tensor \"{name}\" has rows of {row} numbers, no multiple of {block}, the block of {dtype}"
    )]
    PartialBlock {
        /// The tensor's name in the file.
        name: String,
        /// Numbers in a row.
        row: u64,
        /// Numbers in a block.
        block: u64,
        /// The storage format.
        dtype: crate::Dtype,
    },
    /// A zero axis, or more numbers than can be counted.
    #[error("tensor \"{name}\" has the impossible shape {shape:?} (GGUF order)")]
    BadShape {
        /// The tensor's name in the file.
        name: String,
        /// The shape in GGUF order (fastest axis first).
        shape: Vec<u64>,
    },
    /// A tensor's offset is no multiple of the alignment.
    #[error(
        "tensor \"{name}\" begins at offset {offset} of the data, no multiple of the alignment {alignment}"
    )]
    Misaligned {
        /// The tensor's name in the file.
        name: String,
        /// Offset within the data section, bytes.
        offset: u64,
        /// The alignment, bytes.
        alignment: u64,
    },
    /// A tensor's bytes reach past the file's end.
    #[error(
        "tensor \"{name}\" needs bytes {begin}..{end} but the file has {file_bytes}: it is truncated; download it again"
    )]
    OutOfFile {
        /// The tensor's name in the file.
        name: String,
        /// First byte, from the file's start.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes in the file.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap in the file")]
    Overlap {
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// Not the first part of a model that is split over several files.
    #[error(
        "the file is one of {parts} parts of a split model: give the first, whose name ends in \"{}\", with the others \
         beside it", super::split::ending(1, *parts)
    )]
    Split {
        /// Number of parts.
        parts: u64,
    },
    /// A part of a split model that is not the part that its name says.
    #[error(
        "the file says that it is part {found} of {found_parts} where part {expected} of {parts} is expected: the parts \
         are of different models, or renamed"
    )]
    WrongPart {
        /// Its number, from 1.
        found: u64,
        /// Its number of parts.
        found_parts: u64,
        /// The number expected, from 1.
        expected: u64,
        /// The number of parts expected.
        parts: u64,
    },
}
