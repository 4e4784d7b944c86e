//! What each way to order and pack an epoch would cost, and how it would mix the sources.

use serde::{Deserialize, Serialize};

use crate::dataset::Dataset;
use crate::order::{Arrangement, shuffle_micro_batches, weighted_order};
use crate::pack::{Packing, pack, pack_in_order};
use crate::schedule::Schedule;

/// One way to order and pack an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// In words.
    pub name: String,
    /// Whether it is the one that runs.
    pub chosen: bool,
    /// Micro-batches of the epoch.
    pub micro_batches: usize,
    /// Optimizer steps of the epoch.
    pub steps: usize,
    /// Tokens that its shapes hold: micro-batches of the budget where samples are packed, rows of the longest sample
    /// where they are padded.
    pub capacity: usize,
    /// Of these, tokens of no sample.
    pub padding: usize,
    /// `padding / capacity`.
    pub padding_share: f64,
    /// Sources among the samples of a step: the mean over steps.
    pub sources_mean: f64,
    /// The same: the least.
    pub sources_least: usize,
    /// Tokens of the source that has most of them in a step, as a part of the step's: the mean over steps. 1 where every
    /// step sees one source.
    pub largest_share_mean: f64,
}

/// The order that runs beside what it could have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderReport {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Sources of the data.
    pub sources: usize,
    /// The ways, the one that runs among them.
    pub alternatives: Vec<Alternative>,
}

/// How a micro-batch's samples fill it.
#[derive(Clone, Copy)]
enum Shape {
    /// One after the other, in the token budget.
    Packed,
    /// A row each, as long as the longest.
    Padded,
    /// A row each, as long as the data's longest.
    PaddedTo(usize),
}

impl Schedule {
    /// What the ways to order and pack an epoch (from 0) of the data come to.
    pub fn order_report(&self, data: &Dataset, epoch: usize) -> OrderReport {
        let packing = self.packing();
        let (lengths, seed) = (&self.lengths, packing.seed);
        let shuffled = weighted_order(&self.weights, seed, epoch);
        let mut sorted = shuffled.clone();
        sorted.sort_by_key(|&sample| lengths[sample]);
        let longest = sorted.last().map_or(1, |&sample| lengths[sample]);
        let buckets = |mut micro_batches: Vec<Vec<usize>>| {
            shuffle_micro_batches(&mut micro_batches, seed, epoch);
            micro_batches
        };
        let padded = |order: &[usize]| pad(order, lengths, packing, 1);
        let ways = [
            ("shuffled, packed", Shape::Packed, pack(&shuffled, lengths, packing)),
            (
                "length buckets, packed",
                Shape::Packed,
                buckets(pack_in_order(&sorted, lengths, packing)),
            ),
            ("shuffled, padded", Shape::Padded, padded(&shuffled)),
            ("length buckets, padded", Shape::Padded, buckets(padded(&sorted))),
            (
                "shuffled, padded to the longest",
                Shape::PaddedTo(longest),
                pad(&shuffled, lengths, packing, longest),
            ),
        ];
        let chosen = match packing.arrangement {
            Arrangement::Shuffled => 0,
            Arrangement::Buckets => 1,
        };
        let alternatives = ways
            .into_iter()
            .enumerate()
            .map(|(index, (name, shape, micro_batches))| {
                let way = self.alternative(data, name, shape, &micro_batches);
                Alternative { chosen: index == chosen, ..way }
            })
            .collect();
        OrderReport { epoch, sources: data.sources().len(), alternatives }
    }

    fn alternative(
        &self,
        data: &Dataset,
        name: &str,
        shape: Shape,
        micro_batches: &[Vec<usize>],
    ) -> Alternative {
        let length = |sample: &usize| self.lengths[*sample];
        let rows = |batch: &Vec<usize>| match shape {
            Shape::Packed => self.packing().tokens,
            Shape::Padded => batch.len() * batch.iter().map(length).max().unwrap_or(0),
            Shape::PaddedTo(longest) => batch.len() * longest,
        };
        let capacity: usize = micro_batches.iter().map(rows).sum();
        let tokens: usize = micro_batches.iter().flatten().map(length).sum();
        let steps = micro_batches.chunks(self.packing().accumulation);
        let count = steps.len();
        let (mut sources, mut least, mut largest) = (0, usize::MAX, 0.0);
        for step in steps {
            let mut tokens_of = vec![0; data.sources().len()];
            for sample in step.iter().flatten() {
                tokens_of[data.source_of(*sample)] += length(sample);
            }
            let seen = tokens_of.iter().filter(|&&tokens| tokens > 0).count();
            let all: usize = tokens_of.iter().sum();
            sources += seen;
            least = least.min(seen);
            largest += tokens_of.iter().copied().max().unwrap_or(0) as f64 / all.max(1) as f64;
        }
        let mean = |sum: f64| sum / count.max(1) as f64;
        Alternative {
            name: name.to_owned(),
            chosen: false,
            micro_batches: micro_batches.len(),
            steps: count,
            capacity,
            padding: capacity - tokens,
            padding_share: (capacity - tokens) as f64 / capacity.max(1) as f64,
            sources_mean: mean(sources as f64),
            sources_least: if count == 0 { 0 } else { least },
            largest_share_mean: mean(largest),
        }
    }
}

