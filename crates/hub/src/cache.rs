//! The cache folder: where it is, and how writers keep out of each other's way.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::HubError;

/// The cache folder: `$SAMEBIT_CACHE`, else `$XDG_CACHE_HOME/samebit`, else `~/.cache/samebit`.
///
/// # Errors
/// [`HubError::NoCacheFolder`] when none of the three variables is set.
pub fn default_folder() -> Result<PathBuf, HubError> {
    folder_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn folder_from(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<PathBuf, HubError> {
    if let Some(folder) = variable("SAMEBIT_CACHE") {
        return Ok(folder.into());
    }
    if let Some(folder) = variable("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(folder).join("samebit"));
    }
    match variable("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cache/samebit")),
        None => Err(HubError::NoCacheFolder),
    }
}

/// Turns a failure to write at `path` into the error for it.
pub(crate) fn not_writable(path: &Path) -> impl FnOnce(std::io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::CacheNotWritable { path, source }
}

/// Makes a folder and its parents.
pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(not_writable(path))
}

/// Held while one model is being fetched; other processes and threads wait.
pub(crate) struct Lock {
    /// Locked until it is closed.
    _file: File,
}

/// Takes the lock at `path`, waiting for its holder. The file stays: removing it would let two callers lock two files
/// of one name.
pub(crate) fn lock(path: &Path) -> Result<Lock, HubError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(not_writable(path))?;
    file.lock().map_err(not_writable(path))?;
    Ok(Lock { _file: file })
}

/// Writes a small file whole or not at all.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    make_folder(folder)?;
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(not_writable(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_three_variables_in_order() {
        let with = |set: &[(&str, &str)]| {
            let found = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into());
            folder_from(found)
        };
        let all = [("SAMEBIT_CACHE", "/s"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(with(&all).unwrap(), Path::new("/s"));
        assert_eq!(with(&all[1..]).unwrap(), Path::new("/x/samebit"));
        assert_eq!(with(&all[2..]).unwrap(), Path::new("/h/.cache/samebit"));
        assert!(matches!(with(&[]), Err(HubError::NoCacheFolder)));
    }

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let held = lock(&path).unwrap();
        assert!(File::open(&path).unwrap().try_lock().is_err());
        drop(held);
        assert!(File::open(&path).unwrap().try_lock().is_ok());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        for result in [
            make_folder(&file.join("a")),
            write_whole(&file.join("b"), b"x"),
            lock(&file.join("c")).map(drop),
        ] {
            assert!(matches!(result, Err(HubError::CacheNotWritable { .. })));
        }
    }
}
