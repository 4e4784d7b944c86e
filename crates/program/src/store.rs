//! What outlives a step: parameters, their gradients and optimizer state, caches. Every program of a model starts with
//! the same store, so its buffers carry the same ids in all of them.

use crate::buffer::{Axis, Buffer, BufferId, DType, Kind};
use crate::graph::{Graph, Param, ParamId, Split};
use crate::ops::{EXACT_SUM_WORDS, PAGE};
use crate::topology::{Cut, Rank, Topology, owned};
use std::ops::Range;

/// What to make room for beside the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Logical micro-batches in an optimizer step; 0 when nothing is trained.
    pub accumulation: usize,
    /// Pages of the key/value caches over all context ranks; 0 for none.
    pub pages: usize,
    /// Pages in turn of each context rank: page p is rank `p / interleave mod cp`'s. At least 1.
    pub interleave: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { accumulation: 0, pages: 0, interleave: 1 }
    }
}

/// How context ranks share the pages of the cache: in turns of `interleave` pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShare {
    /// Context ranks.
    pub cp: usize,
    /// Pages in a turn.
    pub interleave: usize,
}

impl PageShare {
    /// The context rank that holds a page.
    pub fn owner(&self, page: usize) -> usize {
        page / self.interleave % self.cp
    }

    /// The page's number among its owner's pages.
    pub fn local(&self, page: usize) -> usize {
        page / (self.interleave * self.cp) * self.interleave + page % self.interleave
    }

    /// Pages that a rank has room for when there are `pages` in all: the same on every rank.
    pub fn capacity(&self, pages: usize) -> usize {
        pages.div_ceil(self.interleave * self.cp) * self.interleave
    }
}

/// Buffers of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSlot {
    /// The parameter's share on this rank.
    pub value: BufferId,
    /// Its training state, if trained.
    pub state: Option<TrainState>,
}

/// Gradient and optimizer state of one trained parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainState {
    /// Gradient of the current micro-batch; after the last one, of the step.
    pub grad: BufferId,
    /// Partial sums of the accumulation tree, deepest last.
    pub partials: Vec<BufferId>,
    /// First moment, of the elements in `slice`.
    pub m: BufferId,
    /// Second moment, of the elements in `slice`.
    pub v: BufferId,
    /// Elements of this rank's share of the parameter that it updates. Ranks that hold the same share (context and data
    /// ranks) divide it between them.
    pub slice: Range<usize>,
    /// Whether this rank's slice counts in the gradient norm: of tensor ranks that hold the same share, the first one's.
    pub counted: bool,
}

/// The persistent buffers of one rank.
#[derive(Clone, Debug)]
pub struct Store {
    /// The buffers, ids 0 ..
    pub buffers: Vec<Buffer>,
    /// One slot a parameter.
    pub params: Vec<ParamSlot>,
    /// Key and value cache of each attention layer: this rank's pages, one after the other.
    pub caches: Vec<(BufferId, BufferId)>,
    /// How context ranks share pages.
    pub page_share: PageShare,
    /// Optimizer scalars `[1, 8]`, if training.
    pub hyper: Option<BufferId>,
    /// Exact sum of squares of the gradient, U32 `[1, 22]`, if training.
    pub grad_squares: Option<BufferId>,
    /// The topology that shares were cut for.
    pub topology: Topology,
    /// Whose shares these are.
    pub rank: Rank,
}

impl Store {
    /// Lays out the store of one rank.
    pub fn new(graph: &Graph, topology: Topology, rank: Rank, options: StoreOptions) -> Store {
        let mut store = Store {
            buffers: Vec::new(),
            params: Vec::new(),
            caches: Vec::new(),
            page_share: PageShare { cp: topology.cp, interleave: options.interleave },
            hyper: None,
            grad_squares: None,
            topology,
            rank,
        };
        for param in &graph.params {
            let slot = store.param_slot(param, options);
            store.params.push(slot);
        }
        if options.accumulation > 0 {
            store.hyper = Some(store.push("hyper", DType::F32, 1, 8, Kind::Input));
            store.grad_squares =
                Some(store.push("grad_squares", DType::U32, 1, EXACT_SUM_WORDS, Kind::Input));
        }
        if options.pages > 0 {
            let rows = store.page_share.capacity(options.pages) * PAGE;
            for (i, &(kv_heads, head_dim)) in graph.caches.iter().enumerate() {
                let cut = Cut::new(kv_heads, head_dim, topology.width);
                let cols = cut.owned(topology.tp, rank.tp).len();
                let mut cache =
                    |name: String| store.push(&name, DType::F32, rows, cols, Kind::Context);
                let pair = (cache(format!("cache.{i}.k")), cache(format!("cache.{i}.v")));
                store.caches.push(pair);
            }
        }
        store
    }

