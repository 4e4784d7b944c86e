//! Exchanges between ranks, absent where a degree is 1.

use super::Lowering;
use crate::buffer::{Axis, BufferId, DType, Kind};
use crate::graph::{ParamId, Split};
use crate::ops::*;
use crate::topology::owned;
use std::ops::Range;

impl Lowering<'_> {
    /// `x` of every context rank's tokens.
    pub(super) fn gather_tokens(&mut self, x: BufferId) -> BufferId {
        if self.store.topology.cp == 1 {
            return x;
        }
        let (name, cols) =
            (format!("{}.all", self.buffers[x.0 as usize].name), self.buffers[x.0 as usize].cols);
        let out = self.all_tokens_buffer(name, cols);
        self.emit(Collective { group: Group::Context, kind: CollectiveKind::GatherTokens, x, out });
        out
    }

    /// Every row of `x` from the context rank that holds it.
    pub(super) fn rows_of_owners(&mut self, x: BufferId, owners: BufferId) {
        let bounds = (0..=self.store.topology.cp).collect();
        let kind = CollectiveKind::OwnerRows { ids: owners, bounds };
        self.emit(Collective { group: Group::Context, kind, x, out: x });
    }

    pub(super) fn all_tokens_buffer(&mut self, name: String, cols: usize) -> BufferId {
        let rows = self.all_tokens();
        self.buffer(name, DType::F32, rows, cols, Axis::AllTokens, Kind::Graph)
    }

    /// `out[a.cols, b.cols] = aᵀ·b` over all tokens of the micro-batch, in one chain a element.
    ///
    /// With context ranks, each gathers `a`, receives its columns of `b` for all tokens, computes its slice of the
    /// product, and the slices are gathered: no sum over ranks.
    pub(super) fn token_product(&mut self, label: &str, a: BufferId, b: BufferId, out: BufferId) {
        let (cp, rank) = (self.store.topology.cp, self.store.rank.cp);
        if cp == 1 {
            self.emit_token_product(label, a, b, out);
            return;
        }
        let cols = self.buffers[b.0 as usize].cols;
        let rows = self.buffers[a.0 as usize].cols;
        let ranges: Vec<Range<usize>> = (0..cp).map(|r| owned(cols, cp, r)).collect();
        let mine = ranges[rank].clone();
        let a = self.gather_tokens(a);
        let slice_in = self.all_tokens_buffer(format!("{label}.columns"), mine.len());
        self.emit(Collective {
            group: Group::Context,
            kind: CollectiveKind::ExchangeColumns { ranges: ranges.clone() },
            x: b,
            out: slice_in,
        });
        let slice = self.buffer(
            format!("{label}.slice"),
            DType::F32,
            rows,
            mine.len(),
            Axis::Fixed,
            Kind::Graph,
        );
        self.emit_token_product(label, a, slice_in, slice);
        self.emit(Collective {
            group: Group::Context,
            kind: CollectiveKind::GatherColumns { ranges },
            x: slice,
            out,
        });
    }

    fn emit_token_product(&mut self, label: &str, a: BufferId, b: BufferId, out: BufferId) {
        self.emit(MatMul {
            label: label.into(),
            out,
            leaves: vec![vec![Term { a: Operand::transposed(a), b: Operand::transposed(b) }]],
            tail: vec![],
            alpha: 1.0,
            init: Init::Zero,
        });
    }

    /// Emits `product`, whose leaves are this rank's share of a tree over `total` leaves, and finishes the tree.
    ///
    /// On one tensor rank the kernel does it all. On more, the rank's subtree sum goes to a partial buffer, ranks exchange
    /// subtree sums, and what follows the tree (scale, tail, init) is applied in the same order.
    pub(super) fn tree_product(&mut self, product: MatMul, total: usize) {
        if self.store.topology.tp == 1 {
            self.emit(product);
            return;
        }
        let MatMul { label, out, leaves, tail, alpha, init } = product;
        assert!(
            tail.is_empty() || alpha == 1.0,
            "{label}: a tail and a scale together have no distributed form"
        );
        let shape = &self.buffers[out.0 as usize];
        let (rows, cols, axis) = (shape.rows, shape.cols, shape.axis);
        let partial =
            self.buffer(format!("{label}.partial"), DType::F32, rows, cols, axis, Kind::Graph);
        self.emit(MatMul {
            label: label.clone(),
            out: partial,
            leaves,
            tail: vec![],
            alpha: 1.0,
            init: Init::Zero,
        });
        // out = init + (tree + tail): with a tail, the sum must exist before init is added.
        let staged = !tail.is_empty() && init != Init::Zero;
        let sum = if staged {
            self.buffer(format!("{label}.sum"), DType::F32, rows, cols, axis, Kind::Graph)
        } else {
            out
        };
        let (accumulate, bias) = match (&init, staged) {
            (_, true) | (Init::Zero, _) => (false, None),
            (Init::Accumulate, _) => (true, None),
            (Init::Bias(bias), _) => (false, Some(*bias)),
        };
        self.emit(Collective {
            group: Group::Tensor,
            kind: CollectiveKind::TreeSum { leaves: total, alpha, accumulate, bias },
            x: partial,
            out: sum,
        });
        if !tail.is_empty() {
            self.emit(MatMul {
                label: format!("{label} tail"),
                out: sum,
                leaves: vec![tail],
                tail: vec![],
                alpha: 1.0,
                init: Init::Accumulate,
            });
        }
        if staged {
            match init {
                Init::Accumulate => self.emit(Add { a: out, b: sum, out }),
                Init::Bias(bias) => self.emit(AddRow { x: sum, row: bias, out }),
                Init::Zero => unreachable!("a staged sum has an init"),
            }
        }
    }

    /// First row of each tensor rank's share of a vocabulary parameter, and one past the last.
    pub(super) fn vocab_bounds(&self, table: ParamId) -> Vec<usize> {
        let info = self.graph.param_info(table);
        let tp = self.store.topology.tp;
        match &info.split {
            Split::Rows(cut) => {
                let mut bounds: Vec<usize> = (0..tp).map(|r| cut.owned(tp, r).start).collect();
                bounds.push(cut.len());
                bounds
            }
            _ => panic!("{}: a vocabulary is shared by rows", info.name),
        }
    }
}
