//! Some samples of a data set as one of its own.

use crate::dataset::Dataset;

impl Dataset {
    /// The samples at `indices`, in their order, with the report of the whole: what was read and dropped is as before.
    ///
    /// # Panics
    /// At an index past the last sample.
    pub fn subset(&self, indices: &[usize]) -> Dataset {
        let mut subset = Dataset::empty(self.sources.clone());
        for &index in indices {
            let (sample, (source, line)) = (self.sample(index), self.rows[index]);
            subset.push(sample.ids, sample.supervised, source as usize, line as usize);
        }
        subset.report = self.report.clone();
        subset
    }
}

#[cfg(test)]
mod tests {
    use crate::dataset::tests::dataset_of;

    #[test]
    fn a_subset_has_its_samples_and_their_origins() {
        let whole = dataset_of(
            &[(&[1, 2], &[false, true]), (&[3, 4], &[false, true]), (&[5, 6], &[false, true])],
            1.0,
        );
        let subset = whole.subset(&[0, 2]);
        assert_eq!(subset.lengths(), [2, 2]);
        assert_eq!((subset.sample(1), subset.origin(1)), (whole.sample(2), whole.origin(2)));
        assert_eq!(subset.report(), whole.report());
        assert_ne!(subset.identity(), whole.identity());
    }
}
