//! An open GGUF file.

use std::path::Path;

use super::{Header, Metadata, Tensor};
use crate::FormatError;
use crate::source::ByteFile;

/// An open GGUF file: its header is in memory, its tensor data is not.
#[derive(Debug)]
pub struct File {
    source: ByteFile,
    header: Header,
}

impl File {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`FormatError::Io`] where the file cannot be read and [`FormatError::Gguf`] where it is
    /// wrong.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let source = ByteFile::open(path)?;
        let header = Header::read(source.stream(), source.len())
            .map_err(|source| FormatError::Gguf { path: path.to_owned(), source })?;
        Ok(Self { source, header })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// The key-value metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The tensors under the file's own names, in the file's order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.header.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.header.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// All of a tensor's numbers, in the file's own row order. For small tensors such as
    /// `rope_freqs.weight`; weights are read through [`crate::Checkpoint`], tile by tile.
    pub(crate) fn read_small_f32(&self, tensor: &Tensor) -> Result<Vec<f32>, FormatError> {
        let bytes = usize::try_from(tensor.bytes).unwrap_or(usize::MAX);
        if bytes > MAX_SMALL_BYTES || !tensor.dtype.is_readable() {
            return Err(FormatError::Gguf {
                path: self.path().to_owned(),
                source: super::Error::OverLimit {
                    what: "the size in bytes of a table of numbers",
                    found: tensor.bytes,
                    limit: MAX_SMALL_BYTES as u64,
                },
            });
        }
        let mut raw = vec![0; bytes];
        self.source.read_at(tensor.offset, &mut raw)?;
        let mut numbers = vec![0.0; tensor.shape.iter().product()];
        super::dequantize(tensor.dtype, &raw, &mut numbers);
        Ok(numbers)
    }

    pub(crate) fn into_parts(self) -> (ByteFile, Header) {
        (self.source, self.header)
    }
}

/// The largest tensor that [`File::read_small_f32`] reads, bytes.
const MAX_SMALL_BYTES: usize = 1 << 16;
