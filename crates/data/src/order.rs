//! The order of samples in an epoch.

use canon::random::{Numbers, Purpose};

/// The samples `0..samples` in the order of an epoch (from 0): shuffled by random numbers that depend on the seed and
/// the epoch only.
pub fn epoch_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    Numbers::new(seed, Purpose::Order, epoch as u64).shuffle(&mut order);
    order
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
}