    fn push(&mut self, name: &str, dtype: DType, rows: usize, cols: usize, kind: Kind) -> BufferId {
        self.buffers.push(Buffer { name: name.into(), dtype, rows, cols, axis: Axis::Fixed, kind });
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn param_slot(&mut self, param: &Param, options: StoreOptions) -> ParamSlot {
        let (rows, cols) = local_shape(param, &self.topology, self.rank);
        let kind = if param.adapter { Kind::Adapter } else { Kind::Weight };
        let value = self.push(&param.name, param.dtype, rows, cols, kind);
        let state = (param.trainable && options.accumulation > 0).then(|| {
            let grad =
                self.push(&format!("{}.grad", param.name), DType::F32, rows, cols, Kind::Gradient);
            let leaves = most_micro_batches(options.accumulation, &self.topology, self.rank);
            let partials = (0..tree_depth(leaves))
                .map(|i| {
                    self.push(
                        &format!("{}.grad.{i}", param.name),
                        DType::F32,
                        rows,
                        cols,
                        Kind::Gradient,
                    )
                })
                .collect();
            let slice = slice_of(rows * cols, &self.topology, self.rank);
            // A whole moment has its parameter's shape, a part of one is a row.
            let (rows, cols) =
                if slice.len() == rows * cols { (rows, cols) } else { (1, slice.len()) };
            let m =
                self.push(&format!("{}.m", param.name), DType::F32, rows, cols, Kind::Optimizer);
            let v =
                self.push(&format!("{}.v", param.name), DType::F32, rows, cols, Kind::Optimizer);
            let counted = first_with_share(param, &self.topology, self.rank);
            TrainState { grad, partials, m, v, slice, counted }
        });
        ParamSlot { value, state }
    }

    /// A parameter's slot.
    pub fn slot(&self, id: ParamId) -> &ParamSlot {
        &self.params[id.0 as usize]
    }

    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}

/// The tensor rank that holds most: leaves that do not divide evenly make shares unequal.
pub fn heaviest_rank(graph: &Graph, topology: Topology) -> Rank {
    let ranks = (0..topology.tp).map(|tp| Rank { tp, ..Rank::FIRST });
    let elements = |rank: &Rank| -> usize {
        let shapes = graph.params.iter().map(|p| local_shape(p, &topology, *rank));
        shapes.map(|(rows, cols)| rows * cols).sum()
    };
    ranks.max_by_key(|rank| (elements(rank), std::cmp::Reverse(rank.tp))).unwrap_or(Rank::FIRST)
}

/// Rows and columns of a whole parameter, padding included, that a rank holds.
pub fn share(param: &Param, topology: &Topology, rank: Rank) -> (Range<usize>, Range<usize>) {
    match &param.split {
        Split::Replicated => (0..param.padded_rows, 0..param.cols),
        Split::Rows(cut) => (cut.owned(topology.tp, rank.tp), 0..param.cols),
        Split::Cols(cut) => (0..param.padded_rows, cut.owned(topology.tp, rank.tp)),
    }
}

/// How many rows and columns a rank's [`share`] of a parameter has.
pub fn local_shape(param: &Param, topology: &Topology, rank: Rank) -> (usize, usize) {
    let (rows, cols) = share(param, topology, rank);
    (rows.len(), cols.len())
}

/// Elements of each slice are a multiple of this, but for the last: a cache line of floats.
const SLICE_UNIT: usize = 16;

/// Elements of a share of `len` that a rank updates, of all the context and data ranks that hold it.
///
/// Data ranks of one context rank have neighbouring slices, so that the sum over data ranks moves to each what it
/// updates.
pub fn slice_of(len: usize, topology: &Topology, rank: Rank) -> Range<usize> {
    let (parts, part) = (topology.cp * topology.dp, rank.cp * topology.dp + rank.dp);
    let bound = |part: usize| (len.div_ceil(SLICE_UNIT) * part / parts * SLICE_UNIT).min(len);
    bound(part)..bound(part + 1)
}

/// Logical micro-batches of a step of `total` that a data rank runs: a whole subtree of the tree over them. With fewer
/// micro-batches than data ranks, some run the same one.
pub fn micro_batches_of(total: usize, topology: &Topology, rank: Rank) -> Range<usize> {
    owned(total, topology.dp, rank.dp)
}

/// The most that [`micro_batches_of`] gives a rank in a step of at most `accumulation`.
fn most_micro_batches(accumulation: usize, topology: &Topology, rank: Rank) -> usize {
    if topology.dp == 1 {
        return accumulation;
    }
    (1..=accumulation).map(|n| micro_batches_of(n, topology, rank).len()).max().unwrap_or(0)
}

/// Whether no tensor rank before this one holds the same share of a parameter.
fn first_with_share(param: &Param, topology: &Topology, rank: Rank) -> bool {
    let (Split::Rows(cut) | Split::Cols(cut)) = &param.split else { return rank.tp == 0 };
    let leaves = |tp| cut.owned_leaves(topology.tp, tp);
    rank.tp == 0 || leaves(rank.tp - 1) != leaves(rank.tp)
}

/// Partial sums that the mid-split tree over `leaves` gradients needs beside the current one.
pub fn tree_depth(leaves: usize) -> usize {
    canon::tree::partials(leaves).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_page_has_a_place_of_its_own_on_one_context_rank() {
        for (cp, interleave, pages) in [(1, 1, 9), (2, 1, 8), (2, 3, 17), (4, 2, 5), (3, 4, 40)] {
            let share = PageShare { cp, interleave };
            let places: HashSet<(usize, usize)> =
                (0..pages).map(|page| (share.owner(page), share.local(page))).collect();
            assert_eq!(places.len(), pages, "cp {cp} interleave {interleave}");
            for (owner, local) in places {
                assert!(owner < cp && local < share.capacity(pages));
            }
        }
        let share = PageShare { cp: 2, interleave: 2 };
        assert_eq!([0, 1, 2, 3, 4].map(|page| share.owner(page)), [0, 0, 1, 1, 0]);
        assert_eq!((share.local(4), share.capacity(5)), (2, 4));
    }
}
