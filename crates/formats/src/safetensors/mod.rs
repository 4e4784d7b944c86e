//! safetensors: a JSON header of names, types, shapes and byte ranges, then the bytes.
//!
//! Source: the format's description in the safetensors repository, README.md ("Format"). The header
//! is parsed here rather than by the `safetensors` crate, so that each way in which a file can be
//! wrong has its own error, duplicate names among them; the tests hold the two against each other.

mod error;
mod header;
mod index;
mod writer;

pub use crate::output::{FillError, OutputTensor};
pub use error::{Error, IndexError};
pub use header::{Header, MAX_HEADER_BYTES, MAX_TENSORS, Tensor};
pub(crate) use index::Index;
pub use index::{MAX_INDEX_BYTES, MAX_SHARDS};
pub use writer::{write, write_sharded};
