//! Notes beside a record: what falls and what survives, said later, without touching what was recorded.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::{Reading, rfc3339};
use crate::error::{RecordError, io};
use crate::record::Record;
use crate::{durable, rows};

/// The notes' file, a line a note.
pub const ANNOTATIONS_FILE: &str = "annotations.jsonl";

/// One note.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotation {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// Who: the account's name.
    pub by: String,
    /// The root of the seal that it speaks of; absent for a run that was not sealed.
    pub seal: Option<String>,
    /// Conclusions that no longer hold.
    pub falls: Vec<String>,
    /// Conclusions that still do.
    pub survives: Vec<String>,
    /// Anything else.
    pub note: String,
}

/// Adds a note to a run's folder; the record stays as it is.
///
/// # Errors
/// [`RecordError::EmptyAnnotation`]; a folder without a run; [`RecordError::Io`].
pub fn annotate(
    folder: &Path,
    falls: Vec<String>,
    survives: Vec<String>,
    note: String,
) -> Result<Annotation, RecordError> {
    let is_said = |text: &String| !text.trim().is_empty();
    let says = falls.iter().chain(&survives).chain([&note]).any(is_said);
    if !says {
        return Err(RecordError::EmptyAnnotation);
    }
    let record = Record::read(folder)?;
    let annotation = Annotation {
        at: rfc3339(Reading::now().wall),
        by: std::env::var("USER").unwrap_or_else(|_| "unknown".into()),
        seal: crate::seal::read_seal(folder, &record.status)?.map(|seal| seal.root),
        falls,
        survives,
        note,
    };
    let path = folder.join(ANNOTATIONS_FILE);
    let mut line = serde_json::to_vec(&annotation).map_err(|error| RecordError::Malformed {
        path: path.clone(),
        reason: format!("a note cannot be written as JSON: {error}"),
    })?;
    line.push(b'\n');
    let mut file =
        OpenOptions::new().append(true).create(true).open(&path).map_err(io("open", &path))?;
    // One write, at the end: notes of two people at once do not mix.
    file.write_all(&line).map_err(io("write", &path))?;
    file.sync_all().map_err(io("sync", &path))?;
    durable::sync_folder(folder)?;
    Ok(annotation)
}

/// A run's notes, oldest first.
///
/// # Errors
/// As [`rows::read`].
pub fn annotations(folder: &Path) -> Result<Vec<Annotation>, RecordError> {
    rows::read(folder, ANNOTATIONS_FILE)
}
