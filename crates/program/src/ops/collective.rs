//! Collectives: they move data, and add only by the canon's tree.

use crate::buffer::BufferId;
use std::ops::Range;

/// Which ranks take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Tensor-parallel ranks of the same (cp, dp).
    Tensor,
    /// Context-parallel ranks of the same (tp, dp).
    Context,
}

/// What moves.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectiveKind {
    /// `out = init + alpha · tree(subtree sums of the ranks)`, f32. With `leaves` leaves over the group's ranks, each rank
    /// published the sum of its own subtree in `x`.
    TreeSum {
        /// Leaves of the whole tree.
        leaves: usize,
        /// Scale of the sum.
        alpha: f32,
        /// Whether the sum is added to the old value of `out`.
        accumulate: bool,
        /// Row vector added to the sum (a bias), if any.
        bias: Option<BufferId>,
    },
    /// `out[t] = x_owner(ids[t])[t]`: the owner of a token's row sends it; nothing is added.
    OwnerRows {
        /// Token ids U32 `[tokens, 1]`.
        ids: BufferId,
        /// First id of each rank's share, in rank order, and one past the last.
        bounds: Vec<usize>,
    },
    /// `out = x of rank 0, 1, … in row order`: tokens of every context rank.
    GatherTokens,
    /// `out[all tokens, my columns] = every rank's rows of my column range`.
    ExchangeColumns {
        /// Column range of each rank, in rank order.
        ranges: Vec<Range<usize>>,
    },
    /// `out[:, range of rank r] = x of rank r`: column slices to the whole.
    GatherColumns {
        /// Column range of each rank, in rank order.
        ranges: Vec<Range<usize>>,
    },
    /// Rank r's `x` lands in `outs[r]` (each rank receives all, unsummed); `out` is unused.
    Collect {
        /// One buffer a rank.
        outs: Vec<BufferId>,
    },
}

/// A collective over a group of ranks. Every rank of the group runs the same operation at the same place.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Which ranks.
    pub group: Group,
    /// What moves.
    pub kind: CollectiveKind,
    /// This rank's contribution.
    pub x: BufferId,
    /// Where the result goes (equal to `x` for `Collect`, whose results go to `outs`).
    pub out: BufferId,
}
