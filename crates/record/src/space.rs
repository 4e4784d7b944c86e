//! Room on the disk: asked for before it is needed, and held.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::durable::WRITING;
use crate::error::{RecordError, io};

/// Bytes that this user may still write to the file system of a folder. The folder, or one above it, must exist.
///
/// # Errors
/// [`RecordError::Io`].
pub fn free_bytes(folder: &Path) -> Result<u64, RecordError> {
    // Above a relative path of one part is the empty one, which exists nowhere: the working directory.
    let place = folder.ancestors().find(|place| place.exists()).unwrap_or(Path::new("."));
    let stat = statvfs(place)
        .map_err(|error| io("ask for the free space of", place)(std::io::Error::from(error)))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Blocks of the disk that are held for a file to come: given back just before it is written.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    /// Whether the file system could hold them.
    held: bool,
}

impl Reserve {
    /// Holds `bytes` in a folder for what `name` says. A file system that cannot hold blocks is left to [`free_bytes`].
    ///
    /// # Errors
    /// [`RecordError::Io`], above all where the disk has no room for them.
    pub fn hold(folder: &Path, name: &str, bytes: u64) -> Result<Reserve, RecordError> {
        // Called like a file that is being written: what cleans up after a kill removes it.
        let path = folder.join(format!("{WRITING}room-for-{name}"));
        let file = File::create(&path).map_err(io("create", &path))?;
        let held = match fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            Ok(()) => true,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => false,
            Err(error) => {
                let _ = fs::remove_file(&path);
                return Err(io("reserve space in", folder)(std::io::Error::from(error)));
            }
        };
        Ok(Reserve { path, held })
    }

    /// Whether blocks are held, and not only counted.
    pub fn is_held(&self) -> bool {
        self.held
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // What stays behind is removed with other halves of files when the run is resumed.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_that_of_the_nearest_folder_that_exists() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(folder.path()).unwrap();
        assert!(free > 1, "tests need some room");
        free_bytes(&folder.path().join("not/yet/there")).unwrap();
        free_bytes(Path::new("nothing-of-this-name")).unwrap();
    }

    #[test]
    fn blocks_are_held_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::hold(folder.path(), "x", 1 << 20).unwrap();
        let path = folder.path().join(".writing-room-for-x");
        let file = fs::metadata(&path).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file);
        assert_eq!(reserve.is_held(), file.len() == 1 << 20 && blocks > 0);
        drop(reserve);
        assert!(!path.exists());
    }

    #[test]
    fn more_than_the_disk_has_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let Ok(reserve) = Reserve::hold(folder.path(), "x", 1 << 62) else {
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            return;
        };
        assert!(!reserve.is_held(), "no disk has 4 EiB");
    }
}
