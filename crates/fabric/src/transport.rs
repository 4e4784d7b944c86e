//! What carries contributions between ranks: the seam under [`crate::Member`].

use crate::contribution::Contribution;
use crate::error::FabricError;
use program::Topology;
use program::ops::Group;
use std::sync::Arc;

/// A group of ranks that meet: of one of the world's topologies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Circle {
    /// Index of the topology; the world itself is the last one.
    pub(crate) space: usize,
    /// Which group of it.
    pub(crate) group: Group,
    /// Number of the group's first rank.
    pub(crate) first: usize,
}

/// Carries what ranks give each other. Ranks of every topology are numbered from 0 in the one world.
pub(crate) trait Transport {
    /// Topologies of the world, itself (as data ranks) last.
    fn spaces(&self) -> &[Topology];

    /// Gives a contribution and takes those of the whole circle, in the order of its ranks.
    fn exchange(
        &self,
        circle: Circle,
        rank: usize,
        operation: &str,
        contribution: Contribution,
    ) -> Result<Vec<Arc<Contribution>>, FabricError>;

    /// A failure that a rank found in what was given: every wait ends with it.
    fn refuse(&self, rank: usize, error: &FabricError);

    /// What a rank is about to do, for the message that others get if it fails there.
    fn entering(&self, rank: usize, operation: &str);
}
