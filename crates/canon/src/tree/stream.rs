//! The tree over leaves that arrive one at a time, in logarithmic space.

use std::fmt;

/// How many additions follow the arrival of leaf `leaf` of `leaves`, each
/// `second-newest = second-newest + newest` on a stack of partial sums.
///
/// It is the number of nodes on the way from the root to the leaf, counted from
/// the leaf upwards, whose right child was taken without interruption: exactly
/// the nodes whose last leaf this is. 0 if there is no such leaf.
#[must_use]
pub fn merges_after(leaf: usize, leaves: usize) -> usize {
    if leaf >= leaves {
        return 0;
    }
    let (mut range, mut merges) = (0..leaves, 0);
    while range.len() > 1 {
        let middle = super::middle(&range);
        if leaf < middle {
            (range, merges) = (range.start..middle, 0);
        } else {
            (range, merges) = (middle..range.end, merges + 1);
        }
    }
    merges
}

/// The most partial sums alive at once, the arriving leaf included:
/// `1 + ceil(log2(leaves))`, and 0 for no leaves.
#[must_use]
pub fn partials(leaves: usize) -> usize {
    match leaves {
        0 => 0,
        n => 1 + (usize::BITS - (n - 1).leading_zeros()) as usize,
    }
}

/// Why a [`Stream`] has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// A leaf came after the last one.
    Full {
        /// The number of leaves that was announced.
        leaves: usize,
    },
    /// A tree of no leaves has no sum.
    Empty,
    /// The sum was asked for before the last leaf came.
    Incomplete {
        /// Leaves that came.
        pushed: usize,
        /// Leaves that were announced.
        leaves: usize,
    },
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { leaves } => write!(
                f,
                "a tree of {leaves} leaves was given one more; announce the true number at the start"
            ),
            Self::Empty => write!(f, "a tree of 0 leaves has no sum; announce at least one leaf"),
            Self::Incomplete { pushed, leaves } => write!(
                f,
                "the sum of {leaves} leaves was asked for after {pushed}; push the others first"
            ),
        }
    }
}

impl std::error::Error for StreamError {}

/// Evaluates the mid-split tree over a known number of leaves as they arrive,
/// holding at most [`partials`] values: gradient accumulation over micro-batches.
#[derive(Debug, Clone)]
pub struct Stream<T> {
    leaves: usize,
    pushed: usize,
    stack: Vec<T>,
}

impl<T> Stream<T> {
    /// An evaluator of the tree over `leaves` leaves.
    #[must_use]
    pub fn new(leaves: usize) -> Self {
        Self { leaves, pushed: 0, stack: Vec::with_capacity(partials(leaves)) }
    }

    /// Takes the next leaf and does every addition that it completes;
    /// `add(left, right)` must leave `left + right` in `left`.
    ///
    /// # Errors
    /// [`StreamError::Full`] when every leaf has come already.
    pub fn push(&mut self, leaf: T, mut add: impl FnMut(&mut T, T)) -> Result<(), StreamError> {
        if self.pushed == self.leaves {
            return Err(StreamError::Full { leaves: self.leaves });
        }
        let mut newest = leaf;
        // A node that ends with this leaf has its left child just below on the
        // stack, so there are as many values as merges.
        let kept = self.stack.len() - merges_after(self.pushed, self.leaves);
        for mut left in self.stack.drain(kept..).rev() {
            add(&mut left, newest);
            newest = left;
        }
        self.stack.push(newest);
        self.pushed += 1;
        Ok(())
    }

    /// The number of partial sums held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.stack.len()
    }

    /// The sum of the whole tree.
    ///
    /// # Errors
    /// [`StreamError::Incomplete`] when leaves are missing, [`StreamError::Empty`]
    /// when none was announced.
    pub fn finish(mut self) -> Result<T, StreamError> {
        let (pushed, leaves) = (self.pushed, self.leaves);
        if pushed < leaves {
            return Err(StreamError::Incomplete { pushed, leaves });
        }
        self.stack.pop().ok_or(StreamError::Empty)
    }
}
