//! Files of JSON lines that only grow: `steps.jsonl`, `evals.jsonl`, `tensors.jsonl`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::durable;
use crate::error::{RecordError, io};
use crate::machine::hash_file;

/// A line a step.
pub const STEPS_FILE: &str = "steps.jsonl";
/// A line an evaluation.
pub const EVALS_FILE: &str = "evals.jsonl";
/// A line for the start and for each checkpoint: SHA-256 of every tensor.
pub const TENSORS_FILE: &str = "tensors.jsonl";
/// Field of a step's line with its wall-clock time, seconds: the one that no run repeats.
pub const SECONDS: &str = "seconds";

/// The largest file of lines that is read, bytes.
const ROWS_BYTES_LIMIT: u64 = 1 << 30;

/// An open file of lines.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    file: File,
    /// Of every byte that is to be there.
    written: blake3::Hasher,
}

impl Rows {
    /// Opens a file of a run's folder; `keep` chooses the lines that stay of those that are there, from the first to the
    /// first that it refuses, or that is none of this kind. A line without its end was cut off and goes.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open<T: DeserializeOwned>(
        folder: &Path,
        name: &str,
        mut keep: impl FnMut(&T) -> bool,
    ) -> Result<Rows, RecordError> {
        let path = folder.join(name);
        let text = if path.exists() { read_text(&path)? } else { String::new() };
        let mut end = 0;
        for line in whole_lines(&text) {
            let row = serde_json::from_str(line);
            if !row.is_ok_and(|row| keep(&row)) {
                break;
            }
            end += line.len() + 1;
        }
        let stays = &text.as_bytes()[..end];
        durable::write(folder, name, stays)?;
        let mut written = blake3::Hasher::new();
        written.update(stays);
        let file = OpenOptions::new().append(true).open(&path).map_err(io("open", &path))?;
        Ok(Rows { path, file, written })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn append(&mut self, row: &impl Serialize) -> Result<(), RecordError> {
        let mut line = serde_json::to_vec(row).map_err(|error| RecordError::Malformed {
            path: self.path.clone(),
            reason: format!("a line cannot be written as JSON: {error}"),
        })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(io("write", &self.path))?;
        self.written.update(&line);
        Ok(())
    }

    /// Makes every line durable, and refuses a file that holds anything else by now: called before a checkpoint and before
    /// a seal, which count on them.
    ///
    /// # Errors
    /// [`RecordError::Io`], [`RecordError::NotWritten`].
    pub fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_all().map_err(io("sync", &self.path))?;
        match hash_file(&self.path)? == self.written.finalize().to_hex().as_str() {
            true => Ok(()),
            false => Err(RecordError::NotWritten { path: self.path.clone() }),
        }
    }
}

/// Every whole line of a file of a run's folder; none where there is no such file.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::Malformed`] with the line.
pub fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<T>, RecordError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = read_text(&path)?;
    whole_lines(&text).map(|line| parse(&path, line)).collect()
}

/// The last whole line, without reading more than its file's end; `None` where there is none.
///
/// # Errors
/// As [`read`].
pub fn last<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, RecordError> {
    use std::io::{Read, Seek, SeekFrom};
    const TAIL_BYTES: u64 = 1 << 16;
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let mut file = File::open(&path).map_err(io("open", &path))?;
    let bytes = file.metadata().map_err(io("read", &path))?.len();
    let start = bytes.saturating_sub(TAIL_BYTES);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.read_to_end(&mut tail))
        .map_err(io("read", &path))?;
    let text = String::from_utf8_lossy(&tail);
    // The first line of a tail that begins inside the file may be half a line.
    let skipped = usize::from(start > 0);
    whole_lines(&text).skip(skipped).last().map(|line| parse(&path, line)).transpose()
}

fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'))
}

fn parse<T: DeserializeOwned>(path: &Path, line: &str) -> Result<T, RecordError> {
    serde_json::from_str(line).map_err(|error| RecordError::Malformed {
        path: path.to_owned(),
        reason: format!("a line is not what was written there ({error}): {line:.60}"),
    })
}

