//! Positioned reads of a file.
//!
//! Tensor data is read with `pread` into small tiles rather than through a memory map: a file that
//! shrinks while it is read is then an error and not a SIGBUS, and the pages of the checkpoint are
//! not counted in the process's resident memory, which the plan of a run predicts to the byte.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::FormatError;

/// An open file and its length at the time of opening.
#[derive(Debug)]
pub(crate) struct ByteFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl ByteFile {
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        let io_error = |source| FormatError::Io { action: "open", path: path.to_owned(), source };
        let file = File::open(path).map_err(io_error)?;
        let status = file.metadata().map_err(io_error)?;
        if !status.is_file() {
            return Err(FormatError::NotAFile { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), file, len: status.len() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The file as a stream from its start.
    pub(crate) fn stream(&self) -> io::BufReader<&File> {
        io::BufReader::with_capacity(1 << 16, &self.file)
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        self.file.read_exact_at(out, offset).map_err(|source| FormatError::Io {
            action: "read",
            path: self.path.clone(),
            source,
        })
    }
}
