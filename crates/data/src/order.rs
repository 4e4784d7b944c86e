//! The order of samples in an epoch.

use canon::random::{Numbers, Purpose};

use crate::pack::{Packing, pack, pack_in_order};
use crate::source::times;

/// How the samples of an epoch are brought into an order and into micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrangement {
    /// Shuffled, then packed close to that order: a micro-batch mixes lengths and is filled well.
    #[default]
    Shuffled,
    /// Shuffled, sorted by length, filled in that order, and then the micro-batches are shuffled over the whole epoch: a
    /// micro-batch has samples of nearly one length, and neighbouring micro-batches have not.
    Buckets,
}

/// The stream of [`Purpose::Order`] that decides which samples a fractional weight takes: no epoch has this number.
const WEIGHTS_STREAM: u64 = u64::MAX;
/// Added to the epoch for the stream that shuffles micro-batches.
const MICRO_BATCHES_STREAM: u64 = 1 << 32;

/// The samples `0..samples` in the order of an epoch (from 0): shuffled by random numbers that depend on the seed and
/// the epoch only.
pub fn epoch_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    weighted_order(&vec![1.0; samples], seed, epoch)
}

/// The same where each sample has a weight; see [`times`] for how often it comes.
pub(crate) fn weighted_order(weights: &[f64], seed: u64, epoch: usize) -> Vec<usize> {
    let chance = Numbers::new(seed, Purpose::Order, WEIGHTS_STREAM);
    let mut order = Vec::with_capacity(weights.len());
    for (sample, &weight) in weights.iter().enumerate() {
        let u = f64::from(chance.uniform(sample as u64));
        order.extend(std::iter::repeat_n(sample, times(weight, u, epoch)));
    }
    Numbers::new(seed, Purpose::Order, epoch as u64).shuffle(&mut order);
    order
}

/// The micro-batches of an epoch.
pub(crate) fn arrange(
    weights: &[f64],
    lengths: &[usize],
    packing: &Packing,
    epoch: usize,
) -> Vec<Vec<usize>> {
    let mut order = weighted_order(weights, packing.seed, epoch);
    match packing.arrangement {
        Arrangement::Shuffled => pack(&order, lengths, packing),
        Arrangement::Buckets => {
            // Stable, so that samples of one length stay shuffled.
            order.sort_by_key(|&sample| lengths[sample]);
            let mut micro_batches = pack_in_order(&order, lengths, packing);
            shuffle_micro_batches(&mut micro_batches, packing.seed, epoch);
            micro_batches
        }
    }
}

/// Puts the micro-batches of an epoch in random order.
pub(crate) fn shuffle_micro_batches(micro_batches: &mut [Vec<usize>], seed: u64, epoch: usize) {
    let stream = MICRO_BATCHES_STREAM + epoch as u64;
    Numbers::new(seed, Purpose::Order, stream).shuffle(micro_batches);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_comes_once_in_an_order_of_seed_and_epoch() {
        let order = epoch_order(100, 7, 0);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(epoch_order(100, 7, 0), order);
        assert_ne!(epoch_order(100, 7, 1), order);
        assert_ne!(epoch_order(100, 8, 0), order);
    }

    /// The order is part of a run's identity: it must never change.
    #[test]
    fn the_order_is_this_one() {
        assert_eq!(epoch_order(8, 42, 0), [1, 0, 3, 7, 6, 2, 4, 5]);
    }

    #[test]
    fn a_half_takes_half_of_the_samples_and_the_other_half_next() {
        let weights: Vec<f64> = (0..1000).map(|i| if i < 500 { 0.5 } else { 2.0 }).collect();
        let count = |epoch: usize| {
            let mut count = vec![0; 1000];
            weighted_order(&weights, 3, epoch).into_iter().for_each(|sample| count[sample] += 1);
            count
        };
        let (first, second) = (count(0), count(1));
        assert!(first[500..].iter().all(|&times| times == 2));
        let taken: usize = first[..500].iter().sum();
        assert!((200..300).contains(&taken), "{taken}");
        assert!((0..500).all(|sample| first[sample] + second[sample] == 1));
        assert_eq!(count(0), first);
    }

    /// Also part of a run's identity.
    #[test]
    fn micro_batches_have_streams_of_their_own() {
        for epoch in [0, 3] {
            let mut found: Vec<Vec<usize>> = (0..50).map(|i| vec![i]).collect();
            let mut expected = found.clone();
            shuffle_micro_batches(&mut found, 9, epoch);
            let stream = 4_294_967_296 + epoch as u64;
            Numbers::new(9, Purpose::Order, stream).shuffle(&mut expected);
            assert_eq!(found, expected, "{epoch}");
        }
    }

    #[test]
    fn buckets_hold_one_length_and_are_spread_over_the_epoch() {
        let lengths: Vec<usize> = (0..400).map(|i| 1 + i % 100).collect();
        let packing = Packing {
            tokens: 200,
            sequences: 64,
            accumulation: 1,
            seed: 1,
            arrangement: Arrangement::Buckets,
        };
        let micro_batches = arrange(&[1.0; 400], &lengths, &packing, 0);
        let spread = |batch: &Vec<usize>| {
            let of = batch.iter().map(|&sample| lengths[sample]);
            of.clone().max().unwrap() - of.min().unwrap()
        };
        assert!(micro_batches.iter().all(|batch| spread(batch) <= 10), "tight");
        let mut seen: Vec<usize> = micro_batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
        let firsts: Vec<usize> = micro_batches.iter().map(|batch| lengths[batch[0]]).collect();
        assert!(!firsts.is_sorted(), "shuffled");
        assert_ne!(arrange(&[1.0; 400], &lengths, &packing, 1), micro_batches);
    }
}
