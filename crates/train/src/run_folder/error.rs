//! What can be wrong with a run's folder.

use std::path::{Path, PathBuf};

use formats::FormatError;
use program::ledger::Bytes;
use record::{Change, RecordError};

/// A run folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
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
    /// There is a run in the folder.
    #[error(
        "{0} already holds a run; go on with it (--resume {0}), or choose another folder", path.display()
    )]
    RunExists {
        /// The folder.
        path: PathBuf,
    },
    /// Another process has the run.
    #[error("{} is in use by another run; wait for it, or stop it", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Something else is in the folder.
    #[error("{} is not empty (it holds `{name}`); choose another folder", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// One thing in it.
        name: String,
    },
    /// The run in the folder is finished.
    #[error("the run in {} is finished; its product is {}", path.display(), product.display())]
    Finished {
        /// The folder.
        path: PathBuf,
        /// What it made.
        product: PathBuf,
    },
    /// The record could not be written or read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The run in the folder is another one.
    #[error(
        "the run in {} cannot be resumed: {}. Put it back, start a new run in another folder, or let it pass with \
         --allow-changed {}",
        path.display(),
        changes.iter().map(Change::to_string).collect::<Vec<_>>().join("; "),
        changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>().join(",")
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// What changed.
        changes: Vec<Change>,
    },
    /// What decides the shape of a checkpoint's tensors is otherwise.
    #[error(
        "the run in {} cannot be resumed: {}. Its checkpoints hold tensors of other shapes: put it back, or start a new run \
         in another folder", path.display(), changes.iter().map(Change::to_string).collect::<Vec<_>>().join("; ")
    )]
    OtherShapes {
        /// The folder.
        path: PathBuf,
        /// What changed.
        changes: Vec<Change>,
    },
    /// A run that is asked to end before it is.
    #[error(
        "the run in {} has a checkpoint after step {step}, and with these settings it has {steps} steps: ask for as many, or \
         remove later checkpoints", path.display()
    )]
    BeyondTheEnd {
        /// The folder.
        path: PathBuf,
        /// Steps done.
        step: usize,
        /// Steps in all.
        steps: usize,
    },
    /// A checkpoint that cannot be gone on from.
    #[error(
        "{}: {reason}. Remove the checkpoint's folder to resume from the one before, or start a new run", path.display()
    )]
    Unusable {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Something is let pass that no run has.
    #[error(
        "--allow-changed {key}: nothing of a run is called so{}; known are {known}",
        nearest.as_ref().map_or(String::new(), |n| format!(" (did you mean `{n}`?)"))
    )]
    UnknownChange {
        /// What was let pass.
        key: String,
        /// The nearest that there is.
        nearest: Option<String>,
        /// Everything that there is.
        known: String,
    },
    /// A checkpoint's bytes are not those that were written.
    #[error(
        "{} is damaged: its bytes hash to {found} and were written as {written}. Remove the checkpoint's folder to \
         resume from the one before", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The hash that it was written with.
        written: String,
        /// The hash that it has.
        found: String,
    },
    /// A checkpoint does not hold what the model takes.
    #[error("{}: {reason}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Fewer steps were logged than the checkpoint has done.
    #[error(
        "{} has {lines} whole lines and the newest checkpoint was made after step {step}; the log is damaged. Remove \
         checkpoints after step {lines} to resume from before them, or start a new run",
        path.display()
    )]
    LogTooShort {
        /// The log.
        path: PathBuf,
        /// Whole lines in it.
        lines: usize,
        /// Steps of the checkpoint.
        step: usize,
    },
    /// A log is not the one that the checkpoint was made with.
    #[error(
        "the first {bytes} bytes of {} are not those that {} was made with: the log was changed, or the checkpoint is \
         another run's. Put the log back, remove the checkpoint's folder to resume from the one before, or start a new run",
        path.display(), checkpoint.display()
    )]
    LogChanged {
        /// The log.
        path: PathBuf,
        /// The checkpoint.
        checkpoint: PathBuf,
        /// Bytes that it counts on.
        bytes: u64,
    },
    /// A checkpoint that was just written reads back otherwise than it was.
    #[error(
        "{}: {reason}; what was written is not what reads back, so the disk or the memory is faulty. The checkpoint \
         before it was kept", path.display()
    )]
    Unfaithful {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// The disk has no room for what the run will write.
    #[error(
        "{} has {} free and {what} needs {}; free some space, keep fewer checkpoints (keep_checkpoints), or \
         choose another folder",
        path.display(), Bytes(*free as usize), Bytes(*needed as usize)
    )]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// What is to be written.
        what: String,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file could not be written.
    #[error(transparent)]
    Format(#[from] Box<FormatError>),
    /// Ranks could not join what they hold.
    #[error(transparent)]
    Ranks(#[from] engine::EngineError),
}

pub(super) fn io(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> RunError + use<> {
    let path = path.to_owned();
    move |source| RunError::Io { action, path, source }
}
