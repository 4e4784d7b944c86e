//! Some samples of a data set as one of its own.

use crate::dataset::Dataset;

impl Dataset {
    /// The samples at `indices`, in their order, with the report of the whole: what was read and dropped is as before.
    ///
    /// # Panics
    /// At an index past the last sample.
    pub fn subset(&self, indices: &[usize]) -> Dataset {
        let mut subset = Dataset::empty();
        for &index in indices {
            let sample = self.sample(index);
            subset.push(sample.ids, sample.supervised, self.origin(index).clone());
        }
        subset.with_report(self.report().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Origin;

    #[test]
    fn a_subset_has_its_samples_and_their_origins() {
        let mut whole = Dataset::empty();
        for (line, ids) in [(1, [1, 2]), (2, [3, 4]), (3, [5, 6])] {
            let file = std::path::Path::new("data.jsonl").into();
            whole.push(&ids, &[false, true], Origin { file, line });
        }
        let subset = whole.subset(&[0, 2]);
        assert_eq!(subset.lengths(), [2, 2]);
        assert_eq!((subset.sample(1), subset.origin(1)), (whole.sample(2), whole.origin(2)));
        assert_ne!(subset.identity(), whole.identity());
    }
}
