//! Encoded samples: token ids and what is learnt of them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::corpus::Corpus;
use crate::encode::digest;
use crate::error::Origin;
use crate::report::Report;

/// One encoded sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded<'a> {
    /// Its token ids.
    pub ids: &'a [u32],
    /// For each token, whether it is learnt. Never true for token 0, which nothing predicts.
    pub supervised: &'a [bool],
}

impl Encoded<'_> {
    /// Tokens that are learnt.
    pub fn supervised_tokens(&self) -> usize {
        self.supervised.iter().filter(|&&flag| flag).count()
    }
}

/// A source, as a data set remembers it.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceInfo {
    /// Its file.
    pub path: Arc<Path>,
    /// What reports call it.
    pub name: String,
    /// How often each of its samples comes in an epoch.
    pub weight: f64,
    /// BLAKE3 of the file's bytes, in hexadecimal.
    pub hash: String,
}

impl SourceInfo {
    pub(crate) fn of(corpus: &Corpus) -> Vec<SourceInfo> {
        let info = |file: &crate::corpus::CorpusFile| SourceInfo {
            path: Arc::clone(&file.path),
            name: file.source.name.clone(),
            weight: file.source.weight,
            hash: file.hash.clone(),
        };
        corpus.files().iter().map(info).collect()
    }
}

/// A data set, encoded: at least one sample, each with at least one token to learn.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    pub(crate) ids: Vec<u32>,
    pub(crate) supervised: Vec<bool>,
    /// Where each sample ends in the two vectors.
    pub(crate) ends: Vec<usize>,
    /// Each sample's source, and its line there from 1.
    pub(crate) rows: Vec<(u32, u32)>,
    pub(crate) sources: Vec<SourceInfo>,
    pub(crate) report: Report,
}

/// How much a data set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Samples, each once.
    pub samples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Those that are learnt.
    pub supervised: usize,
}

impl Dataset {
    pub(crate) fn empty(sources: Vec<SourceInfo>) -> Dataset {
        Dataset {
            ids: Vec::new(),
            supervised: Vec::new(),
            ends: Vec::new(),
            rows: Vec::new(),
            sources,
            report: Report::default(),
        }
    }

    /// Appends a sample of a source, of a line from 1 in it.
    pub(crate) fn push(&mut self, ids: &[u32], supervised: &[bool], source: usize, line: usize) {
        debug_assert_eq!(ids.len(), supervised.len());
        self.ids.extend_from_slice(ids);
        self.supervised.extend_from_slice(supervised);
        self.ends.push(self.ids.len());
        // Both are below SAMPLES_LIMIT.
        self.rows.push((source as u32, line as u32));
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none: never, for a data set that an encoder gave.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sample `index`.
    ///
    /// # Panics
    /// At or past [`Dataset::len`].
    pub fn sample(&self, index: usize) -> Encoded<'_> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let range = start..self.ends[index];
        Encoded { ids: &self.ids[range.clone()], supervised: &self.supervised[range] }
    }

    /// Where sample `index` comes from.
    ///
    /// # Panics
    /// At or past [`Dataset::len`].
    pub fn origin(&self, index: usize) -> Origin {
        let (source, line) = self.rows[index];
        Origin { file: Arc::clone(&self.sources[source as usize].path), line: line as usize }
    }

    /// The source, as an index of [`Dataset::sources`], that sample `index` is of.
    ///
    /// # Panics
    /// At or past [`Dataset::len`].
    pub fn source_of(&self, index: usize) -> usize {
        self.rows[index].0 as usize
    }

    /// The sources, in order.
    pub fn sources(&self) -> &[SourceInfo] {
        &self.sources
    }

    /// How often each sample comes in an epoch.
    pub(crate) fn weights(&self) -> Vec<f64> {
        self.rows.iter().map(|row| self.sources[row.0 as usize].weight).collect()
    }

