//! The crate's error: what is wrong, with which file.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::{Dtype, config, export, gguf, merged, peft, safetensors};

/// Why a checkpoint or an adapter cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried: a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A path that should name a file names something else.
    #[error("{} is not a regular file", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Neither a folder nor a `.gguf` file.
    #[error("{} is not a checkpoint: give a folder with config.json and safetensors, or a .gguf file", .path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// A folder without weights that can be read.
    #[error(
        "{} holds neither model.safetensors nor model.safetensors.index.json{}", .path.display(),
        if *.pickled { ": its weights are in PyTorch's pickle format; save them again with safe_serialization=True" } else { "" }
    )]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// Whether a `pytorch_model*.bin` is there instead.
        pickled: bool,
    },
    /// A wrong safetensors file.
    #[error("{}: {source}", .path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: safetensors::Error,
    },
    /// A wrong `model.safetensors.index.json`, or shards that disagree with it.
    #[error("{}: {source}", .path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong.
        source: safetensors::IndexError,
    },
    /// A wrong GGUF file.
    #[error("{}: {source}", .path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: gguf::Error,
    },
    /// A GGUF tensor that the model's architecture does not have.
    #[error("{}: tensor \"{name}\" is not part of a {architecture} model", .path.display())]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
        /// The model's architecture.
        architecture: crate::Architecture,
    },
    /// A wrong or unsupported configuration.
    #[error("{}: {source}", .path.display())]
    Config {
        /// `config.json`, `generation_config.json` or the GGUF file.
        path: PathBuf,
        /// What is wrong.
        source: config::Error,
    },
    /// A wrong or unsupported adapter.
    #[error("{}: {source}", .path.display())]
    Adapter {
        /// The adapter's file.
        path: PathBuf,
        /// What is wrong.
        source: peft::Error,
    },
    /// An adapter that does not go with a base.
    #[error("{}: {source}", .path.display())]
    Merge {
        /// The base.
        path: PathBuf,
        /// What does not fit.
        source: merged::MergeError,
    },
    /// A model or adapter that cannot be written as GGUF.
    #[error("{}: {source}", .path.display())]
    Export {
        /// The model or adapter.
        path: PathBuf,
        /// Why not.
        source: export::ExportError,
    },
    /// A tensor that is needed is absent.
    #[error("{}: tensor \"{name}\" is missing: the weights do not belong to this configuration", .path.display())]
    MissingTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{}: tensor \"{name}\" has shape {found:?} where the configuration says {expected:?}", .path.display())]
    WrongShape {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape that the configuration gives.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor whose storage format holds no numbers that can be read.
    #[error("{}: tensor \"{name}\" is stored as {dtype}, which cannot be read as weights: use F32, F16 or BF16", .path.display())]
    UnreadableDtype {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its storage format.
        dtype: Dtype,
    },
    /// Rows that a tensor does not have were asked for.
    #[error("tensor \"{name}\" has {rows} rows; {begin}..{end} were asked for")]
    RowsOutOfRange {
        /// The tensor.
        name: String,
        /// Rows that it has.
        rows: usize,
        /// First row asked for.
        begin: usize,
        /// One past the last row asked for.
        end: usize,
    },
    /// The buffer for rows has the wrong length.
    #[error("reading \"{name}\" gives {needed} elements; the buffer has {found}")]
    WrongBufferLength {
        /// The tensor.
        name: String,
        /// Elements that the rows hold.
        needed: usize,
        /// Elements in the buffer.
        found: usize,
    },
    /// A folder that is to be written already holds files.
    #[error("{} is not empty: choose another folder, or remove it first", .path.display())]
    TargetNotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A tensor that cannot be written to safetensors: a block format, a repeated name, or more
    /// bytes than can be counted.
    #[error("writing {}: tensor \"{name}\" of type {dtype} and shape {shape:?} cannot be written: {reason}", .path.display())]
    UnwritableTensor {
        /// The file or folder being written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its storage format.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Why not.
        reason: &'static str,
    },
    /// The caller's filling of a tensor that is being written failed.
    #[error("writing {}: tensor \"{name}\" could not be produced: {source}", .path.display())]
    Fill {
        /// The file being written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The caller's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The caller filled a tensor with too few or too many bytes.
    #[error("writing {}: tensor \"{name}\" takes {needed} bytes but {found} were produced", .path.display())]
    WrongFillLength {
        /// The file being written.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Bytes that its type and shape need.
        needed: u64,
        /// Bytes produced, where writing stopped.
        found: u64,
    },
}
