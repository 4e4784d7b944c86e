//! Which subtree a rank owns, and how the tree is finished from subtree sums.

use std::fmt;
use std::ops::Range;

use super::middle;

/// Why leaves cannot be shared among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerError {
    /// A tree needs at least one leaf.
    NoLeaves,
    /// A tree needs at least one rank.
    NoRanks,
    /// Ranks count from 0 to `ranks - 1`.
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
}

impl fmt::Display for OwnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeaves => write!(f, "a tree of 0 leaves has no sum; cut at least one leaf"),
            Self::NoRanks => write!(f, "a tree cannot be shared among 0 ranks; use at least 1"),
            Self::NoSuchRank { rank, ranks } => {
                write!(f, "rank {rank} of {ranks} does not exist; ranks count from 0")
            }
        }
    }
}

impl std::error::Error for OwnerError {}

/// A subtree and the ranks that compute it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The leaves of the subtree.
    pub leaves: Range<usize>,
    /// The ranks that hold them: one, or several that replicate a single leaf.
    pub ranks: Range<usize>,
}

/// One addition that finishes the tree: `sums[into] = sums[into] + sums[from]`,
/// where `sums[i]` is the subtree sum of the `i`-th [`Owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addition {
    /// Left operand and destination, an index into [`owners`].
    pub into: usize,
    /// Right operand, an index into [`owners`].
    pub from: usize,
}

/// The leaves that `rank` of `ranks` owns: always a whole subtree.
///
/// Ranks split where leaves split: a node over several leaves held by several
/// ranks gives its left half of leaves to the first `ranks / 2` ranks and the
/// right half to the others. A node with one rank belongs to it; a node with
/// one leaf is replicated by all its ranks.
///
/// # Errors
/// [`OwnerError`] when there is no leaf, no rank, or no such rank.
pub fn owned(leaves: usize, ranks: usize, rank: usize) -> Result<Range<usize>, OwnerError> {
    check(leaves, ranks)?;
    if rank >= ranks {
        return Err(OwnerError::NoSuchRank { rank, ranks });
    }
    let (mut l, mut r) = (0..leaves, 0..ranks);
    while l.len() > 1 && r.len() > 1 {
        let (lm, rm) = (middle(&l), middle(&r));
        (l, r) = if rank < rm { (l.start..lm, r.start..rm) } else { (lm..l.end, rm..r.end) };
    }
    Ok(l)
}

/// Every subtree and its ranks, in ascending order of leaves (and of ranks).
///
/// # Errors
/// [`OwnerError`] when there is no leaf or no rank.
pub fn owners(leaves: usize, ranks: usize) -> Result<Vec<Owner>, OwnerError> {
    Ok(walk(leaves, ranks)?.owners)
}

/// The additions that turn the sums of [`owners`] into the sum of the whole
/// tree, in the order in which they are to be done; the result is left in
/// `sums[0]`. Empty when one owner holds every leaf.
///
/// # Errors
/// [`OwnerError`] when there is no leaf or no rank.
pub fn finish(leaves: usize, ranks: usize) -> Result<Vec<Addition>, OwnerError> {
    Ok(walk(leaves, ranks)?.additions)
}

fn check(leaves: usize, ranks: usize) -> Result<(), OwnerError> {
    match (leaves, ranks) {
        (0, _) => Err(OwnerError::NoLeaves),
        (_, 0) => Err(OwnerError::NoRanks),
        _ => Ok(()),
    }
}

fn walk(leaves: usize, ranks: usize) -> Result<Walk, OwnerError> {
    check(leaves, ranks)?;
    let mut walk = Walk::default();
    walk.node(0..leaves, 0..ranks);
    Ok(walk)
}

#[derive(Default)]
struct Walk {
    owners: Vec<Owner>,
    additions: Vec<Addition>,
}

impl Walk {
    /// Visits a node in post-order; returns the owner its sum ends up in.
    fn node(&mut self, leaves: Range<usize>, ranks: Range<usize>) -> usize {
        if leaves.len() == 1 || ranks.len() == 1 {
            self.owners.push(Owner { leaves, ranks });
            return self.owners.len() - 1;
        }
        let (lm, rm) = (middle(&leaves), middle(&ranks));
        let into = self.node(leaves.start..lm, ranks.start..rm);
        let from = self.node(lm..leaves.end, rm..ranks.end);
        self.additions.push(Addition { into, from });
        into
    }
}
