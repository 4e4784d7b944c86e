//! What can be wrong with the cache.

use std::path::PathBuf;

/// A cache, or an entry of it, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The file system said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is no entry of this version.
    #[error("{} is no entry of the encode cache of this version", path.display())]
    NotAnEntry {
        /// The file.
        path: PathBuf,
    },
    /// An entry whose bytes are not those that were written.
    #[error("{} is damaged: its hash is not the one written at its end", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// An entry whose parts contradict each other.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// How.
        reason: String,
    },
    /// An entry under another's name.
    #[error("{} holds the entry {found}", path.display())]
    OtherKey {
        /// The file.
        path: PathBuf,
        /// The key inside.
        found: String,
    },
    /// An entry larger than all entries may be together.
    #[error("an entry of {bytes} bytes is over the cache's limit of {limit}; raise the limit")]
    OverLimit {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}
