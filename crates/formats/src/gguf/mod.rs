//! GGUF version 3: the single-file format of llama.cpp.
//!
//! [`File`] gives the metadata and tensors as they are in the file. [`crate::Checkpoint`] presents
//! the same file under Hugging Face names, shapes and row order.

mod cursor;
mod dequantize;
mod error;
mod file;
mod header;
mod metadata;
pub(crate) mod names;
mod quantize;
pub(crate) mod split;
mod writer;

pub use dequantize::dequantize;
pub use error::Error;
pub use file::File;
pub use header::{
    DEFAULT_ALIGNMENT, Header, MAX_ALIGNMENT, MAX_ARRAY_ELEMENTS, MAX_AXES, MAX_METADATA_ENTRIES,
    MAX_NAME_BYTES, MAX_STRING_BYTES, MAX_TENSORS, Tensor,
};
pub use metadata::{Array, Metadata, Value};
pub use quantize::{QuantizeError, is_writable, quantize};
pub use split::MAX_PARTS;
pub use writer::{MAX_WRITTEN_NAME_BYTES, write};

/// The name of a ggml type for messages, also of the ones that are not read.
fn type_name(ggml_type: u32) -> String {
    let name = match ggml_type {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        other => return format!("ggml type {other}"),
    };
    name.to_owned()
}
