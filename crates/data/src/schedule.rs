//! Which samples each optimizer step sees.

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::order::arrange;
use crate::pack::Packing;
use crate::report::PackReport;

/// The most passes over the data.
pub const EPOCHS_LIMIT: usize = 100_000;

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Whole passes over the data.
    Epochs(usize),
    /// Optimizer steps, over as many passes as they take.
    Steps(usize),
}

/// The samples of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The step, from 0.
    pub index: usize,
    /// Its epoch, from 0.
    pub epoch: usize,
    /// Samples of each logical micro-batch, in order.
    pub micro_batches: &'a [Vec<usize>],
}

/// The whole run's order. Any step can be asked for in any order and is always the same.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) lengths: Vec<usize>,
    /// How often each sample comes in an epoch.
    pub(crate) weights: Vec<f64>,
    packing: Packing,
    /// First step of each epoch, then the number of steps.
    first_steps: Vec<usize>,
    /// The epoch packed last, with its number.
    packed: (usize, Vec<Vec<usize>>),
}

impl Schedule {
    /// Orders and packs a data set.
    ///
    /// # Errors
    /// [`DataError::OutOfRange`], [`DataError::OverBudget`], [`DataError::TooManyEpochs`],
    /// [`DataError::NoSample`].
    pub fn new(data: &Dataset, packing: Packing, extent: Extent) -> Result<Schedule, DataError> {
        packing.check()?;
        check_extent(extent)?;
        let lengths = data.lengths();
        let over = lengths.iter().position(|&length| length > packing.tokens);
        if let Some(index) = over {
            return Err(DataError::OverBudget {
                origin: data.origin(index),
                length: lengths[index],
                budget: packing.tokens,
            });
        }
        let mut schedule = Schedule {
            lengths,
            weights: data.weights(),
            packing,
            first_steps: vec![0],
            packed: (0, Vec::new()),
        };
        schedule.count_steps(extent)?;
        if schedule.steps() == 0 {
            return Err(DataError::NoSample { epochs: schedule.epochs() });
        }
        schedule.packed = (0, schedule.pack_epoch(0));
        Ok(schedule)
    }

    fn count_steps(&mut self, extent: Extent) -> Result<(), DataError> {
        let mut steps = 0;
        loop {
            let epoch = self.epochs();
            let (limit, enough) = match extent {
                Extent::Epochs(epochs) => (usize::MAX, epoch == epochs),
                Extent::Steps(limit) => (limit, steps >= limit),
            };
            if enough {
                return Ok(());
            }
            if epoch == EPOCHS_LIMIT {
                return Err(DataError::TooManyEpochs { steps: limit, limit: EPOCHS_LIMIT });
            }
            let micro_batches = self.pack_epoch(epoch).len();
            steps = (steps + micro_batches.div_ceil(self.packing.accumulation)).min(limit);
            self.first_steps.push(steps);
        }
    }

    pub(crate) fn pack_epoch(&self, epoch: usize) -> Vec<Vec<usize>> {
        arrange(&self.weights, &self.lengths, &self.packing, epoch)
    }

    /// How samples are packed.
    pub fn packing(&self) -> &Packing {
        &self.packing
    }

    /// Optimizer steps in all.
    pub fn steps(&self) -> usize {
        self.first_steps.last().copied().unwrap_or(0)
    }

    /// Epochs, the last of which may be cut short.
    pub fn epochs(&self) -> usize {
        self.first_steps.len() - 1
    }

    /// Step `index`, from 0; `None` past the last.
    pub fn step(&mut self, index: usize) -> Option<Step<'_>> {
        if index >= self.steps() {
            return None;
        }
        let epoch = self.first_steps.partition_point(|&first| first <= index) - 1;
        if self.packed.0 != epoch {
            self.packed = (epoch, self.pack_epoch(epoch));
        }
        let start = (index - self.first_steps[epoch]) * self.packing.accumulation;
        let micro_batches = &self.packed.1;
        let end = (start + self.packing.accumulation).min(micro_batches.len());
        Some(Step { index, epoch, micro_batches: &micro_batches[start..end] })
    }

    /// How well an epoch (from 0) fills its micro-batches.
    pub fn report(&self, epoch: usize) -> PackReport {
        let micro_batches = self.pack_epoch(epoch);
        let tokens = micro_batches.iter().flatten().map(|&sample| self.lengths[sample]).sum();
        let capacity = micro_batches.len() * self.packing.tokens;
        PackReport {
            epoch,
            steps: micro_batches.len().div_ceil(self.packing.accumulation),
            micro_batches: micro_batches.len(),
            tokens,
            capacity,
            fill: tokens as f64 / capacity.max(1) as f64,
            most_sequences: micro_batches.iter().map(Vec::len).max().unwrap_or(0),
        }
    }
}

