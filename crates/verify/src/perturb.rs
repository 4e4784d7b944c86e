//! Rules of the canon broken on purpose, one at a time: a proof that cannot fail proves nothing.
//!
//! | rule of the canon | broken by |
//! |---|---|
//! | 1 width | `width` |
//! | 2 sums over a sharded dimension | `swap-leaves` |
//! | 3 one chain a dot product | `split-chain` |
//! | 4 attention | `attention-scale` (the order of its sums is in the kernel, not in the operation: kernels are held to the oracle's bits by `cpu`'s tests) |
//! | 5 recurrent layers, 6 experts | no such operation yet |
//! | 7 log-probs | `vocabulary-leaves`, `temperature`, `kept-set` |
//! | 8 sampling | `draw-key`, `tie` |
//! | 9 gradients over tokens | `token-order`, `micro-batch-tree` |
//! | 10 loss | `loss-count` |
//! | 11 gradient norm | `norm-count` |
//! | 12 optimizer | `decay` |
//! | 13 collectives | `drop-subtree` |
//! | 14 it can fail | all of these |
//! | 15 honest verdicts | `no-active-token`, `non-finite`, `lost-step`, `lost-update`, `lost-replica`, `rollout-rank`, `lost-sync`, `other-weights`: each ends in an error of its own name |

use crate::disorder;
use crate::work::{Pair, Settings};
use engine::Blueprint;
use program::ops::{CollectiveKind, MatMul, Operand, Term};
use program::{Op, Program};

/// A rule to break in the run that is verified, not in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Rule 1: a sum has the leaves of half the width.
    Width,
    /// Rule 2: two leaves of a sum over a sharded dimension change places.
    SwapLeaves,
    /// Rule 3: a dot product is cut in two chains.
    SplitChain,
    /// Rule 4: the scale of attention's scores is off by its last bit.
    AttentionScale,
    /// Rule 7: two leaves of the soft-max over the vocabulary are joined.
    VocabularyLeaves,
    /// Rule 7: the temperature is doubled.
    Temperature,
    /// Rule 7: training normalises over every candidate where rollout kept some.
    KeptSet,
    /// Rule 8: draws are keyed by another seed.
    DrawKey,
    /// Rule 8: a candidate that ties with the last kept one is dropped, not kept.
    Tie,
    /// Rule 9: two sequences of a micro-batch change places.
    TokenOrder,
    /// Rule 9: two micro-batches change places in the tree over them.
    MicroBatchTree,
    /// Rule 10: the loss is normalised by the micro-batch's count, not the step's.
    LossCount,
    /// Rule 11: a gradient counts twice in the norm.
    NormCount,
    /// Rule 12: weight decay applies where it should not, or not where it should.
    Decay,
    /// Rule 13: a rank's subtree is left out of a sum over ranks.
    DropSubtree,
    /// Rule 15: completions are lost.
    NoActiveToken,
    /// Rule 15: a log-prob of training is not a number.
    NonFinite,
    /// Rule 15: the last step does not run.
    LostStep,
    /// Rule 15: an update changes nothing.
    LostUpdate,
    /// Rule 15: after the last update a replica of training holds another weight.
    LostReplica,
    /// Rule 15: the last rank of rollout has another token than the others.
    RolloutRank,
    /// Rule 15: a weight of rollout is not training's.
    LostSync,
    /// Rule 15: the run begins with other weights.
    OtherWeights,
}

impl Rule {
    /// Every rule with its name on the command line.
    const NAMES: [(Rule, &'static str); 23] = [
        (Rule::Width, "width"),
        (Rule::SwapLeaves, "swap-leaves"),
        (Rule::SplitChain, "split-chain"),
        (Rule::AttentionScale, "attention-scale"),
        (Rule::VocabularyLeaves, "vocabulary-leaves"),
        (Rule::Temperature, "temperature"),
        (Rule::KeptSet, "kept-set"),
        (Rule::DrawKey, "draw-key"),
        (Rule::Tie, "tie"),
        (Rule::TokenOrder, "token-order"),
        (Rule::MicroBatchTree, "micro-batch-tree"),
        (Rule::LossCount, "loss-count"),
        (Rule::NormCount, "norm-count"),
        (Rule::Decay, "decay"),
        (Rule::DropSubtree, "drop-subtree"),
        (Rule::NoActiveToken, "no-active-token"),
        (Rule::NonFinite, "non-finite"),
        (Rule::LostStep, "lost-step"),
        (Rule::LostUpdate, "lost-update"),
        (Rule::LostReplica, "lost-replica"),
        (Rule::RolloutRank, "rollout-rank"),
        (Rule::LostSync, "lost-sync"),
        (Rule::OtherWeights, "other-weights"),
    ];

    /// Every rule.
    pub fn all() -> impl Iterator<Item = Rule> {
        Rule::NAMES.into_iter().map(|(rule, _)| rule)
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        Rule::NAMES.into_iter().find(|(rule, _)| *rule == self).map_or("", |(_, name)| name)
    }

    /// The rule of a name.
    pub fn of(name: &str) -> Option<Rule> {
        Rule::NAMES.into_iter().find(|(_, known)| *known == name).map(|(rule, _)| rule)
    }

    /// What must be there for the rule to change anything.
    pub(crate) fn needed(self) -> &'static str {
        match self {
            Rule::DropSubtree => "training must have tensor ranks (--tp 2)",
            Rule::KeptSet | Rule::Tie => "rollout must drop candidates (--top-k 8)",
            Rule::MicroBatchTree => {
                "a step must have at least four micro-batches (--accumulation 4)"
            }
            Rule::TokenOrder => "a micro-batch must have two sequences (--samples, --accumulation)",
            Rule::LostReplica => "training must have replicas (--cp 2)",
            Rule::RolloutRank => "rollout must have ranks (--rollout-tp 2)",
            _ => "the model must have such an operation",
        }
    }

