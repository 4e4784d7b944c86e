//! Merging: a base with an adapter added ([`Weights`]), and writing a whole checkpoint that transformers loads: weights,
//! `config.json`, `generation_config.json`.

mod error;
mod weights;

pub use error::MergeError;
pub use weights::{Tensor, Weights};

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::safetensors::{self, OutputTensor};
use crate::write::{StagedFolder, atomic_json};
use crate::{Dtype, FormatError, ModelConfig};

/// The size that a file of weights stays under, bytes: the limit of the hub's `save_pretrained`.
pub const DEFAULT_MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// What goes into the folder beside the weights.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// The model's configuration; see [`ModelConfig::to_json`].
    pub config: &'a ModelConfig,
    /// The float type named in `config.json`: that of the weights.
    pub dtype: Dtype,
    /// The `generation_config.json`, where there is one.
    pub generation_config: Option<&'a Map<String, Value>>,
    /// Other files to put there: names and contents (tokenizer, chat template).
    pub extra_files: &'a [(&'a str, &'a [u8])],
    /// The size that a file of weights stays under, bytes.
    pub max_shard_bytes: u64,
}

/// A checkpoint that is written and not yet in its place; dropping it leaves nothing.
pub struct Staged {
    folder: StagedFolder,
    files: Vec<PathBuf>,
}

impl Staged {
    /// Where it is meanwhile, to be read and checked.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts it in its place. Gives the names of the files.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn commit(self) -> Result<Vec<PathBuf>, FormatError> {
        self.folder.commit()?;
        Ok(self.files)
    }
}

/// Writes a checkpoint beside `folder`, which must not exist or be empty.
///
/// `tensors` have Hugging Face names and shapes; they are filled one at a time. With tied
/// embeddings there should be no `lm_head.weight`, as in the files of `save_pretrained`.
///
/// # Errors
/// As [`safetensors::write`], and [`FormatError::TargetNotEmpty`].
pub fn stage(
    folder: &Path,
    description: Description<'_>,
    tensors: Vec<OutputTensor<'_>>,
) -> Result<Staged, FormatError> {
    let staged = StagedFolder::create(folder)?;
    let mut files = safetensors::write_sharded(
        staged.path(),
        "model",
        description.max_shard_bytes,
        // Versions 4 of transformers refuse a file that does not say which framework it is for.
        &[("format", "pt")],
        tensors,
    )?;
    let mut put = |name: &str, object: &Map<String, Value>| {
        files.push(name.into());
        atomic_json(&staged.path().join(name), object)
    };
    put("config.json", &description.config.to_json(description.dtype))?;
    if let Some(generation) = description.generation_config {
        put("generation_config.json", generation)?;
    }
    for (name, contents) in description.extra_files {
        files.push(name.into());
        let path = staged.path().join(name);
        crate::write::atomic_file(&path, |writer| {
            writer.write_all(contents).map_err(crate::write::io_error("write", &path))
        })?;
    }
    Ok(Staged { folder: staged, files })
}

/// Writes a checkpoint to `folder`: it appears whole, or not at all. Gives the names of the files written.
///
/// # Errors
/// As [`stage`].
pub fn write(
    folder: &Path,
    description: Description<'_>,
    tensors: Vec<OutputTensor<'_>>,
) -> Result<Vec<PathBuf>, FormatError> {
    stage(folder, description, tensors)?.commit()
}
