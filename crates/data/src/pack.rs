//! Packing: samples to logical micro-batches of a token budget.

use std::collections::VecDeque;

use crate::error::DataError;
use crate::order::Arrangement;

/// Micro-batches that are open at once. More would fill a little better and mix the order more; at 16, samples of
/// evenly spread lengths fill over 97% of the budget.
pub const PACK_WINDOW: usize = 16;

/// How samples are packed. All of it is part of a run's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Most tokens of a logical micro-batch.
    pub tokens: usize,
    /// Most sequences of a logical micro-batch.
    pub sequences: usize,
    /// Micro-batches of an optimizer step. The last step of an epoch may have fewer: steps do not span epochs.
    pub accumulation: usize,
    /// Seed of the order.
    pub seed: u64,
    /// How an epoch is ordered.
    pub arrangement: Arrangement,
}

impl Packing {
    pub(crate) fn check(&self) -> Result<(), DataError> {
        let limit = u32::MAX as usize;
        for (what, value) in [
            ("micro_tokens", self.tokens),
            ("micro_sequences", self.sequences),
            ("accumulation", self.accumulation),
        ] {
            if !(1..=limit).contains(&value) {
                return Err(DataError::OutOfRange { what, value, limit });
            }
        }
        Ok(())
    }
}

struct Open {
    samples: Vec<usize>,
    tokens: usize,
}

/// Packs samples, taken in `order`, whole into micro-batches; the segments of a micro-batch are isolated from each other
/// in attention, so packing changes no sample's numbers.
///
/// A sample goes to the first of the [`PACK_WINDOW`] newest micro-batches with room for it, else to a new one; so
/// micro-batches stay close to the order and each holds its samples in that order. `lengths` are by sample, in tokens;
/// none may exceed the budget.
pub fn pack(order: &[usize], lengths: &[usize], packing: &Packing) -> Vec<Vec<usize>> {
    let mut full = Vec::new();
    let mut open: VecDeque<Open> = VecDeque::with_capacity(PACK_WINDOW + 1);
    for &sample in order {
        let length = lengths[sample];
        let has_room = |o: &&mut Open| {
            o.tokens + length <= packing.tokens && o.samples.len() < packing.sequences
        };
        if let Some(fits) = open.iter_mut().find(has_room) {
            fits.samples.push(sample);
            fits.tokens += length;
            continue;
        }
        open.push_back(Open { samples: vec![sample], tokens: length });
        if open.len() > PACK_WINDOW {
            full.extend(open.pop_front().map(|oldest| oldest.samples));
        }
    }
    full.extend(open.into_iter().map(|rest| rest.samples));
    full
}

/// Fills micro-batches one after the other, strictly in order.
pub(crate) fn pack_in_order(
    order: &[usize],
    lengths: &[usize],
    packing: &Packing,
) -> Vec<Vec<usize>> {
    let mut micro_batches: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for &sample in order {
        match micro_batches.last_mut() {
            Some(last) if lengths[sample] <= room && last.len() < packing.sequences => {
                last.push(sample);
                room -= lengths[sample];
            }
            _ => {
                micro_batches.push(vec![sample]);
                room = packing.tokens - lengths[sample];
            }
        }
    }
    micro_batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::epoch_order;
    use canon::random::{Numbers, Purpose};

    fn packing(tokens: usize, sequences: usize) -> Packing {
        Packing { tokens, sequences, accumulation: 1, seed: 0, arrangement: Arrangement::Shuffled }
    }

    #[test]
    fn a_sample_goes_to_the_first_with_room() {
        let lengths = [6, 5, 4, 3, 2];
        let packed = pack(&[0, 1, 2, 3, 4], &lengths, &packing(10, 8));
        assert_eq!(packed, [vec![0, 2], vec![1, 3, 4]]);
        let one_each = pack(&[0, 1, 2, 3, 4], &lengths, &packing(10, 1));
        assert_eq!(one_each, [[0], [1], [2], [3], [4]]);
    }

    #[test]
    fn in_order_no_sample_overtakes_another() {
        let lengths = [6, 5, 4, 3, 2];
        let packed = |sequences| pack_in_order(&[0, 1, 2, 3, 4], &lengths, &packing(10, sequences));
        assert_eq!(packed(8), [vec![0], vec![1, 2], vec![3, 4]]);
        assert_eq!(packed(1), [[0], [1], [2], [3], [4]]);
        assert!(pack_in_order(&[], &lengths, &packing(10, 8)).is_empty());
        let full = pack_in_order(&[0, 1, 2, 3], &[4, 3, 3, 3], &packing(10, 8));
        assert_eq!(full, [vec![0, 1, 2], vec![3]]);
    }

    #[test]
    fn only_the_newest_stay_open() {
        // PACK_WINDOW + 1 full-size samples close the first micro-batch, whose gap is then out of reach.
        let mut lengths = vec![9; PACK_WINDOW + 1];
        lengths.push(1);
        let order: Vec<usize> = (0..lengths.len()).collect();
        let packed = pack(&order, &lengths, &packing(10, 8));
        assert_eq!(packed[0], [0]);
        assert_eq!(packed[1], [1, PACK_WINDOW + 1]);
    }

    #[test]
    fn every_sample_is_packed_once_within_the_budget_and_well() {
        let numbers = Numbers::new(1, Purpose::Sample, 0);
        let lengths: Vec<usize> = (0..2000).map(|i| 1 + numbers.below(i, 512) as usize).collect();
        let order = epoch_order(lengths.len(), 3, 0);
        let packed = pack(&order, &lengths, &packing(2048, 64));
        let mut seen: Vec<usize> = packed.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..2000).collect::<Vec<_>>());
        let tokens = |batch: &Vec<usize>| batch.iter().map(|&s| lengths[s]).sum::<usize>();
        assert!(packed.iter().all(|batch| tokens(batch) <= 2048 && batch.len() <= 64));
        let fill = lengths.iter().sum::<usize>() as f64 / (packed.len() * 2048) as f64;
        assert!(fill > 0.97, "{fill}");
    }
}
