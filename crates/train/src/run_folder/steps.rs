//! `steps.jsonl`: a line a step.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::durable;
use super::error::{RunError, io};
use crate::observer::StepEvent;

/// The log's file.
pub const STEPS_FILE: &str = "steps.jsonl";

/// The open log.
pub(crate) struct StepsLog {
    path: PathBuf,
    file: File,
}

impl StepsLog {
    /// Opens the log of a run that has done `steps` steps: lines of later steps, which an interrupted run left, go.
    pub(crate) fn open(folder: &Path, steps: usize) -> Result<StepsLog, RunError> {
        let path = folder.join(STEPS_FILE);
        let kept = if steps == 0 { Vec::new() } else { first_lines(&path, steps)? };
        durable::write(folder, STEPS_FILE, &kept)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(io("open", &path))?;
        Ok(StepsLog { path, file })
    }

    /// Adds a line.
    pub(crate) fn append(&mut self, event: &StepEvent) -> Result<(), RunError> {
        let mut line = serde_json::to_vec(event).map_err(|error| RunError::Malformed {
            path: self.path.clone(),
            reason: format!("a step cannot be written as JSON: {error}"),
        })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(io("write", &self.path))
    }

    /// Makes every line durable: called before a checkpoint, which counts on them.
    pub(crate) fn sync(&self) -> Result<(), RunError> {
        self.file.sync_all().map_err(io("sync", &self.path))
    }
}

fn first_lines(path: &Path, steps: usize) -> Result<Vec<u8>, RunError> {
    let mut text = std::fs::read(path).map_err(io("read", path))?;
    let mut lines = 0;
    let end = text.iter().position(|&byte| {
        lines += usize::from(byte == b'\n');
        lines == steps
    });
    let Some(last) = end else {
        return Err(RunError::LogTooShort { path: path.to_owned(), lines, step: steps });
    };
    text.truncate(last + 1);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lines_and_halves_of_lines_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(STEPS_FILE);
        std::fs::write(&path, "1\n2\n3\n4").unwrap();
        StepsLog::open(folder.path(), 2).unwrap().sync().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n");
        let short = StepsLog::open(folder.path(), 3).err();
        assert!(matches!(short, Some(RunError::LogTooShort { lines: 2, step: 3, .. })));
        StepsLog::open(folder.path(), 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
