//! Taking a folder for a run, and holding it against other processes.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use record::durable::{self, WRITING};
use record::{
    Broken, Change, Identity, LOCK_FILE, PATCH_FILE, RECORD_FILE, Record, Reserve, SETTINGS, Status,
};

use super::error::{RunError, io};

/// Begins a run's folder, which must hold nothing, and holds it for this process until the file is closed.
pub(crate) fn create(folder: &Path) -> Result<File, RunError> {
    check_empty(folder)?;
    fs::create_dir_all(folder).map_err(io("create", folder))?;
    let lock = lock(folder)?;
    // Another process may have begun a run between the look and the lock.
    check_empty(folder)?;
    Ok(lock)
}

/// Makes room for checkpoints: after the record, so that a folder without one holds nothing that must be kept.
pub(crate) fn make_checkpoints(folder: &Path) -> Result<(), RunError> {
    let checkpoints = folder.join(super::CHECKPOINTS);
    fs::create_dir_all(&checkpoints).map_err(io("create", &checkpoints))?;
    durable::sync_folder(folder)?;
    Ok(())
}

/// Refuses where the disk of a folder has not `needed` bytes free for `what`.
pub(crate) fn need_space(folder: &Path, what: &str, needed: u64) -> Result<(), RunError> {
    let free = record::free_bytes(folder)?;
    if free >= needed {
        return Ok(());
    }
    Err(RunError::NoSpace { path: folder.to_owned(), what: what.to_owned(), needed, free })
}

/// Holds room for the next checkpoint.
pub(crate) fn reserve(folder: &Path, bytes: u64) -> Result<Reserve, RunError> {
    need_space(folder, "the next checkpoint", bytes)?;
    Ok(Reserve::hold(&folder.join(super::CHECKPOINTS), "checkpoint", bytes)?)
}

fn check_empty(folder: &Path) -> Result<(), RunError> {
    if folder.join(RECORD_FILE).exists() {
        return Err(RunError::RunExists { path: folder.to_owned() });
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("read", folder)(error)),
    };
    for entry in entries {
        let name = entry.map_err(io("read", folder))?.file_name();
        let name = name.to_string_lossy().into_owned();
        // What a process that was killed before its first record leaves.
        let leftover = [LOCK_FILE, PATCH_FILE].contains(&name.as_str());
        if !leftover && !name.starts_with(WRITING) {
            return Err(RunError::NotEmpty { path: folder.to_owned(), name });
        }
    }
    Ok(())
}

/// Takes a run's folder for this process, until the file is closed. The system gives it back when the process dies.
pub(crate) fn lock(folder: &Path) -> Result<File, RunError> {
    let path = folder.join(LOCK_FILE);
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RunError::InUse { path: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// What changed since a run began, and in its files since it was stopped or failed; an error for a change that is not
/// allowed, and for an allowance that no run knows.
pub(crate) fn verify(
    folder: &Path,
    was: &Record,
    now: &Identity,
    allowed: &[String],
) -> Result<Vec<Change>, RunError> {
    let seal = [SETTINGS, SEAL];
    let mut known: Vec<&str> = was.identity.keys().chain(now.keys()).chain(seal).collect();
    known.sort_unstable();
    known.dedup();
    if let Some(unknown) = allowed.iter().find(|key| !known.contains(&key.as_str())) {
        return Err(RunError::UnknownChange {
            key: unknown.clone(),
            nearest: families::nearest(unknown, known.iter().copied()).map(str::to_owned),
            known: known.join(", "),
        });
    }
    let mut changes = was.identity.changes(now);
    changes.extend(altered(folder, &was.status)?);
    let refused: Vec<Change> =
        changes.iter().filter(|change| !change.allowed_by(allowed)).cloned().collect();
    if refused.is_empty() {
        return Ok(changes);
    }
    Err(RunError::Changed { path: folder.to_owned(), changes: refused })
}

/// What a change of a run's files is called.
const SEAL: &str = "seal";

/// What a broken seal says of a run that is to go on. One that was killed has none.
fn altered(folder: &Path, status: &Status) -> Result<Option<Change>, RunError> {
    if !matches!(status, Status::Stopped { .. } | Status::Failed { .. }) {
        return Ok(None);
    }
    let broken = match record::read_seal(folder)? {
        Some(seal) => seal.verify(folder, None)?,
        None if status.is_sealed() => vec![Broken::NoSeal],
        None => Vec::new(),
    };
    if broken.is_empty() {
        return Ok(None);
    }
    let said: Vec<String> = broken.iter().map(Broken::to_string).collect();
    let is = format!("broken: {}", said.join(", "));
    Ok(Some(Change { key: SEAL.into(), setting: false, was: "intact".into(), is }))
}