fn read_text(path: &Path) -> Result<String, RecordError> {
    durable::check_size(path, ROWS_BYTES_LIMIT)?;
    fs::read_to_string(path).map_err(io("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_may_be_the_only_one_and_half_a_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let last = |text: &str| {
            fs::write(folder.path().join(STEPS_FILE), text).unwrap();
            last::<String>(folder.path(), STEPS_FILE).unwrap()
        };
        assert_eq!(last("\"a\"\n"), Some("a".into()));
        assert_eq!(last("\"a\"\n\"b"), Some("a".into()));
        let long = "x".repeat(1 << 17);
        assert_eq!(last(&format!("\"{long}\"\n")), None);
        assert_eq!(last(&format!("\"{long}\"\n\"b\"\n")), Some("b".into()));
        assert!(read::<String>(folder.path(), STEPS_FILE).unwrap()[0] == long);
        // An empty line was never written.
        fs::write(folder.path().join(STEPS_FILE), "\"a\"\n\n").unwrap();
        assert!(read::<String>(folder.path(), STEPS_FILE).is_err());
    }

    #[test]
    fn what_somebody_else_writes_is_found_before_it_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STEPS_FILE);
        fs::write(&path, "1\n2\n").unwrap();
        let mut rows = Rows::open(folder.path(), STEPS_FILE, |&n: &u32| n < 2).unwrap();
        rows.append(&3).unwrap();
        rows.sync().unwrap();
        fs::write(&path, "1\n4\n").unwrap();
        assert!(matches!(rows.sync(), Err(RecordError::NotWritten { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(rows.sync(), Err(RecordError::Io { action: "read", .. })));
    }

    #[test]
    fn later_lines_and_halves_of_lines_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STEPS_FILE);
        fs::write(&path, "1\n2\n3\n4").unwrap();
        assert_eq!(read::<u32>(folder.path(), STEPS_FILE).unwrap(), [1, 2, 3]);
        assert_eq!(last::<u32>(folder.path(), STEPS_FILE).unwrap(), Some(3));
        let mut rows = Rows::open(folder.path(), STEPS_FILE, |&n: &u32| n <= 2).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n2\n");
        rows.append(&9).unwrap();
        rows.sync().unwrap();
        assert_eq!(read::<u32>(folder.path(), STEPS_FILE).unwrap(), [1, 2, 9]);
    }

    #[test]
    fn a_damaged_line_is_named_or_cut_and_no_file_is_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read::<u32>(folder.path(), STEPS_FILE).unwrap().is_empty());
        assert_eq!(last::<u32>(folder.path(), STEPS_FILE).unwrap(), None);
        fs::write(folder.path().join(STEPS_FILE), "1\nx2\n3\n").unwrap();
        let error = read::<u32>(folder.path(), STEPS_FILE).unwrap_err();
        assert!(error.to_string().contains("x2"), "{error}");
        // Whoever goes on writes from there on.
        Rows::open(folder.path(), STEPS_FILE, |_: &u32| true).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(STEPS_FILE)).unwrap(), "1\n");
    }

    #[test]
    fn a_file_over_the_limit_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        // A hole: it has the length and no blocks.
        let file = File::create(folder.path().join(STEPS_FILE)).unwrap();
        file.set_len(ROWS_BYTES_LIMIT + 1).unwrap();
        let error = read::<u32>(folder.path(), STEPS_FILE).unwrap_err();
        assert!(error.to_string().contains("over the limit"), "{error}");
    }

    #[test]
    fn lines_that_cannot_be_made_durable_are_an_error() {
        // A device that keeps nothing has nothing to sync, and says so.
        let path = PathBuf::from("/dev/null");
        let (file, written) = (File::open(&path).unwrap(), blake3::Hasher::new());
        let rows = Rows { file, path, written };
        assert!(matches!(rows.sync(), Err(RecordError::Io { action: "sync", .. })));
    }

    #[test]
    fn the_last_line_of_a_long_file_is_found_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let text: String = (0..20_000).map(|n| format!("{n}\n")).collect();
        fs::write(folder.path().join(STEPS_FILE), text).unwrap();
        assert_eq!(last::<u32>(folder.path(), STEPS_FILE).unwrap(), Some(19_999));
    }
}
