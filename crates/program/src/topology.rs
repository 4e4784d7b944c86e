//! Topologies: how many ranks, and which leaves of a sharded dimension each owns.

use std::ops::Range;

/// Degrees of parallelism and the width of the canon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Tensor parallel degree: a power of two.
    pub tp: usize,
    /// Context parallel degree.
    pub cp: usize,
    /// Data parallel degree.
    pub dp: usize,
    /// Virtual shards V: leaves of every sum over a sharded dimension that can be cut so.
    pub width: usize,
}

impl Topology {
    /// Default width V.
    pub const WIDTH: usize = 8;

    /// One rank, default width.
    pub fn single() -> Self {
        Topology { tp: 1, cp: 1, dp: 1, width: Self::WIDTH }
    }

    /// One data-parallel replica of tensor and context ranks, default width.
    pub fn new(tp: usize, cp: usize) -> Result<Self, TopologyError> {
        let topology = Topology { tp, cp, dp: 1, width: Self::WIDTH };
        topology.check()?;
        Ok(topology)
    }

    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.tp * self.cp * self.dp
    }

    /// Checks degrees against each other and against limits.
    pub fn check(&self) -> Result<(), TopologyError> {
        let at_least_one =
            [("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("width", self.width)];
        for (what, degree) in at_least_one {
            if degree == 0 || degree > MAX_DEGREE {
                return Err(TopologyError::Degree { what, degree });
            }
        }
        if self.width > MAX_WIDTH {
            return Err(TopologyError::WidthOverLimit { width: self.width });
        }
        if !self.tp.is_power_of_two() {
            return Err(TopologyError::NotAPowerOfTwo { tp: self.tp });
        }
        if self.tp > self.width {
            return Err(TopologyError::TpOverWidth { tp: self.tp, width: self.width });
        }
        Ok(())
    }
}

/// Largest degree accepted.
pub const MAX_DEGREE: usize = 4096;

/// Largest width: three projections of one input have as many terms as three times the width, and kernels take 128.
pub const MAX_WIDTH: usize = 32;

/// A topology that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Zero or absurd.
    #[error("{what} = {degree}: must be between 1 and {MAX_DEGREE}")]
    Degree {
        /// Which degree.
        what: &'static str,
        /// Its value.
        degree: usize,
    },
    /// More leaves than kernels take.
    #[error("width = {width}: the most is {MAX_WIDTH}")]
    WidthOverLimit {
        /// The width.
        width: usize,
    },
    /// TP splits leaves in halves.
    #[error("tp = {tp}: must be a power of two, since ranks own subtrees of a binary tree")]
    NotAPowerOfTwo {
        /// The degree.
        tp: usize,
    },
    /// More ranks than leaves.
    #[error(
        "tp = {tp} is more than the width {width}: lower tp to {width} or less (a part of a layer is never cut finer)"
    )]
    TpOverWidth {
        /// The degree.
        tp: usize,
        /// The width.
        width: usize,
    },
}

/// One rank's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    /// Index among tensor ranks.
    pub tp: usize,
    /// Index among context ranks.
    pub cp: usize,
    /// Index among data ranks.
    pub dp: usize,
}

impl Rank {
    /// The only rank of a single topology, and the first of any.
    pub const FIRST: Rank = Rank { tp: 0, cp: 0, dp: 0 };

    /// Place of a rank number: tp fastest, then cp, then dp.
    pub fn of(index: usize, topology: &Topology) -> Rank {
        Rank {
            tp: index % topology.tp,
            cp: index / topology.tp % topology.cp,
            dp: index / (topology.tp * topology.cp),
        }
    }

    /// Rank number of a place.
    pub fn index(&self, topology: &Topology) -> usize {
        self.tp + topology.tp * (self.cp + topology.cp * self.dp)
    }
}

/// A dimension cut in leaves: the units in which sums over it are taken and ranks share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    bounds: Vec<usize>,
}

