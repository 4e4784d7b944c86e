//! What operations cost: floating-point operations, bytes moved, bytes exchanged between ranks.

use crate::buffer::BufferId;
use crate::lower::Program;
use crate::op::Op;
use crate::ops::*;
use crate::topology::{Rank, Topology};
use std::iter::Sum;
use std::ops::Add as Plus;

/// Work of an operation or a program, at capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two.
    pub flops: f64,
    /// Bytes read and written in this rank's memory, each operand once.
    pub bytes: f64,
}

impl Plus for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |sum, cost| sum + cost)
    }
}

/// How many tokens a segment has, for attention: a program's cost depends on how its micro-batch is cut in sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Tokens of each sequence.
    pub length: usize,
}

/// Cost of one operation.
pub fn of_op(program: &Program, op: &Op, sequences: Sequences) -> Cost {
    let access = op.access();
    let bytes: usize =
        access.reads.iter().chain(&access.writes).map(|&id| program.buffer(id).bytes()).sum();
    Cost { flops: flops(program, op, sequences), bytes: bytes as f64 }
}

/// What the exchanges of a step depend on beside its programs.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged<'a> {
    /// The topology.
    pub topology: &'a Topology,
    /// The rank that receives.
    pub rank: Rank,
    /// Logical micro-batches of the step.
    pub micro_batches: usize,
    /// Tokens of the micro-batch that this rank embeds: they decide which rows other owners send.
    pub tokens: &'a [u32],
}

/// Bytes that a rank receives from others in a collective of a training step with full micro-batches, each byte of its
/// result once.
pub fn received(program: &Program, op: &Collective, step: &Exchanged<'_>) -> u64 {
    let Exchanged { topology, rank, .. } = *step;
    let (ranks, place) = (op.group.size(topology), op.group.place(rank, topology));
    let (x, out) = (program.buffer(op.x), program.buffer(op.out));
    let of_others = |leaves: usize| {
        let owners = canon::tree::owners(leaves, ranks).unwrap_or_default();
        owners.iter().filter(|owner| !owner.ranks.contains(&place)).count()
    };
    let floats = match &op.kind {
        CollectiveKind::TreeSum { leaves, .. } => of_others(*leaves) * out.rows * out.cols,
        CollectiveKind::OwnerRows { bounds, .. } => {
            let mine = |id: &&u32| (bounds[place]..bounds[place + 1]).contains(&(**id as usize));
            (step.tokens.len() - step.tokens.iter().filter(mine).count()) * out.cols
        }
        CollectiveKind::GatherTokens => (out.rows - x.rows) * out.cols,
        CollectiveKind::ExchangeColumns { ranges } => (out.rows - x.rows) * ranges[place].len(),
        CollectiveKind::GatherColumns { ranges } => out.rows * (out.cols - ranges[place].len()),
        CollectiveKind::Collect { outs } => (outs.len() - 1) * x.rows * x.cols,
        CollectiveKind::StepSum { ranges } => of_others(step.micro_batches) * ranges[place].len(),
        CollectiveKind::GatherSlices { ranges } => out.rows * out.cols - ranges[place].len(),
        CollectiveKind::ExactSum => (ranks - 1) * EXACT_SUM_WORDS,
    };
    (floats * size_of::<f32>()) as u64
}

/// Cost of a whole program.
pub fn of_program(program: &Program, sequences: Sequences) -> Cost {
    program.ops.iter().map(|op| of_op(program, op, sequences)).sum()
}

fn flops(program: &Program, op: &Op, sequences: Sequences) -> f64 {
    let elements = |id: BufferId| {
        let b = program.buffer(id);
        (b.rows * b.cols) as f64
    };
    match op {
        Op::MatMul(o) => matmul_flops(program, o),
        Op::Attention(o) => {
            // Scores and values: two products over half of the square.
            let rows = program.buffer(o.q).rows as f64;
            2.0 * attention_pairs(rows, sequences) * 2.0 * (o.heads * o.head_dim) as f64
        }
        Op::AttentionBackward(o) => {
            let rows = program.buffer(o.dq).rows as f64;
            5.0 * attention_pairs(rows, sequences) * 2.0 * (o.heads * o.head_dim) as f64
        }
        Op::LogProb(o) => {
            let products = if o.grad.is_some() { 2.0 } else { 1.0 };
            head_flops(program, o.x, o.shard.rows) * products
        }
        Op::LogProbStats(o) => head_flops(program, o.x, o.shard.rows),
        Op::LogProbBackward(o) => {
            let products = 1 + usize::from(o.dx.is_some()) + usize::from(o.dw.is_some());
            head_flops(program, o.x, o.shard.rows) * products as f64
        }
        Op::Norm(o) => 4.0 * elements(o.x),
        Op::NormBackward(o) => 8.0 * elements(o.x),
        Op::NormWeightGrad(o) => 4.0 * elements(o.x),
        Op::Gate(o) => 10.0 * elements(o.out),
        Op::GateBackward(o) => 14.0 * elements(o.dout),
        Op::Rope(o) => 3.0 * elements(o.x),
        Op::Add(o) => elements(o.out),
        Op::AddRow(o) => elements(o.out),
        Op::AdamW(o) => 14.0 * o.slice.len() as f64,
        Op::SumSquares(o) => o.parts.iter().map(|part| 2.0 * part.1.len() as f64).sum(),
        Op::ColumnSum(o) => elements(o.x),
        Op::FoldRows(o) => elements(o.x),
        _ => 0.0,
    }
}

/// Visible (query, key) pairs of `rows` queries in causal sequences.
fn attention_pairs(rows: f64, sequences: Sequences) -> f64 {
    rows * (sequences.length as f64 + 1.0) / 2.0
}

fn head_flops(program: &Program, x: BufferId, vocab_rows: usize) -> f64 {
    let b = program.buffer(x);
    2.0 * (b.rows * b.cols) as f64 * vocab_rows as f64
}

fn matmul_flops(program: &Program, op: &MatMul) -> f64 {
    let out = program.buffer(op.out);
    let inner: usize = op.terms().map(|term| inner_size(program, &term.a)).sum();
    2.0 * (out.rows * out.cols) as f64 * inner as f64
}

/// Length of the summed dimension of a left operand.
fn inner_size(program: &Program, a: &Operand) -> usize {
    let b = program.buffer(a.buffer);
    if a.transposed {
        a.rows.as_ref().map_or(b.rows, |r| r.len())
    } else {
        a.cols.as_ref().map_or(b.cols, |c| c.len())
    }
}

/// What the machine does a second, for a time from a [`Cost`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations a second in matrix products.
    pub flops: f64,
    /// Bytes a second from memory.
    pub bytes: f64,
}

impl Rates {
    /// Seconds of a program: each operation takes its work or its traffic, whichever is longer.
    pub fn seconds(&self, program: &Program, sequences: Sequences) -> f64 {
        program
            .ops
            .iter()
            .map(|op| {
                let cost = of_op(program, op, sequences);
                (cost.flops / self.flops).max(cost.bytes / self.bytes)
            })
            .sum()
    }
}
