//! Files that appear whole or not at all, and folders whose entries are durable: write beside the target, sync, rename.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{RecordError, io};

/// The largest JSON file of a run, bytes.
const JSON_BYTES_LIMIT: u64 = 64 << 20;

/// What files and folders are called while they are written.
pub const WRITING: &str = ".writing-";

/// Makes new entries of a folder durable.
///
/// # Errors
/// [`RecordError::Io`].
pub fn sync_folder(folder: &Path) -> Result<(), RecordError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(io("sync", folder))
}

/// Writes bytes as `name` in a folder, in place of what is there only when all of them are on the disk.
///
/// # Errors
/// [`RecordError::Io`].
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), RecordError> {
    let path = folder.join(name);
    // Temporary files are private by default; these become ordinary files, so the umask decides.
    let mut staged = tempfile::Builder::new()
        .prefix(WRITING)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(io("create a file in", folder))?;
    staged.write_all(bytes).map_err(io("write", &path))?;
    staged.as_file().sync_all().map_err(io("sync", &path))?;
    staged.persist(&path).map_err(|error| io("rename a file to", &path)(error.error))?;
    sync_folder(folder)
}

/// Writes ([`write()`]) a value as JSON with a newline at the end.
///
/// # Errors
/// [`RecordError::Io`]; [`RecordError::Malformed`] for a value that JSON cannot hold.
pub fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<(), RecordError> {
    write(folder, name, &json(&folder.join(name), value)?)
}

/// The bytes of a JSON file.
pub(crate) fn json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, RecordError> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| RecordError::Malformed {
        path: path.to_owned(),
        reason: format!("it cannot be written as JSON: {error}"),
    })?;
    text.push(b'\n');
    Ok(text)
}

/// Reads a value from JSON.
///
/// # Errors
/// [`RecordError::Io`]; [`RecordError::Malformed`] for what is not that JSON, or over the size limit.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    read_json_within(path, JSON_BYTES_LIMIT)
}

/// The same of a file of at most `limit` bytes.
///
/// # Errors
/// As [`read_json`].
pub fn read_json_within<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, RecordError> {
    check_size(path, limit)?;
    let text = fs::read(path).map_err(io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| RecordError::Malformed {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Refuses a file of more than `limit` bytes.
pub(crate) fn check_size(path: &Path, limit: u64) -> Result<(), RecordError> {
    let bytes = fs::metadata(path).map_err(io("read", path))?.len();
    if bytes > limit {
        let reason = format!("{bytes} bytes are over the limit of {limit}");
        return Err(RecordError::Malformed { path: path.to_owned(), reason });
    }
    Ok(())
}

/// Removes a folder with what is in it, if it is there.
///
/// # Errors
/// [`RecordError::Io`].
pub fn remove_folder(folder: &Path) -> Result<(), RecordError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_replaced_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1, 2] {
            write_json(folder.path(), "a.json", &value).unwrap();
            assert_eq!(read_json::<i32>(&folder.path().join("a.json")).unwrap(), value);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_are_as_readable_as_any_other() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "ours", b"x").unwrap();
        fs::write(folder.path().join("plain"), b"x").unwrap();
        let mode =
            |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("ours"), mode("plain"));
    }

    #[test]
    fn what_is_not_that_json_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        assert!(matches!(read_json::<i32>(&path), Err(RecordError::Io { .. })));
        fs::write(&path, "{").unwrap();
        assert!(matches!(read_json::<i32>(&path), Err(RecordError::Malformed { .. })));
        File::create(&path).unwrap().set_len(JSON_BYTES_LIMIT + 1).unwrap();
        let error = read_json::<i32>(&path).unwrap_err();
        assert!(error.to_string().contains("over the limit"), "{error}");
    }

    #[test]
    fn a_file_may_reach_the_limit_and_not_pass_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(&path, "1234").unwrap();
        check_size(&path, 4).unwrap();
        assert!(matches!(check_size(&path, 3), Err(RecordError::Malformed { .. })));
    }

    #[test]
    fn a_folder_that_is_not_there_cannot_be_made_durable() {
        let folder = tempfile::tempdir().unwrap();
        sync_folder(folder.path()).unwrap();
        let error = sync_folder(&folder.path().join("gone")).unwrap_err();
        assert!(matches!(error, RecordError::Io { action: "sync", .. }), "{error}");
    }

    #[test]
    fn a_folder_is_removed_with_what_it_holds_and_no_folder_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        remove_folder(&folder).unwrap();
        fs::create_dir_all(folder.join("b")).unwrap();
        remove_folder(&folder).unwrap();
        assert!(!folder.exists());
        fs::write(&folder, "a file").unwrap();
        let error = remove_folder(&folder).unwrap_err();
        assert!(matches!(error, RecordError::Io { action: "remove", .. }), "{error}");
    }
}