impl Cut {
    /// Cuts `units` units of `unit` elements in at most `width` leaves, by the canon's rule.
    ///
    /// # Panics
    /// On zero units or width: configurations and topologies are checked before.
    pub fn new(units: usize, unit: usize, width: usize) -> Cut {
        let leaves = canon::leaves::cut(units, unit, width)
            .unwrap_or_else(|e| panic!("{units} units of {unit} at width {width}: {e}"));
        Cut { bounds: std::iter::once(0).chain(leaves.into_iter().map(|l| l.end)).collect() }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Length of the whole dimension.
    pub fn len(&self) -> usize {
        self.bounds[self.leaves()]
    }

    /// Whether the dimension is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of leaf `i`.
    pub fn leaf(&self, i: usize) -> Range<usize> {
        self.bounds[i]..self.bounds[i + 1]
    }

    /// Leaves that tensor rank `rank` of `tp` owns. Where leaves are too few, ranks replicate.
    pub fn owned_leaves(&self, tp: usize, rank: usize) -> Range<usize> {
        owned(self.leaves(), tp, rank)
    }

    /// Elements that tensor rank `rank` of `tp` owns.
    pub fn owned(&self, tp: usize, rank: usize) -> Range<usize> {
        let leaves = self.owned_leaves(tp, rank);
        self.bounds[leaves.start]..self.bounds[leaves.end]
    }

    /// The leaves that a rank owns, as ranges relative to its first element.
    pub fn local_leaves(&self, tp: usize, rank: usize) -> Vec<Range<usize>> {
        let owned = self.owned_leaves(tp, rank);
        let start = self.bounds[owned.start];
        owned.map(|i| self.bounds[i] - start..self.bounds[i + 1] - start).collect()
    }

    /// A cut of the same leaves whose elements are `factor` times as many (heads to columns, say).
    pub fn scaled(&self, factor: usize) -> Cut {
        Cut { bounds: self.bounds.iter().map(|b| b * factor).collect() }
    }

    /// A cut of the same leaves with `divisor` elements counted as one (columns to heads, say).
    pub fn scaled_down(&self, divisor: usize) -> Cut {
        assert!(self.bounds.iter().all(|b| b % divisor == 0), "leaves hold whole units");
        Cut { bounds: self.bounds.iter().map(|b| b / divisor).collect() }
    }
}

/// The subtree of the mid-split tree over `leaves` leaves that rank `rank` of `ranks` owns.
///
/// # Panics
/// On a rank that is not one of `ranks`.
pub fn owned(leaves: usize, ranks: usize, rank: usize) -> Range<usize> {
    canon::tree::owned(leaves, ranks, rank)
        .unwrap_or_else(|e| panic!("rank {rank} of {ranks} over {leaves} leaves: {e}"))
}

/// Rows of a vocabulary padded to a multiple of 128·V.
///
/// # Panics
/// On an empty vocabulary or width zero.
pub fn padded_vocab(vocab: usize, width: usize) -> usize {
    canon::leaves::padded_vocab(vocab, width)
        .unwrap_or_else(|e| panic!("{vocab} words at width {width}: {e}"))
}

/// Columns of one soft-max tile.
pub const VOCAB_TILE: usize = canon::leaves::VOCAB_TILE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qwen3_vocabulary_pads_to_the_same_size_at_every_degree() {
        assert_eq!(padded_vocab(151_936, 8), 152_576);
        assert_eq!(padded_vocab(49_152, 8), 49_152);
    }

    #[test]
    fn ranks_own_adjacent_leaves_that_cover_the_dimension() {
        let cut = Cut::new(1536, 1, 8);
        assert_eq!(cut.leaves(), 8);
        for tp in [1, 2, 4, 8] {
            let mut end = 0;
            for rank in 0..tp {
                let owned = cut.owned(tp, rank);
                assert_eq!(owned.start, end);
                assert_eq!(owned.len(), 1536 / tp);
                end = owned.end;
            }
            assert_eq!(end, 1536);
        }
    }

    #[test]
    fn three_key_value_heads_cut_in_three_and_the_rest_replicates() {
        let cut = Cut::new(3, 64, 8);
        assert_eq!(cut.leaves(), 3);
        assert_eq!(cut.owned(2, 0), 0..64);
        assert_eq!(cut.owned(2, 1), 64..192);
        assert_eq!(cut.owned(4, 0), 0..64);
        assert_eq!(cut.owned(4, 1), 0..64);
        assert_eq!(cut.owned(4, 2), 64..128);
        assert_eq!(cut.owned(4, 3), 128..192);
    }

    #[test]
    fn odd_units_cut_in_eight_unequal_leaves() {
        let cut = Cut::new(13, 1, 8);
        assert_eq!(cut.leaves(), 8);
        let sizes: Vec<usize> = (0..8).map(|i| cut.leaf(i).len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 13);
        assert!(sizes.iter().all(|&s| s == 1 || s == 2));
    }

    #[test]
    fn impossible_topologies_are_refused() {
        assert_eq!(Topology::new(3, 1), Err(TopologyError::NotAPowerOfTwo { tp: 3 }));
        assert_eq!(Topology::new(16, 1), Err(TopologyError::TpOverWidth { tp: 16, width: 8 }));
        let wide = Topology { width: 64, ..Topology::single() };
        assert_eq!(wide.check(), Err(TopologyError::WidthOverLimit { width: 64 }));
        assert_eq!(Topology::new(0, 1), Err(TopologyError::Degree { what: "tp", degree: 0 }));
    }
}
