//! Models that are split over several files, as `llama-gguf-split` does: `NAME-00001-of-00003.gguf` and so on. The first
//! part has the metadata, each has some of the tensors.

use std::path::{Path, PathBuf};

use super::{Error, File};
use crate::FormatError;

/// The most parts that are read.
pub const MAX_PARTS: u64 = 1 << 10;

/// What the name of a part ends in; parts are counted from 1.
pub(super) fn ending(number: u64, parts: u64) -> String {
    format!("-{number:05}-of-{parts:05}.gguf")
}

/// Opens the parts that follow the first; none where the file is whole.
pub(crate) fn open_others(first: &File) -> Result<Vec<File>, FormatError> {
    let wrong = |path: &Path, source| FormatError::Gguf { path: path.to_owned(), source };
    let path = first.path();
    let parts = part_of(first)?.1;
    if parts <= 1 {
        return Ok(Vec::new());
    }
    if parts > MAX_PARTS {
        let what = "the number of parts of a split model";
        return Err(wrong(path, Error::OverLimit { what, found: parts, limit: MAX_PARTS }));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(stem) = name.strip_suffix(&ending(1, parts)) else {
        return Err(wrong(path, Error::Split { parts }));
    };
    let mut all: Vec<File> = Vec::new();
    for expected in 1..=parts {
        let place: PathBuf = path.with_file_name(format!("{stem}{}", ending(expected, parts)));
        let file = File::open(&place)?;
        let (found, found_parts) = part_of(&file)?;
        if (found, found_parts) != (expected, parts) {
            let source = Error::WrongPart { found, found_parts, expected, parts };
            return Err(wrong(&place, source));
        }
        // Names are unique within a file already.
        let seen = |name: &str| all.iter().any(|part| part.tensor(name).is_some());
        if let Some(twice) = file.tensors().iter().find(|tensor| seen(&tensor.name)) {
            return Err(wrong(&place, Error::DuplicateTensor { name: twice.name.clone() }));
        }
        all.push(file);
    }
    Ok(all.split_off(1))
}

/// A file's number among its parts, from 1, and their number.
fn part_of(file: &File) -> Result<(u64, u64), FormatError> {
    let read = |key: &str| {
        file.metadata()
            .u64(key)
            .map_err(|source| FormatError::Gguf { path: file.path().to_owned(), source })
    };
    Ok((read("split.no")?.unwrap_or(0).saturating_add(1), read("split.count")?.unwrap_or(1)))
}
