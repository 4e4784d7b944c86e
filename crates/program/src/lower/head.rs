//! The head: log-probs of targets (and their backward rule), or logits of picked rows.

use super::{Lowering, Mode};
use crate::buffer::{Axis, BufferId, DType, Kind};
use crate::graph::Split;
use crate::ops::*;
use crate::topology::Cut;

impl Lowering<'_> {
    /// How tensor ranks share the padded vocabulary.
    fn head_cut(&self) -> &Cut {
        let info = self.graph.param_info(self.graph.head.expect("a graph has a head"));
        let Split::Rows(cut) = &info.split else {
            panic!("{}: the head is shared by rows of the vocabulary", info.name)
        };
        cut
    }

    fn vocab_shard(&self) -> VocabShard {
        let (tp, rank) = (self.store.topology.tp, self.store.rank.tp);
        let cut = self.head_cut();
        let owned = cut.owned(tp, rank);
        VocabShard {
            first: owned.start,
            rows: owned.len(),
            vocab: self.graph.vocab,
            leaves: cut.local_leaves(tp, rank),
        }
    }

    fn head_leaves(&self) -> usize {
        self.head_cut().leaves()
    }

    pub(super) fn forward_head(&mut self) {
        let hidden = self.graph.hidden.expect("a graph has a final value");
        let x = self.current[hidden];
        match self.options.mode {
            Mode::Generate { picked, .. } => self.pick_logits(x, picked),
            Mode::Score => self.log_probs(x, None),
            Mode::Train { coef_known } => {
                let head = self.graph.head.expect("a graph has a head");
                let head_options = self.options.head;
                let fused = coef_known
                    && !head_options.truncated
                    && !head_options.entropy
                    && self.store.topology.tp == 1
                    && !self.graph.param_info(head).trainable
                    && self.needs_grad[hidden.0 as usize];
                if fused {
                    let dx = self.new_grad(hidden);
                    let coef = self.io.coef.expect("training has coefficients");
                    self.log_probs(x, Some((coef, dx)));
                } else {
                    self.log_probs(x, None);
                }
            }
        }
    }

    fn pick_logits(&mut self, x: BufferId, picked: usize) {
        let shard = self.vocab_shard();
        let cols = self.buffers[x.0 as usize].cols;
        let index = self.io.picked.expect("generation picks rows");
        let rows =
            self.buffer("picked_hidden", DType::F32, picked, cols, Axis::Picked, Kind::Graph);
        self.emit(PickRows { x, index, out: rows });
        if let Some(owners) = self.io.picked_owners {
            self.rows_of_owners(rows, owners);
        }
        let (tp, padded) = (self.store.topology.tp, self.head_cut().len());
        let logits = self.buffer("logits", DType::F32, picked, padded, Axis::Picked, Kind::Input);
        let out = if tp == 1 {
            logits
        } else {
            self.buffer("logits.share", DType::F32, picked, shard.rows, Axis::Picked, Kind::Graph)
        };
        let weight = self.param(self.graph.head.expect("a graph has a head"));
        self.emit(MatMul {
            label: "logits".into(),
            out,
            leaves: vec![vec![Term { a: Operand::whole(rows), b: Operand::whole(weight) }]],
            tail: vec![],
            alpha: 1.0,
            init: Init::Zero,
        });
        if tp > 1 {
            let ranges = (0..tp).map(|rank| self.head_cut().owned(tp, rank)).collect();
            let kind = CollectiveKind::GatherColumns { ranges };
            self.emit(Collective { group: Group::Tensor, kind, x: out, out: logits });
        }
        self.io.logits = Some(logits);
    }

    fn policy(&self) -> Policy {
        Policy { scale: self.options.head.scale, kept: self.io.kept }
    }

    fn log_probs(&mut self, x: BufferId, grad: Option<(BufferId, BufferId)>) {
        let (tp, tokens) = (self.store.topology.tp, self.local_tokens());
        let head = self.options.head;
        let result = |l: &mut Self, name: &str| {
            l.buffer(name, DType::F32, tokens, 1, Axis::Tokens, Kind::Input)
        };
        let logp = result(self, "logp");
        self.io.logp = Some(logp);
        let entropy = head.entropy.then(|| result(self, "entropy"));
        self.io.entropy = entropy;
        let full =
            head.truncated.then(|| (result(self, "full_logp"), self.tokens_buffer("full_lse", 1)));
        self.io.full_logp = full.map(|f| f.0);
        self.head_full_lse = full.map(|f| f.1);
        let targets = self.io.targets.expect("scoring has targets");
        let weight = self.param(self.graph.head.expect("a graph has a head"));
        let (policy, shard, chunk) = (self.policy(), self.vocab_shard(), self.options.chunk);
        let separate = matches!(self.options.mode, Mode::Train { .. }) && grad.is_none();
        if tp == 1 {
            let lse = separate.then(|| self.tokens_buffer("lse", 1));
            self.head_lse = lse;
            self.emit(LogProb {
                x,
                weight,
                targets,
                policy,
                logp,
                lse,
                entropy,
                full,
                shard,
                chunk,
                grad,
            });
            return;
        }
        let measures = Measures { entropy: head.entropy, full: head.truncated };
        let columns = measures.columns();
        let stats = self.tokens_buffer("head_stats", columns);
        self.emit(LogProbStats { x, weight, targets, policy, measures, stats, shard, chunk });
        let outs: Vec<BufferId> =
            (0..tp).map(|r| self.tokens_buffer(format!("head_stats.{r}"), columns)).collect();
        let kind = CollectiveKind::Collect { outs: outs.clone() };
        self.emit(Collective { group: Group::Tensor, kind, x: stats, out: stats });
        let lse = self.tokens_buffer("lse", 1);
        self.head_lse = Some(lse);
        let leaves = self.head_leaves();
        self.emit(LogProbCombine { stats: outs, leaves, targets, logp, lse, entropy, full });
    }

    /// Gradients of the head's input and, when trained, of its weight, unless the forward pass has made them.
    pub(super) fn backward_head(&mut self) {
        let hidden = self.graph.hidden.expect("a graph has a final value");
        if self.grads.contains_key(hidden) {
            return;
        }
        let head = self.graph.head.expect("a graph has a head");
        let (weight, dw) = (self.param(head), self.param_grad(head));
        let x = self.need(hidden);
        let cp = self.store.topology.cp;
        let dx = self.needs_grad[hidden.0 as usize].then(|| self.new_grad(hidden));
        let partial = dx.map(|dx| {
            if self.store.topology.tp == 1 {
                return dx;
            }
            let cols = self.local_cols(hidden);
            self.tokens_buffer("head_dx.partial", cols)
        });
        let mine = LogProbBackward {
            x,
            weight,
            targets: self.io.targets.expect("training has targets"),
            policy: self.policy(),
            lse: self.head_lse.expect("log-probs kept their log-sum-exp"),
            coef: self.io.coef.expect("training has coefficients"),
            entropy: self.io.entropy.zip(self.io.coef_entropy),
            full: self.head_full_lse.zip(self.io.coef_full),
            dx: partial,
            dw: dw.filter(|_| cp == 1),
            shard: self.vocab_shard(),
            chunk: self.options.chunk,
        };
        if mine.dx.is_some() || mine.dw.is_some() {
            self.emit(mine.clone());
        }
        if let (Some(out), Some(x)) = (dx, partial)
            && out != x
        {
            let leaves = self.head_leaves();
            let kind =
                CollectiveKind::TreeSum { leaves, alpha: 1.0, accumulate: false, bias: None };
            self.emit(Collective { group: Group::Tensor, kind, x, out });
        }
        if let Some(dw) = dw {
            if cp > 1 {
                self.head_weight_grad(mine, dw);
            }
            self.param_grads[head.0 as usize] = true;
        }
    }

    /// The head's gradient over the tokens of every context rank, in order.
    fn head_weight_grad(&mut self, mine: LogProbBackward, dw: BufferId) {
        let all = LogProbBackward {
            x: self.gather_tokens(mine.x),
            lse: self.gather_tokens(mine.lse),
            targets: self.io.all_targets.expect("training has targets of all tokens"),
            policy: Policy { kept: self.io.all_kept, ..mine.policy },
            coef: self.io.all_coef.expect("training has coefficients of all tokens"),
            entropy: mine
                .entropy
                .map(|(entropy, _)| self.gather_tokens(entropy))
                .zip(self.io.all_coef_entropy),
            full: mine.full.map(|(lse, _)| self.gather_tokens(lse)).zip(self.io.all_coef_full),
            dx: None,
            dw: Some(dw),
            ..mine
        };
        self.emit(all);
    }
}