    /// Tokens of each sample, in order.
    pub fn lengths(&self) -> Vec<usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| end - start).collect()
    }

    /// How much it holds.
    pub fn size(&self) -> Size {
        Size {
            samples: self.len(),
            tokens: self.ids.len(),
            supervised: self.supervised.iter().filter(|&&learnt| learnt).count(),
        }
    }

    /// How many of the samples `other` has too, with the same ids and flags.
    pub fn shared_with(&self, other: &Dataset) -> usize {
        let digests = |set: &Dataset| -> Vec<blake3::Hash> {
            let samples = (0..set.len()).map(|index| set.sample(index));
            samples.map(|sample| digest(sample.ids, sample.supervised)).collect()
        };
        let theirs: HashSet<blake3::Hash> = digests(other).into_iter().collect();
        digests(self).iter().filter(|digest| theirs.contains(digest)).count()
    }

    /// What was read, dropped and kept, of the whole that this may be a part of.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The data's identity, in hexadecimal: BLAKE3 over the samples in order, each as its length (u64), weight (f64),
    /// ids (u32) and flags (u8), little-endian. Two data sets of the same identity train alike, whatever files they come
    /// from.
    pub fn identity(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = Vec::new();
        for index in 0..self.len() {
            let Encoded { ids, supervised } = self.sample(index);
            bytes.clear();
            bytes.extend((ids.len() as u64).to_le_bytes());
            bytes.extend(self.sources[self.source_of(index)].weight.to_le_bytes());
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            bytes.extend(supervised.iter().map(|&flag| u8::from(flag)));
            hasher.update(&bytes);
        }
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A data set of two sources, of which the first has weight `weight`; samples alternate between them.
    pub(crate) fn dataset_of(samples: &[(&[u32], &[bool])], weight: f64) -> Dataset {
        let info = |name: &str, weight| SourceInfo {
            path: Path::new(name).into(),
            name: name.into(),
            weight,
            hash: String::new(),
        };
        let mut dataset = Dataset::empty(vec![info("a.jsonl", weight), info("b.jsonl", 1.0)]);
        for (index, (ids, supervised)) in samples.iter().enumerate() {
            dataset.push(ids, supervised, index % 2, index / 2 + 1);
        }
        dataset
    }

    /// Samples of given lengths.
    pub(crate) fn dataset_of_lengths(lengths: &[usize], weight: f64) -> Dataset {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (ids, flags) = (vec![1; longest], vec![true; longest]);
        let samples: Vec<(&[u32], &[bool])> =
            lengths.iter().map(|&length| (&ids[..length], &flags[..length])).collect();
        dataset_of(&samples, weight)
    }

    #[test]
    fn samples_come_back_as_they_went_in() {
        let dataset =
            dataset_of(&[(&[1, 2, 3], &[false, true, true]), (&[4, 5], &[false, true])], 1.0);
        assert_eq!(dataset.lengths(), [3, 2]);
        assert_eq!(dataset.sample(0).supervised_tokens(), 2);
        assert_eq!(dataset.sample(1).ids, [4, 5]);
        assert_eq!(dataset.origin(1).to_string(), "b.jsonl:1");
        assert_eq!((dataset.source_of(0), dataset.source_of(1)), (0, 1));
    }

    #[test]
    fn samples_of_two_sets_are_the_same_with_ids_and_flags() {
        let (a, b): ((&[u32], &[bool]), (&[u32], &[bool])) =
            ((&[1, 2], &[false, true]), (&[1, 2], &[true, true]));
        assert_eq!(dataset_of(&[a, b], 1.0).shared_with(&dataset_of(&[a], 1.0)), 1);
        assert_eq!(dataset_of(&[a], 1.0).shared_with(&dataset_of(&[a, b, a], 1.0)), 1);
        assert_eq!(dataset_of(&[b], 1.0).shared_with(&dataset_of(&[a], 1.0)), 0);
    }

    #[test]
    fn identity_sees_every_id_flag_weight_and_edge() {
        let base: (&[u32], &[bool]) = (&[1, 2, 3], &[false, true, true]);
        let identity = dataset_of(&[base], 1.0).identity();
        assert_eq!(dataset_of(&[base], 1.0).identity(), identity);
        let others = [
            dataset_of(&[(&[1, 2, 4], base.1)], 1.0),
            dataset_of(&[(base.0, &[false, false, true])], 1.0),
            dataset_of(&[(&[1, 2], &[false, true]), (&[3], &[true])], 1.0),
            dataset_of(&[base, base], 1.0),
            dataset_of(&[base], 0.5),
        ];
        for other in others {
            assert_ne!(other.identity(), identity);
        }
    }
}
