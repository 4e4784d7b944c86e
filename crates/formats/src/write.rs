//! Files and folders that appear whole or not at all: write beside the target, sync, rename.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::FormatError;

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FormatError {
    let path = path.to_owned();
    move |source| FormatError::Io { action, path, source }
}

/// The folder that holds a path; `.` for a bare file name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a rename or a new entry of a folder durable.
fn sync_folder(folder: &Path) -> Result<(), FormatError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("sync", folder))
}

/// Writes a file through `fill` and puts it in place of `path`, replacing what is there. Where
/// `fill` fails, nothing of it is left.
pub(crate) fn atomic_file(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let folder = parent(path);
    // The error of the temporary file would name that one.
    fs::metadata(folder).map_err(io_error("create a file in", folder))?;
    // Temporary files are private by default; these become ordinary files, so the umask decides.
    let staged = tempfile::Builder::new()
        .prefix(".writing-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(io_error("create a file in", folder))?;
    let mut writer = BufWriter::with_capacity(1 << 18, staged);
    fill(&mut writer)?;
    let staged =
        writer.into_inner().map_err(|error| io_error("write", path)(error.into_error()))?;
    staged.as_file().sync_all().map_err(io_error("sync", path))?;
    staged.persist(path).map_err(|error| io_error("rename a file to", path)(error.error))?;
    sync_folder(folder)
}

/// Writes pretty JSON with a newline at the end, as transformers and peft do.
pub(crate) fn atomic_json(path: &Path, object: &impl serde::Serialize) -> Result<(), FormatError> {
    atomic_file(path, |writer| {
        serde_json::to_writer_pretty(&mut *writer, object)
            .map_err(io::Error::from)
            .and_then(|()| writer.write_all(b"\n"))
            .map_err(io_error("write", path))
    })
}

/// A folder that is filled beside its target and then renamed to it.
pub(crate) struct StagedFolder {
    staged: TempDir,
    target: PathBuf,
}

impl StagedFolder {
    /// Begins a folder at `target`, which must not exist or be empty.
    pub(crate) fn create(target: &Path) -> Result<Self, FormatError> {
        match fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(FormatError::TargetNotEmpty { path: target.to_owned() });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("write to", target)(error)),
        }
        let folder = parent(target);
        fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let staged = tempfile::Builder::new()
            .prefix(".writing-")
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(folder)
            .map_err(io_error("create a folder in", folder))?;
        Ok(Self { staged, target: target.to_owned() })
    }

    /// Where to write meanwhile.
    pub(crate) fn path(&self) -> &Path {
        self.staged.path()
    }

    /// Puts the folder in its place.
    pub(crate) fn commit(self) -> Result<(), FormatError> {
        sync_folder(self.staged.path())?;
        // Renaming onto an empty folder replaces it; onto one filled meanwhile it fails.
        fs::rename(self.staged.path(), &self.target)
            .map_err(io_error("rename a folder to", &self.target))?;
        // The folder has moved: there is nothing left for the guard to remove.
        let _moved = self.staged.keep();
        sync_folder(parent(&self.target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        atomic_file(&path, |w| w.write_all(b"old").map_err(io_error("write", &path))).unwrap();
        let error = atomic_file(&path, |w| {
            w.write_all(b"new").map_err(io_error("write", &path))?;
            Err(FormatError::NotAFile { path: path.clone() })
        });
        assert!(matches!(error, Err(FormatError::NotAFile { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        let staged = StagedFolder::create(&target).unwrap();
        fs::write(staged.path().join("file"), b"x").unwrap();
        drop(staged);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "an abandoned folder is left");

        let staged = StagedFolder::create(&target).unwrap();
        fs::write(staged.path().join("file"), b"x").unwrap();
        assert!(!target.exists());
        staged.commit().unwrap();
        assert_eq!(fs::read(target.join("file")).unwrap(), b"x");
        let again = StagedFolder::create(&target);
        assert!(matches!(again, Err(FormatError::TargetNotEmpty { .. })));
        let onto_a_file = StagedFolder::create(&target.join("file"));
        assert!(matches!(onto_a_file, Err(FormatError::Io { .. })));
    }
}
