//! Why a model or adapter cannot be written as GGUF.

use thiserror::Error;

use crate::Dtype;

/// What stands in the way. The path is added by [`crate::FormatError::Export`].
#[derive(Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A tensor or module that llama.cpp's form of the architecture does not have.
    #[error(
        "\"{name}\" has no place in a {architecture} GGUF: llama.cpp would ignore or refuse it"
    )]
    NoPlace {
        /// The tensor or module.
        name: String,
        /// The architecture.
        architecture: crate::Architecture,
    },
    /// A feature of the configuration that llama.cpp does not compute.
    #[error("{feature} cannot be written: llama.cpp has nothing that computes the same")]
    NotComputed {
        /// The feature, with its key in `config.json`.
        feature: &'static str,
    },
    /// Rows that are no whole number of blocks.
    #[error(
        "\"{name}\" has rows of {row} numbers, no multiple of the {block} of a {dtype} block; use bf16 or f16"
    )]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Numbers in its rows.
        row: usize,
        /// Numbers in a block.
        block: usize,
        /// The type asked for.
        dtype: Dtype,
    },
    /// Query or key rows that are not the heads of the configuration, so that they have no order.
    #[error("\"{name}\" has {rows} rows where the configuration's heads have {expected}")]
    WrongRows {
        /// The tensor or module.
        name: String,
        /// Its rows.
        rows: usize,
        /// Heads times their width.
        expected: usize,
    },
    /// The model's numbers are in no storage format that is written.
    #[error("{dtype} is not written: f32, f16, bf16, q8_0 and q4_0 are")]
    NotWritable {
        /// The type asked for.
        dtype: Dtype,
    },
    /// The head of a tied model.
    #[error(
        "the adapter changes \"lm_head\", which this model ties to its input embedding: llama.cpp would apply the change \
         to neither or both"
    )]
    TiedHead,
}
