//! Data sources: a file, a name, and how often its samples come.

use std::path::{Path, PathBuf};

use crate::error::DataError;

/// The largest weight of a source: a sample that is to come more often in an epoch is a slip of the keyboard.
pub const WEIGHT_LIMIT: f64 = 1000.0;

/// A file of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// JSON Lines, or Parquet.
    pub path: PathBuf,
    /// What reports call it.
    pub name: String,
    /// How often each of its samples comes in an epoch; over n epochs ⌊n·weight⌋ or ⌈n·weight⌉ times.
    pub weight: f64,
}

impl Source {
    /// A file that counts once and is called by its path.
    pub fn new(path: impl Into<PathBuf>) -> Source {
        let path = path.into();
        Source { name: path.display().to_string(), path, weight: 1.0 }
    }

    /// Files that count once each.
    pub fn of_files(paths: &[PathBuf]) -> Vec<Source> {
        paths.iter().map(Source::new).collect()
    }
}

/// Whether a number can be a source's weight: over 0, at most [`WEIGHT_LIMIT`].
pub fn is_weight(weight: f64) -> bool {
    weight > 0.0 && weight <= WEIGHT_LIMIT
}

/// How often a sample comes in an epoch (from 0): `⌊(epoch + 1)·weight + u⌋ − ⌊epoch·weight + u⌋`, where `u` in [0, 1) is
/// the sample's own random number.
///
/// A whole weight repeats every sample so often in every epoch. A fraction takes a random part of the samples, another
/// part in each epoch: at 0.5, every sample comes exactly once in two epochs; after `n` epochs no sample has come more
/// than once more often than another.
pub(crate) fn times(weight: f64, u: f64, epoch: usize) -> usize {
    let up_to = |epoch: usize| (epoch as f64 * weight + u).floor();
    (up_to(epoch + 1) - up_to(epoch)) as usize
}

/// Refuses weights that are none, and two sources of one file or one name.
pub(crate) fn check(sources: &[Source]) -> Result<(), DataError> {
    if sources.is_empty() {
        return Err(DataError::NoFile);
    }
    for (index, source) in sources.iter().enumerate() {
        if !is_weight(source.weight) {
            let (path, weight) = (source.path.clone(), source.weight);
            return Err(DataError::Weight { path, weight, limit: WEIGHT_LIMIT });
        }
        let same =
            |other: &&Source| same_file(&other.path, &source.path) || other.name == source.name;
        if let Some(other) = sources[..index].iter().find(same) {
            return Err(DataError::SourceTwice {
                first: describe(other),
                second: describe(source),
            });
        }
    }
    Ok(())
}

/// Whether two paths are one file, however they are spelled.
fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize();
    one == other || matches!((real(one), real(other)), (Ok(one), Ok(other)) if one == other)
}

fn describe(source: &Source) -> String {
    match Path::new(&source.name) == source.path {
        true => source.name.clone(),
        false => format!("{} ({})", source.name, source.path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_weights_repeat_and_parts_take_turns() {
        for (weight, u, expected) in [
            (1.0, 0.9, [1, 1, 1, 1]),
            (2.0, 0.3, [2, 2, 2, 2]),
            (0.5, 0.0, [0, 1, 0, 1]),
            (0.5, 0.5, [1, 0, 1, 0]),
            (1.5, 0.25, [1, 2, 1, 2]),
            (0.25, 0.75, [1, 0, 0, 0]),
        ] {
            let found: Vec<usize> = (0..4).map(|epoch| times(weight, u, epoch)).collect();
            assert_eq!(found, expected, "{weight} {u}");
        }
    }

    #[test]
    fn weights_that_are_none_are_refused() {
        let weighted = |weight| Source { weight, ..Source::new("a.jsonl") };
        for weight in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, WEIGHT_LIMIT + 1.0] {
            let error = check(&[weighted(weight)]).unwrap_err();
            assert!(matches!(error, DataError::Weight { .. }), "{weight}: {error}");
            assert!(error.to_string().contains("a.jsonl"), "{error}");
        }
        for weight in [1e-9, 0.5, 1.0, WEIGHT_LIMIT] {
            check(&[weighted(weight)]).unwrap();
        }
    }

    #[test]
    fn a_file_or_a_name_given_twice_is_refused() {
        let named = |path: &str, name: &str| Source { name: name.into(), ..Source::new(path) };
        assert!(matches!(check(&[]), Err(DataError::NoFile)));
        check(&[Source::new("a"), Source::new("b"), named("c", "d")]).unwrap();
        let error = check(&[Source::new("a"), named("a", "other")]).unwrap_err().to_string();
        assert!(error.contains("other (a)"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.jsonl");
        std::fs::write(&file, "").unwrap();
        let spelled = folder.path().join(".").join("a.jsonl");
        std::os::unix::fs::symlink(&file, folder.path().join("link.jsonl")).unwrap();
        for again in [spelled, folder.path().join("link.jsonl")] {
            let error = check(&[Source::new(&file), Source::new(again)]).unwrap_err();
            assert!(matches!(error, DataError::SourceTwice { .. }), "{error}");
        }
        let error = check(&[named("a", "n"), named("b", "n")]).unwrap_err();
        assert!(matches!(error, DataError::SourceTwice { .. }), "{error}");
    }
}
