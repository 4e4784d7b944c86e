//! The backward walk and the rules of the small nodes.

use super::Lowering;
use crate::buffer::{Axis, BufferId, DType, Kind};
use crate::graph::{Node, ParamId, ValueId};
use crate::ops::*;

impl Lowering<'_> {
    pub(super) fn backward(&mut self) {
        self.layer = None;
        self.backward_head();
        let graph = self.graph;
        for node in graph.nodes.iter().rev() {
            if node.outputs().iter().any(|&v| self.grads.contains_key(v)) {
                self.layer = node.outputs().first().and_then(|&v| graph.value_info(v).layer);
                self.backward_node(node);
                // A value's gradient is complete, and used, once its producer's rule has run.
                for out in node.outputs() {
                    self.grads.remove(out);
                }
            }
        }
        self.layer = None;
    }

    fn backward_node(&mut self, node: &Node) {
        match node {
            Node::Embed { table, out, scale } => self.backward_embed(*table, *out, *scale),
            Node::Norm { x, weight, out, group, eps, plus_one } => {
                self.norm_weight_grad(*x, *weight, *out, *group, *eps);
                if self.needs_grad[x.0 as usize] {
                    let (dy, x_buffer) = (self.grads[*out], self.need(*x));
                    let (dx, accumulate) = self.grad_target(*x);
                    let weight = self.param(*weight);
                    self.emit(NormBackward {
                        x: x_buffer,
                        weight,
                        dy,
                        dx,
                        group: *group,
                        eps: *eps,
                        plus_one: *plus_one,
                        accumulate,
                    });
                }
            }
            Node::Linear { x, projections } => self.backward_linear(*x, projections),
            Node::Rope { x, out, head_dim } => {
                let buffer = self.grads[*out];
                let table = self.rope_table();
                self.emit(Rope { x: buffer, table, head_dim: *head_dim, inverse: true });
                self.grads.insert(*x, buffer);
            }
            Node::Attention { .. } => self.backward_attention(node),
            Node::Gate { gate, up, out, activation } => {
                let dout = self.grads[*out];
                let (gate_buffer, up_buffer) = (self.need(*gate), self.need(*up));
                let (dgate, dup) = (self.new_grad(*gate), self.new_grad(*up));
                self.emit(GateBackward {
                    gate: gate_buffer,
                    up: up_buffer,
                    dout,
                    dgate,
                    dup,
                    activation: *activation,
                });
            }
            Node::Add { a, b, out } => self.backward_add(*a, *b, *out),
        }
    }

    /// Both terms take the sum's gradient without a copy.
    ///
    /// `a` goes on accumulating in the same buffer, so `b`'s rule must have read it before: every other consumer of `a`
    /// comes, in execution order, no later than the node that makes `b`, hence is differentiated after it.
    fn backward_add(&mut self, a: ValueId, b: ValueId, out: ValueId) {
        let (this, makes_b) = (self.producers[out], self.producers[b]);
        assert_eq!(
            self.consumers[b.0 as usize],
            [this],
            "a residual contribution has one consumer"
        );
        assert!(
            self.consumers[a.0 as usize].iter().all(|&node| node == this || node <= makes_b),
            "consumers of the residual stream precede the contribution added to it"
        );
        let dout = self.grads[out];
        if self.needs_grad[b.0 as usize] {
            self.grads.insert(b, dout);
        }
        if self.needs_grad[a.0 as usize] {
            assert!(!self.grads.contains_key(a), "a residual value is added to once");
            self.grads.insert(a, dout);
        }
    }

    fn backward_embed(&mut self, table: ParamId, out: ValueId, scale: f32) {
        let Some(dtable) = self.param_grad(table) else { return };
        let bounds = self.vocab_bounds(table);
        let rank = self.store.rank.tp;
        let (first, end) = (bounds[rank], bounds[rank + 1]);
        let dout = self.gather_tokens(self.grads[out]);
        let zero = !std::mem::replace(&mut self.param_grads[table.0 as usize], true);
        self.emit(EmbedBackward {
            ids: self.io.all_ids.expect("training has the ids of all tokens"),
            dout,
            dtable,
            first,
            words: self.graph.vocab.clamp(first, end) - first,
            scale,
            zero,
        });
    }

    /// Over heads that tensor ranks share, each leaf of heads is summed alone and leaves are added by the tree.
    fn norm_weight_grad(
        &mut self,
        x: ValueId,
        weight: ParamId,
        out: ValueId,
        group: usize,
        eps: f32,
    ) {
        let Some(dw) = self.param_grad(weight) else { return };
        let x_buffer = self.need(x);
        let (x_all, dy_all) = (self.gather_tokens(x_buffer), self.gather_tokens(self.grads[out]));
        let (tp, rank) = (self.store.topology.tp, self.store.rank.tp);
        let info = self.graph.value_info(x);
        let (leaf_groups, total): (Vec<usize>, usize) = match &info.cut {
            None => (vec![info.cols / group], 1),
            Some(cut) => {
                let local = cut.local_leaves(tp, rank);
                (local.iter().map(|leaf| leaf.len() / group).collect(), cut.leaves())
            }
        };
        if total == 1 {
            self.emit(NormWeightGrad { x: x_all, dy: dy_all, dw, group, leaf_groups, eps });
            return;
        }
        let name = format!("{}.grad", self.graph.param_info(weight).name);
        let rows = leaf_groups.len();
        let leaves = self.buffer(
            format!("{name}.leaves"),
            DType::F32,
            rows,
            group,
            Axis::Fixed,
            Kind::Graph,
        );
        self.emit(NormWeightGrad { x: x_all, dy: dy_all, dw: leaves, group, leaf_groups, eps });
        if tp == 1 {
            self.emit(FoldRows { x: leaves, out: dw });
            return;
        }
        let partial =
            self.buffer(format!("{name}.partial"), DType::F32, 1, group, Axis::Fixed, Kind::Graph);
        self.emit(FoldRows { x: leaves, out: partial });
        let kind =
            CollectiveKind::TreeSum { leaves: total, alpha: 1.0, accumulate: false, bias: None };
        self.emit(Collective { group: Group::Tensor, kind, x: partial, out: dw });
    }

    /// A fresh gradient buffer for a value that has one consumer.
    pub(super) fn new_grad(&mut self, value: ValueId) -> BufferId {
        let (buffer, accumulate) = self.grad_target(value);
        assert!(!accumulate, "{}: one consumer expected", self.graph.value_info(value).name);
        buffer
    }

    /// Where a value's gradient goes, and whether it is added to what is there.
    pub(super) fn grad_target(&mut self, value: ValueId) -> (BufferId, bool) {
        if let Some(&buffer) = self.grads.get(value) {
            return (buffer, true);
        }
        let name = format!("{}.grad", self.graph.value_info(value).name);
        let cols = self.local_cols(value);
        let buffer = self.tokens_buffer(name, cols);
        self.grads.insert(value, buffer);
        (buffer, false)
    }
}
