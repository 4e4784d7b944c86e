//! One operation of a program.

use crate::buffer::BufferId;
use crate::ops::*;
use smallvec::SmallVec;

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation with its buffers: what an executor runs.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("See [`crate::ops::", stringify!($name), "`].")] $name($name),)*
        }

        impl Op {
            /// The operation's name, as in listings and errors.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name),)* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*
    };
}

operations!(
    Embed,
    EmbedBackward,
    Norm,
    NormBackward,
    NormWeightGrad,
    MatMul,
    RopeTable,
    Rope,
    Attention,
    AttentionBackward,
    Gate,
    GateBackward,
    Add,
    AddRow,
    Copy,
    ColumnSum,
    FoldRows,
    PickRows,
    CacheWrite,
    LogProb,
    LogProbStats,
    LogProbCombine,
    LogProbBackward,
    AdamW,
    SumSquares,
    Collective,
);

/// A few buffers, without an allocation.
pub type Buffers = SmallVec<[BufferId; 8]>;

/// Buffers that an operation touches, each once a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Read before any write.
    pub reads: Buffers,
    /// Written (a buffer updated in place is in both).
    pub writes: Buffers,
}

impl Access {
    fn new(reads: &[BufferId], writes: &[BufferId]) -> Self {
        Access { reads: reads.into(), writes: writes.into() }
    }

    fn read(mut self, more: impl IntoIterator<Item = BufferId>) -> Self {
        self.reads.extend(more);
        self
    }

    fn write(mut self, more: impl IntoIterator<Item = BufferId>) -> Self {
        self.writes.extend(more);
        self
    }
}

impl Op {
    /// The buffers read and written.
    pub fn access(&self) -> Access {
        match self {
            Op::Embed(o) => Access::new(&[o.ids, o.table], &[o.out]),
            Op::EmbedBackward(o) => {
                Access::new(&[o.ids, o.dout], &[o.dtable]).read((!o.zero).then_some(o.dtable))
            }
            Op::Norm(o) => Access::new(&[o.x, o.weight], &[o.out]),
            Op::NormBackward(o) => {
                Access::new(&[o.x, o.weight, o.dy], &[o.dx]).read(o.accumulate.then_some(o.dx))
            }
            Op::NormWeightGrad(o) => Access::new(&[o.x, o.dy], &[o.dw]),
            Op::MatMul(o) => matmul_access(o),
            Op::RopeTable(o) => Access::new(&[o.positions], &[o.out]),
            Op::Rope(o) => Access::new(&[o.x, o.table], &[o.x]),
            Op::Attention(o) => {
                let table = match o.keys {
                    Keys::Rows => None,
                    Keys::Paged { table } => Some(table),
                };
                Access::new(&[o.q, o.k, o.v, o.segments], &[o.out]).write(o.lse).read(table)
            }
            Op::AttentionBackward(o) => {
                Access::new(&[o.q, o.k, o.v, o.out, o.lse, o.dout, o.segments], &[o.dq, o.dk, o.dv])
            }
            Op::Gate(o) => Access::new(&[o.gate, o.up], &[o.out]),
            Op::GateBackward(o) => Access::new(&[o.gate, o.up, o.dout], &[o.dgate, o.dup]),
            Op::Add(o) => Access::new(&[o.a, o.b], &[o.out]),
            Op::AddRow(o) => Access::new(&[o.x, o.row], &[o.out]),
            Op::Copy(o) => Access::new(&[o.x], &[o.out]),
            Op::ColumnSum(o) => Access::new(&[o.x], &[o.out]),
            Op::FoldRows(o) => Access::new(&[o.x], &[o.out]),
            Op::PickRows(o) => Access::new(&[o.x, o.index], &[o.out]),
            Op::CacheWrite(o) => Access::new(&[o.x, o.slots], &[o.cache]),
            Op::LogProb(o) => Access::new(&[o.x, o.weight, o.targets], &[o.logp])
                .read(o.policy.buffers())
                .write(o.lse)
                .write(o.entropy)
                .write(both(o.full))
                .read(o.grad.map(|g| g.0))
                .write(o.grad.map(|g| g.1)),
            Op::LogProbStats(o) => {
                Access::new(&[o.x, o.weight, o.targets], &[o.stats]).read(o.policy.buffers())
            }
            Op::LogProbCombine(o) => Access::new(&[o.targets], &[o.logp, o.lse])
                .read(o.stats.iter().copied())
                .write(o.entropy)
                .write(both(o.full)),
            Op::LogProbBackward(o) => Access::new(&[o.x, o.weight, o.targets, o.lse, o.coef], &[])
                .read(o.policy.buffers())
                .read(both(o.entropy))
                .read(both(o.full))
                .write(o.dx)
                .write(o.dw),
            Op::AdamW(o) => {
                Access::new(&[o.param, o.grad, o.m, o.v, o.hyper], &[o.param, o.m, o.v])
            }
            Op::SumSquares(o) => Access::new(&[], &[o.out]).read(o.parts.iter().map(|part| part.0)),
            Op::Collective(o) => collective_access(o),
        }
    }
}

fn both(pair: Option<(BufferId, BufferId)>) -> impl Iterator<Item = BufferId> {
    pair.into_iter().flat_map(|(a, b)| [a, b])
}

fn matmul_access(op: &MatMul) -> Access {
    let mut reads = Buffers::new();
    for buffer in op.terms().flat_map(|t| [t.a.buffer, t.b.buffer]) {
        // Leaves of one product share their buffers.
        if !reads.contains(&buffer) {
            reads.push(buffer);
        }
    }
    match op.init {
        Init::Zero => {}
        Init::Bias(bias) => reads.push(bias),
        Init::Accumulate => reads.push(op.out),
    }
    Access { reads, writes: Buffers::from_slice(&[op.out]) }
}

fn collective_access(op: &Collective) -> Access {
    let access = Access::new(&[op.x], &[op.out]);
    match &op.kind {
        CollectiveKind::TreeSum { accumulate, bias, .. } => {
            access.read(accumulate.then_some(op.out)).read(*bias)
        }
        CollectiveKind::OwnerRows { ids, .. } => access.read([*ids]),
        CollectiveKind::Collect { outs } => Access::new(&[op.x], outs),
        _ => access,
    }
}
