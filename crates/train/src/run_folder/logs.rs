//! What a checkpoint holds of the run's logs: a checkpoint goes on with the lines that were there when it was made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use record::{EVALS_FILE, STEPS_FILE, TENSORS_FILE};
use serde::{Deserialize, Serialize};

use super::error::{RunError, io};

/// Files of lines that only grow.
const LOGS: [&str; 3] = [STEPS_FILE, EVALS_FILE, TENSORS_FILE];

/// Each log as it was, by name. Lines have times of their own, so that no other run's are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Logs(BTreeMap<String, Log>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Log {
    bytes: u64,
    blake3: String,
}

impl Logs {
    /// Of a run's folder; a log that is not there is left out.
    pub(super) fn of(folder: &Path) -> Result<Logs, RunError> {
        let mut logs = BTreeMap::new();
        for name in LOGS {
            let path = folder.join(name);
            if path.exists() {
                logs.insert(name.to_owned(), hash(&path, u64::MAX)?);
            }
        }
        Ok(Logs(logs))
    }

    /// Refuses logs that do not begin with what was there.
    pub(super) fn verify(&self, folder: &Path, checkpoint: &Path) -> Result<(), RunError> {
        for (name, was) in &self.0 {
            let path = folder.join(name);
            if !path.exists() || hash(&path, was.bytes)? != *was {
                let checkpoint = checkpoint.to_owned();
                return Err(RunError::LogChanged { path, checkpoint, bytes: was.bytes });
            }
        }
        Ok(())
    }
}

/// At most the first `bytes` of a file.
fn hash(path: &Path, bytes: u64) -> Result<Log, RunError> {
    let file = File::open(path).map_err(io("open", path))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.take(bytes)).map_err(io("read", path))?;
    Ok(Log { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn later_lines_change_nothing_and_earlier_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, steps) = (folder.path(), folder.path().join(STEPS_FILE));
        fs::write(&steps, "1\n2\n").unwrap();
        let logs = Logs::of(folder).unwrap();
        let verify = || logs.verify(folder, Path::new("step-2"));
        verify().unwrap();
        fs::write(&steps, "1\n2\n3\n").unwrap();
        // A log that was begun later is nobody's concern.
        fs::write(folder.join(EVALS_FILE), "1\n").unwrap();
        verify().unwrap();
        for changed in ["1\n3\n", "1\n", ""] {
            fs::write(&steps, changed).unwrap();
            let error = verify().unwrap_err().to_string();
            assert!(error.contains(STEPS_FILE) && error.contains("step-2"), "{error}");
        }
        fs::remove_file(&steps).unwrap();
        assert!(matches!(verify(), Err(RunError::LogChanged { .. })));
    }
}
