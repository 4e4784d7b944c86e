//! Rules of the arithmetic broken on purpose, one at a time: a proof that cannot fail proves nothing.

use engine::{Blueprint, Sampling};
use program::ops::{CollectiveKind, MatMul, Operand, Term};
use program::{Op, Program};

/// A rule to break in the run that is verified, not in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
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
    /// Rule 8: draws are keyed by another seed.
    DrawKey,
    /// Rule 9: two sequences of a micro-batch change places.
    TokenOrder,
    /// Rule 10: the loss is normalised by the micro-batch's count, not the step's.
    LossCount,
    /// Rule 11: a gradient counts twice in the norm.
    NormCount,
    /// Rule 12: weight decay applies where it should not, or not where it should.
    Decay,
    /// Rule 13: a rank's subtree is left out of a sum over ranks.
    DropSubtree,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 11] = [
        Rule::SwapLeaves,
        Rule::SplitChain,
        Rule::AttentionScale,
        Rule::VocabularyLeaves,
        Rule::Temperature,
        Rule::DrawKey,
        Rule::TokenOrder,
        Rule::LossCount,
        Rule::NormCount,
        Rule::Decay,
        Rule::DropSubtree,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Rule::SwapLeaves => "swap-leaves",
            Rule::SplitChain => "split-chain",
            Rule::AttentionScale => "attention-scale",
            Rule::VocabularyLeaves => "vocabulary-leaves",
            Rule::Temperature => "temperature",
            Rule::DrawKey => "draw-key",
            Rule::TokenOrder => "token-order",
            Rule::LossCount => "loss-count",
            Rule::NormCount => "norm-count",
            Rule::Decay => "decay",
            Rule::DropSubtree => "drop-subtree",
        }
    }

    /// The rule of a name.
    pub fn of(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// What must be there for the rule to change anything.
    pub(crate) fn needed(self) -> &'static str {
        match self {
            Rule::DropSubtree => "training must have tensor ranks (--tp 2)",
            _ => "the model must have such an operation",
        }
    }

    /// Whether it changes an operation of a program, rather than what the host does.
    fn is_of_operation(self) -> bool {
        !matches!(self, Rule::Temperature | Rule::DrawKey | Rule::TokenOrder | Rule::LossCount)
    }

    /// The operation as this rule breaks it; `None` for one that it does not concern.
    pub(crate) fn broken(self, op: &Op, program: &Program) -> Option<Op> {
        let mut op = op.clone();
        match (self, &mut op) {
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

    /// How tokens are chosen under it.
    pub(crate) fn sampling(self, sampling: Sampling) -> Sampling {
        match self {
            Rule::Temperature => Sampling { temperature: 2.0 * sampling.temperature, ..sampling },
            Rule::DrawKey => Sampling { seed: sampling.seed ^ 1, ..sampling },
            _ => sampling,
        }
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
