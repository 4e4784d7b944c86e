//! How lengths are spread.

use serde::{Deserialize, Serialize};

/// A bin of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The smallest value in it.
    pub from: usize,
    /// The largest value in it.
    pub to: usize,
    /// Values in it.
    pub count: usize,
    /// Their sum.
    pub sum: usize,
}

/// Values in bins that double: 0, 1, 2–3, 4–7, …, from the first that has any to the last that has. A sum beside each
/// count, since few long samples may hold most tokens.
pub fn histogram(values: impl IntoIterator<Item = usize>) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    for value in values {
        let index = (usize::BITS - value.leading_zeros()) as usize;
        while bins.len() <= index {
            let from = 1usize.checked_shl(bins.len() as u32).map_or(0, |power| power / 2);
            let to = (2 * from).saturating_sub(1);
            bins.push(Bin { from, to, count: 0, sum: 0 });
        }
        bins[index].count += 1;
        bins[index].sum += value;
    }
    let first = bins.iter().position(|bin| bin.count > 0).unwrap_or(bins.len());
    bins.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double_and_hold_every_value() {
        let bins = histogram([0, 1, 2, 3, 4, 7, 8]);
        let found: Vec<_> = bins.iter().map(|b| (b.from, b.to, b.count, b.sum)).collect();
        assert_eq!(found, [(0, 0, 1, 0), (1, 1, 1, 1), (2, 3, 2, 5), (4, 7, 2, 11), (8, 15, 1, 8)]);
        let bins = histogram([5, 40]);
        assert_eq!((bins[0].from, bins.len(), bins[1].count), (4, 4, 0));
        assert!(histogram([]).is_empty());
    }
}
