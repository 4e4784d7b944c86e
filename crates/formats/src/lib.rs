//! Checkpoint files: safetensors, GGUF, config.json, PEFT adapters.
//!
//! [`Checkpoint::open`] takes a Hugging Face folder or a `.gguf` file and shows both in one way:
//! Hugging Face tensor names and shapes, a checked [`ModelConfig`], and rows of numbers read tile
//! by tile, whatever the storage format. Opening reads headers only.
//!
//! Every reader has named limits and a typed error for each way its input can be wrong; nothing
//! panics on input. Every writer writes to a temporary file, syncs and renames: a file is there
//! whole or not at all.

#[cfg(target_endian = "big")]
compile_error!(
    "checkpoint files are little-endian and are read and written without swapping bytes"
);

pub mod checkpoint;
pub mod config;
mod dtype;
mod error;
pub mod export;
pub mod gguf;
pub mod merged;
mod output;
pub mod peft;
pub mod safetensors;
mod source;
mod write;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use config::{Architecture, ModelConfig, RopeScaling};
pub use dtype::Dtype;
pub use error::FormatError;
