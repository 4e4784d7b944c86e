//! Linear maps with their LoRA branches, forward and backward, and how tensor ranks share them.

use super::Lowering;
use crate::buffer::BufferId;
use crate::graph::{Lora, Projection, Split, ValueId};
use crate::ops::*;
use std::ops::Range;

/// How a projection's sums are cut on this rank.
struct Share {
    /// Leaves over output features of this rank (column parallel), else one.
    out_leaves: Vec<Range<usize>>,
    /// Leaves over input features of this rank (row parallel), else one.
    in_leaves: Vec<Range<usize>>,
    /// Leaves over all ranks; 1 when the dimension in question is not shared.
    out_total: usize,
    in_total: usize,
}

impl Lowering<'_> {
    fn share(&self, p: &Projection) -> Share {
        let info = self.graph.param_info(p.weight);
        let (tp, rank) = (self.store.topology.tp, self.store.rank.tp);
        let mut share = Share {
            out_leaves: std::iter::once(0..info.padded_rows).collect(),
            in_leaves: std::iter::once(0..info.cols).collect(),
            out_total: 1,
            in_total: 1,
        };
        match &info.split {
            Split::Replicated => {}
            Split::Rows(cut) => {
                share.out_leaves = cut.local_leaves(tp, rank);
                share.out_total = cut.leaves();
            }
            Split::Cols(cut) => {
                share.in_leaves = cut.local_leaves(tp, rank);
                share.in_total = cut.leaves();
            }
        }
        share
    }

    fn label(&self, p: &Projection, what: &str) -> String {
        let name = &self.graph.value_info(p.out).name;
        if what.is_empty() { name.to_string() } else { format!("{name} {what}") }
    }

    /// Emits the node's projections, or only what makes the `wanted` output or inner LoRA activation.
    pub(super) fn forward_linear(
        &mut self,
        x: ValueId,
        projections: &[Projection],
        wanted: Option<ValueId>,
    ) {
        let x = self.need(x);
        for p in projections {
            let inner = p.lora.as_ref().map(|lora| lora.h);
            if wanted.is_some_and(|w| w != p.out && Some(w) != inner) {
                continue;
            }
            let share = self.share(p);
            if let Some(lora) = self.lora(p)
                && !self.current.contains_key(lora.h)
            {
                self.lora_inner(x, p, lora, &share);
            }
            if wanted.is_none_or(|w| w == p.out) {
                self.projection(x, p, &share);
            }
        }
    }

    /// The projection's LoRA branch, if it takes part.
    fn lora<'p>(&self, p: &'p Projection) -> Option<&'p Lora> {
        p.lora.as_ref().filter(|_| self.options.adapters)
    }

    /// `h = scale · x·Aᵀ`.
    fn lora_inner(&mut self, x: BufferId, p: &Projection, lora: &Lora, share: &Share) {
        let (a, h) = (self.param(lora.a), self.define(lora.h));
        let product = MatMul {
            label: self.label(p, "lora A"),
            out: h,
            leaves: leaves_over_inputs(&share.in_leaves, x, a),
            tail: vec![],
            alpha: lora.scale,
            init: Init::Zero,
        };
        self.sum_if_shared(product, share.in_total);
    }

    /// `y = x·Wᵀ + h·Bᵀ + bias`.
    fn projection(&mut self, x: BufferId, p: &Projection, share: &Share) {
        let weight = self.param(p.weight);
        let tail = match self.lora(p) {
            None => vec![],
            Some(lora) => vec![Term {
                a: Operand::whole(self.current[lora.h]),
                b: Operand::whole(self.param(lora.b)),
            }],
        };
        let init = p.bias.map_or(Init::Zero, |b| Init::Bias(self.param(b)));
        let out = self.define(p.out);
        let product = MatMul {
            label: self.label(p, ""),
            out,
            leaves: leaves_over_inputs(&share.in_leaves, x, weight),
            tail,
            alpha: 1.0,
            init,
        };
        self.sum_if_shared(product, share.in_total);
    }

    fn sum_if_shared(&mut self, product: MatMul, total: usize) {
        if total == 1 && product.leaves.len() == 1 {
            self.emit(product);
        } else {
            self.tree_product(product, total);
        }
    }

    /// The backward rule: LoRA and weight gradients of each projection, then the input's gradient in one product.
    pub(super) fn backward_linear(&mut self, x: ValueId, projections: &[Projection]) {
        let mut dhs = Vec::new();
        for p in projections {
            // Nothing is trained at or before a frozen projection of the first adapted layer: no gradient reaches it.
            if !self.needs_grad[p.out.0 as usize] {
                continue;
            }
            let dy = self.grads[p.out];
            let dh = self.lora_grads(x, p, dy);
            if let Some(dh) = dh {
                dhs.push(Term { a: Operand::whole(dh.0), b: Operand::transposed(dh.1) });
            }
            if let Some(dw) = self.param_grad(p.weight) {
                let input = self.need(x);
                self.token_product(&self.label(p, "dW"), dy, input, dw);
            }
            if let Some(db) = p.bias.and_then(|b| self.param_grad(b)) {
                let dy = self.gather_tokens(dy);
                self.emit(ColumnSum { x: dy, out: db });
            }
        }
        if !self.needs_grad[x.0 as usize] {
            return;
        }
        let shares: Vec<Share> = projections.iter().map(|p| self.share(p)).collect();
        let count = shares[0].out_leaves.len();
        let total = shares[0].out_total;
        assert!(
            shares.iter().all(|s| s.out_leaves.len() == count && s.out_total == total),
            "projections of one input are cut in the same number of leaves"
        );
        let leaves = (0..count)
            .map(|leaf| {
                let terms = projections.iter().zip(&shares);
                terms
                    .map(|(p, share)| {
                        let range = share.out_leaves[leaf].clone();
                        Term {
                            a: Operand::whole(self.grads[p.out]).with_cols(range.clone()),
                            b: Operand::transposed(self.param(p.weight)).with_rows(range),
                        }
                    })
                    .collect()
            })
            .collect();
        let (dx, accumulate) = self.grad_target(x);
        let init = if accumulate { Init::Accumulate } else { Init::Zero };
        let label = self.label(&projections[0], "dx");
        self.sum_if_shared(MatMul { label, out: dx, leaves, tail: dhs, alpha: 1.0, init }, total);
    }

    /// Gradients of A and B; returns the inner gradient with A, for the input's gradient.
    fn lora_grads(
        &mut self,
        x: ValueId,
        p: &Projection,
        dy: BufferId,
    ) -> Option<(BufferId, BufferId)> {
        let lora = p.lora.as_ref()?;
        let (a, b) = (self.param(lora.a), self.param(lora.b));
        let h = self.need(lora.h);
        if let Some(db) = self.param_grad(lora.b) {
            self.token_product(&self.label(p, "dB"), dy, h, db);
        }
        let share = self.share(p);
        let cols = self.local_cols(lora.h);
        let name = format!("{}.grad", self.graph.value_info(lora.h).name);
        let dh = self.tokens_buffer(name, cols);
        let leaves = share
            .out_leaves
            .iter()
            .map(|range| {
                vec![Term {
                    a: Operand::whole(dy).with_cols(range.clone()),
                    b: Operand::transposed(b).with_rows(range.clone()),
                }]
            })
            .collect();
        let product = MatMul {
            label: self.label(p, "dh"),
            out: dh,
            leaves,
            tail: vec![],
            alpha: lora.scale,
            init: Init::Zero,
        };
        self.sum_if_shared(product, share.out_total);
        if let Some(da) = self.param_grad(lora.a) {
            let input = self.need(x);
            self.token_product(&self.label(p, "dA"), dh, input, da);
        }
        Some((dh, a))
    }
}

/// One leaf a range of input features: `x[:, range] · w[:, range]ᵀ`.
fn leaves_over_inputs(ranges: &[Range<usize>], x: BufferId, w: BufferId) -> Vec<Vec<Term>> {
    if let [_] = ranges {
        return vec![vec![Term { a: Operand::whole(x), b: Operand::whole(w) }]];
    }
    ranges
        .iter()
        .map(|range| {
            vec![Term {
                a: Operand::whole(x).with_cols(range.clone()),
                b: Operand::whole(w).with_cols(range.clone()),
            }]
        })
        .collect()
}