/// Micro-batches of a row a sample, in order: as many rows as the budget holds, each of at least `least` tokens.
fn pad(order: &[usize], lengths: &[usize], packing: &Packing, least: usize) -> Vec<Vec<usize>> {
    let mut micro_batches: Vec<Vec<usize>> = Vec::new();
    let mut row = 0;
    for &sample in order {
        let longer = row.max(lengths[sample]);
        match micro_batches.last_mut() {
            Some(last)
                if (last.len() + 1) * longer <= packing.tokens
                    && last.len() < packing.sequences =>
            {
                last.push(sample);
                row = longer;
            }
            _ => {
                micro_batches.push(vec![sample]);
                row = lengths[sample].max(least);
            }
        }
    }
    micro_batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::tests::dataset_of_lengths;
    use crate::schedule::Extent;

    fn report(arrangement: Arrangement, lengths: &[usize], accumulation: usize) -> OrderReport {
        let data = dataset_of_lengths(lengths, 1.0);
        let packing = Packing { tokens: 12, sequences: 8, accumulation, seed: 1, arrangement };
        let schedule = Schedule::new(&data, packing, Extent::Epochs(1)).unwrap();
        let report = schedule.order_report(&data, 0);
        let mut chosen = report.alternatives.iter().filter(|way| way.chosen);
        let (Some(chosen), None) = (chosen.next(), chosen.next()) else { panic!("{report:?}") };
        let runs = schedule.report(0);
        assert_eq!((chosen.micro_batches, chosen.steps), (runs.micro_batches, runs.steps));
        assert_eq!(
            (chosen.capacity, chosen.capacity - chosen.padding),
            (runs.capacity, runs.tokens)
        );
        report
    }

    #[test]
    fn padding_is_what_each_shape_holds_beside_the_samples() {
        // 4 samples of 2 tokens and 4 of 6.
        let report = report(Arrangement::Buckets, &[2, 2, 6, 6, 2, 2, 6, 6], 1);
        let of = |name: &str| {
            let way = report.alternatives.iter().find(|way| way.name == name).unwrap();
            (way.micro_batches, way.capacity, way.padding)
        };
        assert_eq!(of("length buckets, padded"), (3, 32, 0), "4 rows of 2, twice 2 rows of 6");
        assert_eq!(of("shuffled, padded to the longest"), (4, 48, 16));
        assert_eq!(of("length buckets, packed"), (3, 36, 4), "2 + 2 + 2 + 2, 6 + 6, 6 + 6");
        let share = report.alternatives.iter().all(|way| {
            (way.padding_share - way.padding as f64 / way.capacity as f64).abs() < 1e-12
        });
        assert!(share);
    }

    #[test]
    fn sources_are_counted_by_step() {
        // Sources alternate and their lengths differ, so a bucket is of one source.
        let lengths = [2, 6, 2, 6, 2, 6, 2, 6];
        let by_length = report(Arrangement::Buckets, &lengths, 1);
        let padded = by_length.alternatives.iter().find(|w| w.name == "length buckets, padded");
        let padded = padded.unwrap();
        assert_eq!((padded.sources_mean, padded.sources_least), (1.0, 1));
        assert_eq!(padded.largest_share_mean, 1.0);
        let whole_epoch = report(Arrangement::Shuffled, &lengths, 100);
        for way in &whole_epoch.alternatives {
            assert_eq!((way.steps, way.sources_mean, way.sources_least), (1, 2.0, 2));
            assert_eq!(way.largest_share_mean, 0.75);
        }
    }

    #[test]
    fn rows_are_padded_within_budget_and_sequences() {
        let packing = Packing {
            tokens: 12,
            sequences: 2,
            accumulation: 1,
            seed: 0,
            arrangement: Arrangement::Shuffled,
        };
        assert_eq!(pad(&[0, 1, 2, 3], &[3, 3, 3, 3], &packing, 1), [[0, 1], [2, 3]]);
        let lengths = [3, 7, 3];
        let packing = Packing { sequences: 8, ..packing };
        assert_eq!(pad(&[0, 1, 2], &lengths, &packing, 1), [vec![0], vec![1], vec![2]]);
        assert_eq!(pad(&[0, 2], &lengths, &packing, 1), [[0, 2]]);
        assert_eq!(pad(&[0, 2], &lengths, &packing, 7), [[0], [2]]);
    }
}
