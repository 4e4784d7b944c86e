//! Tensors on their way to a file: described first, produced when their turn comes.

use std::io::{self, Write};
use std::path::Path;

use crate::{Dtype, FormatError};

/// Why a caller could not produce a tensor's bytes.
pub type FillError = Box<dyn std::error::Error + Send + Sync>;

/// Writes a tensor's bytes, little-endian and row by row, to the stream that it is given.
type Fill<'a> = Box<dyn FnOnce(&mut dyn Write) -> Result<(), FillError> + 'a>;

/// A tensor to write.
pub struct OutputTensor<'a> {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    fill: Fill<'a>,
}

impl<'a> OutputTensor<'a> {
    /// A tensor whose bytes `fill` writes when its turn comes: exactly as many as type and shape
    /// need.
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), FillError> + 'a,
    ) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), fill: Box::new(fill) }
    }

    /// An f32 tensor that is in memory.
    pub fn f32(name: impl Into<String>, shape: impl Into<Vec<usize>>, numbers: &'a [f32]) -> Self {
        Self::new(name, Dtype::F32, shape, |writer| {
            Ok(writer.write_all(bytemuck::cast_slice(numbers))?)
        })
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that its type and shape need; `None` where they cannot be counted, or where a row is no whole number of
    /// blocks.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let (width, leading) = match self.shape.split_last() {
            Some((&width, leading)) => (width as u64, leading),
            None => (1, &[][..]),
        };
        let row = self.dtype.bytes_of(width)?;
        leading.iter().try_fold(row, |bytes, &axis| bytes.checked_mul(axis as u64))
    }

    /// Lets the caller write the tensor, and holds it to the number of bytes.
    pub(crate) fn write(
        self,
        path: &Path,
        writer: &mut dyn Write,
        needed: u64,
    ) -> Result<(), FormatError> {
        let OutputTensor { name, fill, .. } = self;
        let mut counted = Counted { writer, left: needed, over: 0 };
        let result = fill(&mut counted);
        let found = needed - counted.left + counted.over;
        if counted.over > 0 || (result.is_ok() && counted.left > 0) {
            return Err(FormatError::WrongFillLength {
                path: path.to_owned(),
                name,
                needed,
                found,
            });
        }
        result.map_err(|source| FormatError::Fill { path: path.to_owned(), name, source })
    }
}

/// Passes on no more bytes than a tensor takes.
struct Counted<'a> {
    writer: &'a mut dyn Write,
    left: u64,
    /// Bytes offered beyond the tensor's end.
    over: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.over = bytes.len() as u64 - self.left;
            self.left = 0;
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                "more bytes than the tensor takes",
            ));
        }
        let written = self.writer.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
