//! Collectives: they move data, and add only by the canon's tree.

use crate::buffer::BufferId;
use crate::lower::Program;
use crate::topology::{Rank, Topology};
use std::ops::Range;

/// Which ranks take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Tensor-parallel ranks of the same (cp, dp).
    Tensor,
    /// Context-parallel ranks of the same (tp, dp).
    Context,
    /// Data-parallel ranks of the same (tp, cp).
    Data,
    /// Ranks of the same tp, that hold the same share of every parameter: all of (cp, dp), cp fastest.
    Replicas,
    /// Every rank of the topology.
    All,
}

impl Group {
    /// Every group.
    pub const ALL: [Group; 5] =
        [Group::Tensor, Group::Context, Group::Data, Group::Replicas, Group::All];

    /// Lower-case name, as in messages.
    pub fn name(self) -> &'static str {
        match self {
            Group::Tensor => "tensor",
            Group::Context => "context",
            Group::Data => "data",
            Group::Replicas => "replica",
            Group::All => "world",
        }
    }

    /// Ranks of each such group.
    pub fn size(self, topology: &Topology) -> usize {
        match self {
            Group::Tensor => topology.tp,
            Group::Context => topology.cp,
            Group::Data => topology.dp,
            Group::Replicas => topology.cp * topology.dp,
            Group::All => topology.ranks(),
        }
    }

    /// Place of a rank in its group, in the order of rank numbers.
    pub fn place(self, rank: Rank, topology: &Topology) -> usize {
        match self {
            Group::Tensor => rank.tp,
            Group::Context => rank.cp,
            Group::Data => rank.dp,
            Group::Replicas => rank.cp + topology.cp * rank.dp,
            Group::All => rank.index(topology),
        }
    }

    /// Number of the first rank of a rank's group.
    pub fn first(self, rank: Rank, topology: &Topology) -> usize {
        match self {
            Group::Tensor => Rank { tp: 0, ..rank },
            Group::Context => Rank { cp: 0, ..rank },
            Group::Data => Rank { dp: 0, ..rank },
            Group::Replicas => Rank { cp: 0, dp: 0, ..rank },
            Group::All => Rank::FIRST,
        }
        .index(topology)
    }
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
    /// `out[range] = tree over the step's logical micro-batches`, for this rank's range of a gradient's elements: each
    /// rank's `x` is the sum of its own subtree of them. The number of leaves is the run's
    /// ([`crate::buffer::Live::micro_batches`]), since the last step of an epoch may have fewer. Other elements of `out`
    /// stay as they are.
    StepSum {
        /// Elements that each rank receives, in rank order.
        ranges: Vec<Range<usize>>,
    },
    /// `out[range of rank r] = x[range of rank r] of rank r`: slices of elements to the whole.
    GatherSlices {
        /// Elements that each rank sends, in rank order.
        ranges: Vec<Range<usize>>,
    },
    /// `out = exact integer sum of the ranks' accumulators` ([`crate::ops::SumSquares`]): it has no order.
    ExactSum,
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

impl Collective {
    /// Most floats of `x` that a rank publishes in it. An exact sum's words are not among them: they go by value.
    pub fn published(&self, program: &Program, topology: &Topology, rank: Rank) -> usize {
        let x = program.buffer(self.x);
        match &self.kind {
            CollectiveKind::ExactSum => 0,
            CollectiveKind::GatherSlices { ranges } => {
                ranges[self.group.place(rank, topology)].len()
            }
            _ => x.rows * x.cols,
        }
    }
}
