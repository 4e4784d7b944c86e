//! One rank's memory with given contents.

use arena::{Frame, Memory};
use fabric::{FabricError, Member, Ranks, RunError};
use program::buffer::Live;
use program::lower::Io;
use program::ops::{Collective, CollectiveKind, Group};
use program::plan::ALIGNMENT;
use program::topology::Rank;
use program::{Axis, Buffer, BufferId, DType, Kind, Plan, Program, Store, Topology};

enum Contents {
    Floats(Vec<f32>),
    Words(Vec<u32>),
}

/// Buffers of a rank.
#[derive(Default)]
pub(crate) struct Rig {
    buffers: Vec<Buffer>,
    contents: Vec<Contents>,
    live: Live,
}

/// Memory of a rank.
pub(crate) struct Local {
    program: Program,
    plan: Plan,
    memory: Memory,
    live: Live,
}

impl Rig {
    pub(crate) fn live(tokens: usize, all_tokens: usize) -> Rig {
        Rig { live: Live { tokens, all_tokens, ..Live::default() }, ..Rig::default() }
    }

    pub(crate) fn micro_batches(mut self, count: usize) -> Rig {
        self.live.micro_batches = count;
        self
    }

    fn push(&mut self, buffer: Buffer, contents: Contents) -> BufferId {
        self.buffers.push(buffer);
        self.contents.push(contents);
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// A float buffer; `values` are its live rows.
    pub(crate) fn on(&mut self, axis: Axis, rows: usize, cols: usize, values: &[f32]) -> BufferId {
        let name = format!("buffer {}", self.buffers.len());
        let buffer =
            Buffer { name: name.into(), dtype: DType::F32, rows, cols, axis, kind: Kind::Input };
        self.push(buffer, Contents::Floats(values.to_vec()))
    }

    /// A float buffer of `cols` columns, all of it live.
    pub(crate) fn floats(&mut self, cols: usize, values: &[f32]) -> BufferId {
        self.on(Axis::Fixed, values.len() / cols, cols, values)
    }

    /// A float buffer of `rows × cols` that starts as NaN.
    pub(crate) fn out(&mut self, rows: usize, cols: usize) -> BufferId {
        self.floats(cols, &vec![f32::NAN; rows * cols])
    }

    /// One bf16 value.
    pub(crate) fn half(&mut self) -> BufferId {
        let id = self.out(1, 1);
        self.buffers[id.0 as usize].dtype = DType::Bf16;
        id
    }

    pub(crate) fn words(&mut self, values: &[u32]) -> BufferId {
        let (name, rows) = (format!("buffer {}", self.buffers.len()), values.len());
        let (dtype, axis, kind) = (DType::U32, Axis::Fixed, Kind::Input);
        let buffer = Buffer { name: name.into(), dtype, rows, cols: 1, axis, kind };
        self.push(buffer, Contents::Words(values.to_vec()))
    }

    pub(crate) fn build(self) -> Local {
        let store = Store {
            buffers: vec![],
            params: vec![],
            caches: vec![],
            hyper: None,
            grad_squares: None,
            page_share: program::store::PageShare { cp: 1, interleave: 1 },
            topology: Topology::single(),
            rank: Rank::FIRST,
        };
        let program = Program {
            name: "test",
            buffers: self.buffers,
            persistent: 0,
            ops: vec![],
            op_layers: vec![],
            forward_ops: 0,
            io: Io::default(),
            tokens: 0,
        };
        let mut plan = Plan::new(&store, &program, 0);
        // The operation is not known yet: room to publish any buffer.
        let largest = program.buffers.iter().map(|b| 4 * b.rows * b.cols).max().unwrap_or(0);
        plan.ledger.add(Kind::Exchange, largest.next_multiple_of(ALIGNMENT));
        let memory = Memory::new(&plan.ledger).unwrap();
        let local = Local { program, plan, memory, live: self.live };
        for (i, contents) in self.contents.iter().enumerate() {
            let id = BufferId(i as u32);
            match contents {
                Contents::Floats(values) => local.frame().store_f32(id, values),
                Contents::Words(values) => local.frame().store_u32(id, values),
            }
        }
        local
    }
}

impl Local {
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame::new(&self.program, &self.plan, &self.memory, self.live)
    }
}

pub(crate) fn tensor(kind: CollectiveKind, x: BufferId, out: BufferId) -> Collective {
    Collective { group: Group::Tensor, kind, x, out }
}

pub(crate) fn context(kind: CollectiveKind, x: BufferId, out: BufferId) -> Collective {
    Collective { group: Group::Context, kind, x, out }
}

/// Ranks of a topology; the width is large enough for any degree used here.
pub(crate) fn ranks(tp: usize, cp: usize) -> Ranks {
    Ranks::new(Topology { tp, cp, dp: 1, width: 8 })
}

/// Runs one collective on every rank; what each has in `out` afterwards, and the bytes it received.
pub(crate) fn try_run(
    ranks: Ranks,
    make: impl Fn(&Member<'_>, &mut Rig) -> Collective + Sync,
    live: impl Fn(&Member<'_>) -> (usize, usize) + Sync,
) -> Result<Vec<(Vec<f32>, u64)>, RunError<FabricError>> {
    ranks.run(|member| {
        let (tokens, all_tokens) = live(member);
        let mut rig = Rig::live(tokens, all_tokens);
        let op = make(member, &mut rig);
        let local = rig.build();
        member.collective(&op, &local.frame())?;
        Ok((local.frame().load_f32(op.out), member.traffic().total()))
    })
}

pub(crate) fn run(
    ranks: Ranks,
    make: impl Fn(&Member<'_>, &mut Rig) -> Collective + Sync,
) -> Vec<(Vec<f32>, u64)> {
    try_run(ranks, make, |_| (0, 0)).unwrap_or_else(|error| panic!("{error}"))
}
