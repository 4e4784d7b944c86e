//! A model's checkpoint: a Hugging Face folder or a GGUF file, shown in one way.

mod fingerprint;
mod folder;
mod from_gguf;
mod read;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::source::ByteFile;
use crate::{Dtype, FormatError, ModelConfig, gguf};

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its Hugging Face name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// How its numbers are stored in the file.
    pub dtype: Dtype,
    /// Its shape, slowest axis first: `[out, in]` for a linear layer.
    pub shape: Vec<usize>,
    /// Bytes that it takes in the file.
    pub bytes: u64,
}

impl TensorInfo {
    /// Rows for reading: the product of all axes but the last; one for a vector or a single number.
    pub fn rows(&self) -> usize {
        match self.shape.split_last() {
            Some((_, leading)) => leading.iter().product(),
            None => 1,
        }
    }

    /// Numbers in a row: the last axis.
    pub fn row_elements(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Numbers in the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// In which order a tensor's rows are in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowOrder {
    /// The order of the Hugging Face checkpoint.
    AsShown,
    /// Within each of `heads` heads, row `i` of the first rotary half is followed by row `i` of the
    /// second (llama.cpp's order for q and k of the llama architecture).
    Interleaved {
        /// Heads among the rows.
        heads: usize,
    },
}

/// Where a tensor's bytes are.
#[derive(Clone, Copy, Debug)]
struct Location {
    /// Index into [`Checkpoint::files`].
    file: usize,
    /// First byte, from the file's start.
    offset: u64,
    order: RowOrder,
}

/// An open checkpoint: headers and configuration are in memory, tensor data is not.
///
/// Reading takes `&self`, so that several threads can read rows at once.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    generation_config: Option<Map<String, Value>>,
    metadata: Option<gguf::Metadata>,
    files: Vec<ByteFile>,
    tensors: Vec<TensorInfo>,
    locations: Vec<Location>,
    index: HashMap<String, usize>,
}

impl Checkpoint {
    /// Opens a folder (`config.json` with `model.safetensors`, or with shards and
    /// `model.safetensors.index.json`) or a `.gguf` file. Only headers are read, and a GGUF's small
    /// table of rotary divisors where it has one.
    ///
    /// # Errors
    /// A variant of [`FormatError`] for each way in which the files can be wrong.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        if path.is_dir() {
            return folder::open(path);
        }
        // A path that does not exist is reported as such by the operating system.
        let status = std::fs::metadata(path).map_err(|source| FormatError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        if !status.is_file() || path.extension().is_none_or(|extension| extension != "gguf") {
            return Err(FormatError::NotACheckpoint { path: path.to_owned() });
        }
        from_gguf::open(path)
    }

    /// The folder or file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The `generation_config.json` of a folder that has one.
    pub fn generation_config(&self) -> Option<&Map<String, Value>> {
        self.generation_config.as_ref()
    }

    /// The metadata of a GGUF file (tokenizer and chat template); `None` for a folder.
    pub fn gguf_metadata(&self) -> Option<&gguf::Metadata> {
        self.metadata.as_ref()
    }

    /// Every tensor, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor of a name, which must have this shape.
    ///
    /// # Errors
    /// [`FormatError::MissingTensor`] or [`FormatError::WrongShape`]: configuration and weights
    /// disagree.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, FormatError> {
        let Some(tensor) = self.tensor(name) else {
            return Err(FormatError::MissingTensor {
                path: self.path.clone(),
                name: name.to_owned(),
            });
        };
        if tensor.shape != shape {
            return Err(FormatError::WrongShape {
                path: self.path.clone(),
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        Ok(tensor)
    }

    fn new(path: &Path, config: ModelConfig) -> Self {
        Self {
            path: path.to_owned(),
            config,
            generation_config: None,
            metadata: None,
            files: Vec::new(),
            tensors: Vec::new(),
            locations: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds a tensor whose name is not there yet; its file is the one added last.
    fn push(&mut self, info: TensorInfo, offset: u64, order: RowOrder) {
        debug_assert!(!self.index.contains_key(&info.name) && !self.files.is_empty());
        self.index.insert(info.name.clone(), self.tensors.len());
        self.locations.push(Location { file: self.files.len() - 1, offset, order });
        self.tensors.push(info);
    }
}
