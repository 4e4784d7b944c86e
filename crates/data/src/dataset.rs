//! Encoded samples: token ids and what is learnt of them.

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

/// A data set, encoded: at least one sample, each with at least one token to learn.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    ids: Vec<u32>,
    supervised: Vec<bool>,
    /// Where each sample ends in the two vectors.
    ends: Vec<usize>,
    origins: Vec<Origin>,
    report: Report,
}

impl Dataset {
    pub(crate) fn empty() -> Dataset {
        Dataset {
            ids: Vec::new(),
            supervised: Vec::new(),
            ends: Vec::new(),
            origins: Vec::new(),
            report: Report::default(),
        }
    }

    pub(crate) fn push(&mut self, ids: &[u32], supervised: &[bool], origin: Origin) {
        debug_assert_eq!(ids.len(), supervised.len());
        self.ids.extend_from_slice(ids);
        self.supervised.extend_from_slice(supervised);
        self.ends.push(self.ids.len());
        self.origins.push(origin);
    }

    pub(crate) fn with_report(mut self, report: Report) -> Dataset {
        self.report = report;
        self
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
    pub fn origin(&self, index: usize) -> &Origin {
        &self.origins[index]
    }

    /// Tokens of each sample, in order.
    pub fn lengths(&self) -> Vec<usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| end - start).collect()
    }

    /// What was read, dropped and kept.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The data's identity, in hexadecimal: BLAKE3 over the samples in order, each as its length (u64), ids (u32) and
    /// flags (u8), little-endian. Two data sets of the same identity train alike, whatever files they come from.
    pub fn identity(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = Vec::new();
        for index in 0..self.len() {
            let Encoded { ids, supervised } = self.sample(index);
            bytes.clear();
            bytes.extend((ids.len() as u64).to_le_bytes());
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            bytes.extend(supervised.iter().map(|&flag| u8::from(flag)));
            hasher.update(&bytes);
        }
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn dataset(samples: &[(&[u32], &[bool])]) -> Dataset {
        let mut dataset = Dataset::empty();
        for (line, (ids, supervised)) in samples.iter().enumerate() {
            let file = Path::new("data.jsonl").into();
            let line = line + 1;
            dataset.push(ids, supervised, Origin { file, line });
        }
        dataset
    }

    #[test]
    fn samples_come_back_as_they_went_in() {
        let dataset = dataset(&[(&[1, 2, 3], &[false, true, true]), (&[4, 5], &[false, true])]);
        assert_eq!(dataset.lengths(), [3, 2]);
        assert_eq!(dataset.sample(0).supervised_tokens(), 2);
        assert_eq!(dataset.sample(1).ids, [4, 5]);
        assert_eq!(dataset.origin(1).to_string(), "data.jsonl:2");
    }

    #[test]
    fn identity_sees_every_id_flag_and_edge() {
        let base: (&[u32], &[bool]) = (&[1, 2, 3], &[false, true, true]);
        let identity = dataset(&[base]).identity();
        assert_eq!(dataset(&[base]).identity(), identity);
        let others = [
            dataset(&[(&[1, 2, 4], base.1)]),
            dataset(&[(base.0, &[false, false, true])]),
            dataset(&[(&[1, 2], &[false, true]), (&[3], &[true])]),
            dataset(&[base, base]),
        ];
        for other in others {
            assert_ne!(other.identity(), identity);
        }
    }
}