fn check_extent(extent: Extent) -> Result<(), DataError> {
    let (what, value, limit) = match extent {
        Extent::Epochs(epochs) => ("epochs", epochs, EPOCHS_LIMIT),
        Extent::Steps(steps) => ("max_steps", steps, u32::MAX as usize),
    };
    if (1..=limit).contains(&value) {
        return Ok(());
    }
    Err(DataError::OutOfRange { what, value, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::tests::dataset_of_lengths;
    use crate::order::Arrangement;

    fn dataset(lengths: &[usize]) -> Dataset {
        dataset_of_lengths(lengths, 1.0)
    }

    fn packing() -> Packing {
        Packing {
            tokens: 10,
            sequences: 2,
            accumulation: 3,
            seed: 5,
            arrangement: Arrangement::Shuffled,
        }
    }

    fn owned(step: Step<'_>) -> (usize, usize, Vec<Vec<usize>>) {
        (step.index, step.epoch, step.micro_batches.to_vec())
    }

    #[test]
    fn steps_cover_each_epoch_once_and_are_the_same_in_any_order() {
        let data = dataset(&[5; 16]);
        let mut schedule = Schedule::new(&data, packing(), Extent::Epochs(3)).unwrap();
        // 8 micro-batches an epoch: steps of 3, 3 and 2.
        assert_eq!((schedule.steps(), schedule.epochs()), (9, 3));
        let forward: Vec<_> = (0..9).map(|i| owned(schedule.step(i).unwrap())).collect();
        for epoch in 0..3 {
            let steps = forward.iter().filter(|step| step.1 == epoch);
            let mut seen: Vec<usize> = steps.flat_map(|s| s.2.iter().flatten().copied()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..16).collect::<Vec<_>>());
        }
        assert_ne!(forward[0].2, forward[3].2, "each epoch has its own order");
        for index in (0..9).rev() {
            assert_eq!(owned(schedule.step(index).unwrap()), forward[index]);
        }
        assert_eq!(schedule.step(9), None);
    }

    #[test]
    fn a_number_of_steps_cuts_the_last_epoch() {
        let data = dataset(&[5; 16]);
        let mut schedule = Schedule::new(&data, packing(), Extent::Steps(4)).unwrap();
        assert_eq!((schedule.steps(), schedule.epochs()), (4, 2));
        assert_eq!(schedule.step(3).unwrap().epoch, 1);
        assert_eq!(schedule.step(4), None);
    }

    #[test]
    fn weights_change_how_often_the_samples_of_a_source_come() {
        let data = dataset_of_lengths(&[5; 16], 2.0);
        let mut schedule = Schedule::new(&data, packing(), Extent::Epochs(1)).unwrap();
        let mut times = [0; 16];
        for index in 0..schedule.steps() {
            let step = schedule.step(index).unwrap();
            step.micro_batches.iter().flatten().for_each(|&sample| times[sample] += 1);
        }
        let expected: Vec<usize> = (0..16).map(|sample| 2 - sample % 2).collect();
        assert_eq!(times.to_vec(), expected);
        assert_eq!(schedule.report(0).tokens, 5 * 24);
    }

    #[test]
    fn buckets_are_a_schedule_like_any_other() {
        let data = dataset(&[5, 3, 5, 3, 5, 3]);
        let packing = Packing { arrangement: Arrangement::Buckets, ..packing() };
        let mut schedule = Schedule::new(&data, packing, Extent::Epochs(2)).unwrap();
        let steps: Vec<_> =
            (0..schedule.steps()).map(|i| owned(schedule.step(i).unwrap())).collect();
        let first: Vec<usize> =
            steps.iter().filter(|s| s.1 == 0).flat_map(|s| s.2.concat()).collect();
        assert_eq!(first.len(), 6);
        for index in (0..steps.len()).rev() {
            assert_eq!(owned(schedule.step(index).unwrap()), steps[index]);
        }
    }

    #[test]
    fn the_report_counts_what_the_shape_holds() {
        let schedule = Schedule::new(&dataset(&[5, 5, 4]), packing(), Extent::Epochs(1)).unwrap();
        let report = schedule.report(0);
        assert_eq!((report.micro_batches, report.steps), (2, 1));
        assert_eq!((report.tokens, report.capacity), (14, 20));
        assert_eq!((report.fill, report.most_sequences), (0.7, 2));
    }

    #[test]
    fn what_cannot_be_scheduled_is_refused() {
        let refused =
            |data: &Dataset, packing, extent| Schedule::new(data, packing, extent).unwrap_err();
        let long = dataset(&[5, 11]);
        let error = refused(&long, packing(), Extent::Epochs(1)).to_string();
        assert!(error.contains("b.jsonl:1: a sample of 11 tokens"), "{error}");
        let data = dataset(&[5]);
        for extent in [Extent::Epochs(0), Extent::Steps(0), Extent::Epochs(EPOCHS_LIMIT + 1)] {
            let error = refused(&data, packing(), extent);
            assert!(matches!(error, DataError::OutOfRange { .. }), "{error}");
        }
        for (tokens, sequences, accumulation) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            let packing = Packing { tokens, sequences, accumulation, ..packing() };
            let error = refused(&data, packing, Extent::Epochs(1));
            assert!(matches!(error, DataError::OutOfRange { value: 0, .. }), "{error}");
        }
        let rare = dataset_of_lengths(&[5], 1e-6);
        let none = refused(&rare, packing(), Extent::Epochs(3));
        assert!(matches!(none, DataError::NoSample { epochs: 3 }), "{none}");
        let never = refused(&rare, packing(), Extent::Steps(1));
        assert!(matches!(never, DataError::TooManyEpochs { steps: 1, .. }), "{never}");
        let endless = refused(&data, packing(), Extent::Steps(EPOCHS_LIMIT + 1));
        assert!(matches!(endless, DataError::TooManyEpochs { .. }), "{endless}");
    }
}
