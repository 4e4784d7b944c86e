//! Taking a folder for a run, and holding it against other processes.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use record::durable::{self, WRITING};
use record::{
    Broken, Change, Identity, LOCK_FILE, PATCH_FILE, RECORD_FILE, Record, Reserve, SETTINGS, Status,
};

use super::CHECKPOINTS;
use super::error::{RunError, io};

/// Begins a run's folder, which must hold nothing, and holds it for this process until the file is closed.
pub(crate) fn create(folder: &Path) -> Result<File, RunError> {
    check_free(folder)?;
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

/// Refuses a folder that a new run cannot have, and changes nothing.
///
/// # Errors
/// [`RunError::RunExists`], [`RunError::NotEmpty`], [`RunError::InUse`]; it cannot be read.
pub fn check_free(folder: &Path) -> Result<(), RunError> {
    // Another run that is at it is the first thing to know, whether it has a record yet or not.
    if folder.join(LOCK_FILE).exists() {
        lock(folder)?;
    }
    check_empty(folder)
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
    has_state: bool,
) -> Result<Vec<Change>, RunError> {
    let mut known: Vec<&str> =
        was.identity.keys().chain(now.keys()).chain([SETTINGS, SEAL, EDITED]).collect();
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
    let shapes = |change: &&Change| change.setting && SHAPES.contains(&change.key.as_str());
    let other: Vec<Change> = changes.iter().filter(shapes).cloned().collect();
    if has_state && !other.is_empty() {
        return Err(RunError::OtherShapes { path: folder.to_owned(), changes: other });
    }
    changes.extend(edited(was));
    changes.extend(altered(folder, &was.status)?);
    let refused: Vec<Change> =
        changes.iter().filter(|change| !change.allowed_by(allowed)).cloned().collect();
    if refused.is_empty() {
        return Ok(changes);
    }
    Err(RunError::Changed { path: folder.to_owned(), changes: refused })
}

/// Settings that decide which tensors are trained, and their shapes.
const SHAPES: [&str; 3] = ["mode", "rank", "targets"];
/// The key of a change of a record that no run wrote.
const EDITED: &str = "record";

/// A record whose settings and hashes are not those that its last session began with.
fn edited(record: &Record) -> Option<Change> {
    let (is, session) = (record.identity.hash(), record.sessions.last()?);
    let was = session.identity.clone();
    (was != is).then(|| Change { key: EDITED.into(), setting: false, was, is })
}

/// The key of a change that a broken seal tells of.
const SEAL: &str = "seal";

/// What a broken seal says of a run that is to go on. One that was killed has none.
fn altered(folder: &Path, status: &Status) -> Result<Option<Change>, RunError> {
    let (_, mut broken) = record::look_at_seal(folder, status, None)?;
    // Whoever removes a checkpoint resumes from the one before it, where there is one.
    if super::newest(folder)?.is_some() {
        let is_checkpoint = |file: &str| file.starts_with(CHECKPOINTS);
        broken.retain(|b| !matches!(b, Broken::Missing(file) if is_checkpoint(file)));
    }
    if broken.is_empty() {
        return Ok(None);
    }
    let said: Vec<String> = broken.iter().map(Broken::to_string).collect();
    let is = format!("broken: {}", said.join(", "));
    Ok(Some(Change { key: SEAL.into(), setting: false, was: "intact".into(), is }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_before_the_first_record_leaves_is_no_obstacle_and_all_else_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run");
        check_empty(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        for name in [LOCK_FILE, PATCH_FILE, ".writing-record.json"] {
            fs::write(folder.join(name), "").unwrap();
            check_empty(&folder).unwrap();
        }
        fs::write(folder.join("notes.txt"), "").unwrap();
        let refused = check_empty(&folder).unwrap_err();
        assert!(matches!(&refused, RunError::NotEmpty { name, .. } if name == "notes.txt"));
        fs::write(folder.join(RECORD_FILE), "").unwrap();
        assert!(matches!(check_empty(&folder), Err(RunError::RunExists { .. })));
        let file = check_empty(&folder.join("notes.txt")).unwrap_err();
        assert!(matches!(file, RunError::Io { action: "read", .. }), "{file}");
    }

    #[test]
    fn a_folder_that_another_run_has_is_not_free() {
        let root = tempfile::tempdir().unwrap();
        check_free(&root.path().join("run")).unwrap();
        let held = create(&root.path().join("run")).unwrap();
        let busy = check_free(&root.path().join("run")).unwrap_err();
        assert!(matches!(busy, RunError::InUse { .. }), "{busy}");
        drop(held);
        check_free(&root.path().join("run")).unwrap();
        fs::write(root.path().join("run").join(RECORD_FILE), "").unwrap();
        let taken = check_free(&root.path().join("run")).unwrap_err();
        assert!(matches!(taken, RunError::RunExists { .. }), "{taken}");
    }

    #[test]
    fn a_disk_needs_as_much_as_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        need_space(folder.path(), "nothing", 0).unwrap();
        let refused = need_space(folder.path(), "all", u64::MAX).unwrap_err();
        assert!(matches!(refused, RunError::NoSpace { .. }), "{refused}");
    }

    #[test]
    fn a_seal_that_is_gone_tells_of_a_run_that_must_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let key = |status| altered(folder.path(), &status).unwrap().map(|change| change.key);
        let failed = Status::Failed { step: None, samples: vec![], error: "disk full".into() };
        let finished = Status::Finished { step: 1, product: "adapter".into(), early: None };
        assert_eq!(key(Status::Stopped { step: 1 }).as_deref(), Some("seal"));
        assert_eq!(key(finished).as_deref(), Some("seal"));
        assert_eq!([key(failed), key(Status::Running)], [None, None]);
    }
}