    /// Whether the settings leave the rule something to break.
    pub(crate) fn concerns(self, completions: usize, settings: &Settings, pair: Pair) -> bool {
        match self {
            Rule::KeptSet | Rule::Tie => settings.head().truncated,
            Rule::MicroBatchTree => settings.accumulation >= disorder::LEAST_MICRO_BATCHES,
            Rule::TokenOrder => completions >= 2 * settings.accumulation,
            Rule::LostReplica => pair.train.cp * pair.train.dp > 1,
            Rule::RolloutRank => pair.rollout.ranks() > 1,
            _ => true,
        }
    }

    /// Whether it changes an operation of a program, rather than what the host does.
    fn is_of_operation(self) -> bool {
        matches!(
            self,
            Rule::Width
                | Rule::SwapLeaves
                | Rule::SplitChain
                | Rule::AttentionScale
                | Rule::VocabularyLeaves
                | Rule::NormCount
                | Rule::Decay
                | Rule::DropSubtree
        )
    }

    /// The operation as this rule breaks it; `None` for one that it does not concern.
    pub(crate) fn broken(self, op: &Op, program: &Program) -> Option<Op> {
        let mut op = op.clone();
        match (self, &mut op) {
            (Rule::Width, Op::MatMul(o)) if o.leaves.len() > 2 => {
                o.leaves = o.leaves.chunks(2).map(<[_]>::concat).collect();
            }
            (Rule::SwapLeaves, Op::MatMul(o)) if o.leaves.len() > 2 => o.leaves.swap(1, 2),
            (Rule::SplitChain, Op::MatMul(o)) => o.leaves = halves(o, program)?,
            (Rule::AttentionScale, Op::Attention(o)) => {
                o.scale = f32::from_bits(o.scale.to_bits() + 1);
            }
            (Rule::VocabularyLeaves, Op::LogProb(o)) if o.shard.leaves.len() > 2 => {
                let joined = o.shard.leaves.remove(2);
                o.shard.leaves[1].end = joined.end;
            }
            (Rule::NormCount, Op::SumSquares(o)) if !o.parts.is_empty() => {
                o.parts.push(o.parts[0].clone());
            }
            (Rule::Decay, Op::AdamW(o)) => o.decay = !o.decay,
            (Rule::DropSubtree, Op::Collective(o)) => match &mut o.kind {
                CollectiveKind::TreeSum { leaves, .. } if *leaves > 1 => *leaves = 1,
                _ => return None,
            },
            _ => return None,
        }
        Some(op)
    }

    /// Breaks the first operation that it concerns. False if there is none.
    pub(crate) fn apply(self, blueprint: &mut Blueprint) -> bool {
        if !self.is_of_operation() {
            return true;
        }
        for compiled in [&mut blueprint.train, &mut blueprint.optimizer].into_iter().flatten() {
            let program = &mut compiled.program;
            let found = (0..program.ops.len())
                .find_map(|index| Some((index, self.broken(&program.ops[index], program)?)));
            if let Some((index, op)) = found {
                program.ops[index] = op;
                return true;
            }
        }
        false
    }
}

/// The one chain of a product as two leaves, each with half of it.
fn halves(op: &MatMul, program: &Program) -> Option<Vec<Vec<Term>>> {
    let [leaf] = op.leaves.as_slice() else { return None };
    let [term] = leaf.as_slice() else { return None };
    let whole = |o: &Operand| !o.transposed && o.rows.is_none() && o.cols.is_none();
    if !whole(&term.a) || !whole(&term.b) {
        return None;
    }
    let k = program.buffer(term.a.buffer).cols;
    let half = |range: std::ops::Range<usize>| {
        vec![Term {
            a: term.a.clone().with_cols(range.clone()),
            b: term.b.clone().with_cols(range),
        }]
    };
    Some(vec![half(0..k / 2), half(k / 2..k)])
}
