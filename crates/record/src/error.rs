//! What can be wrong with a record.

use std::path::{Path, PathBuf};

/// A record that cannot be written, read or trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A file of lines holds something else than its run wrote there.
    #[error("{} holds something else than this run wrote there: another program changed it", path.display())]
    NotWritten {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the run cannot be understood.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no run in the folder.
    #[error("{} holds no run (it has no {file}); start one, or name a run's folder", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
        /// The file that is missing.
        file: &'static str,
    },
    /// A record of a format that this version does not read.
    #[error(
        "{} has format {found} and this version reads format {known}; use the samebit that wrote it ({version})",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The format that is read.
        known: u32,
        /// The version that wrote it.
        version: String,
    },
    /// A key file that holds no key.
    #[error("{} is no {kind} key: {reason}; it must hold 64 hexadecimal digits (32 bytes)", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// `signing` or `public`.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A run that goes on is not sealed.
    #[error("the run in {} goes on: only one that has ended is sealed", path.display())]
    NotEnded {
        /// The folder.
        path: PathBuf,
    },
    /// Something in a run's folder cannot be hashed.
    #[error("{} cannot be sealed: {reason}; remove it and resume the run", path.display())]
    Unsealable {
        /// What.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// An annotation that says nothing.
    #[error(
        "an annotation needs words: say what falls (--falls), what survives (--survives), or a note"
    )]
    EmptyAnnotation,
}

/// Names the action and the path of an operating system's refusal.
pub(crate) fn io(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> RecordError + use<> {
    let path = path.to_owned();
    move |source| RecordError::Io { action, path, source }
}
