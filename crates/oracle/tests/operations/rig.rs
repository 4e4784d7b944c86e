//! A program of one operation over buffers with given contents.

use arena::{ExecError, Executor, Frame, Memory};
use oracle::{Oracle, Precision};
use program::buffer::Live;
use program::lower::Io;
use program::store::PageShare;
use program::topology::Rank;
use program::{Axis, Buffer, BufferId, DType, Kind, Op, Plan, Program, Store, Topology};

enum Contents {
    Floats(Vec<f32>),
    Words(Vec<u32>),
}

/// Buffers with contents.
#[derive(Default)]
pub(crate) struct Rig {
    buffers: Vec<Buffer>,
    contents: Vec<Contents>,
    live: Live,
}

/// A memory in which an operation has run.
pub(crate) struct Ran {
    program: Program,
    plan: Plan,
    memory: Memory,
    live: Live,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::default()
    }

    fn push(
        &mut self,
        dtype: DType,
        (rows, cols): (usize, usize),
        axis: Axis,
        contents: Contents,
    ) -> BufferId {
        let name = format!("buffer {}", self.buffers.len());
        self.buffers.push(Buffer { name: name.into(), dtype, rows, cols, axis, kind: Kind::Input });
        self.contents.push(contents);
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// An f32 buffer; its rows are `values.len() / cols`.
    pub(crate) fn floats(&mut self, cols: usize, values: &[f32]) -> BufferId {
        let shape = (values.len() / cols, cols);
        self.push(DType::F32, shape, Axis::Fixed, Contents::Floats(values.to_vec()))
    }

    /// A bf16 buffer.
    pub(crate) fn halves(&mut self, cols: usize, values: &[f32]) -> BufferId {
        let shape = (values.len() / cols, cols);
        self.push(DType::Bf16, shape, Axis::Fixed, Contents::Floats(values.to_vec()))
    }

    /// A U32 buffer.
    pub(crate) fn words(&mut self, cols: usize, values: &[u32]) -> BufferId {
        let shape = (values.len() / cols, cols);
        self.push(DType::U32, shape, Axis::Fixed, Contents::Words(values.to_vec()))
    }

    /// An f32 buffer of tokens with room for more rows than are live.
    pub(crate) fn tokens(&mut self, capacity: usize, cols: usize, values: &[f32]) -> BufferId {
        self.live.tokens = values.len() / cols;
        self.push(DType::F32, (capacity, cols), Axis::Tokens, Contents::Floats(values.to_vec()))
    }

    /// An output, full of NaN until it is written.
    pub(crate) fn out(&mut self, rows: usize, cols: usize) -> BufferId {
        self.floats(cols, &vec![f32::NAN; rows * cols])
    }

    /// Runs an operation in profile `cpu-f32`.
    pub(crate) fn run(self, op: impl Into<Op>) -> Ran {
        self.try_run(Precision::F32, op).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn run_in(self, precision: Precision, op: impl Into<Op>) -> Ran {
        self.try_run(precision, op).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn error(self, op: impl Into<Op>) -> ExecError {
        self.try_run(Precision::F32, op).err().expect("an error")
    }

    fn try_run(self, precision: Precision, op: impl Into<Op>) -> Result<Ran, ExecError> {
        let store = Store {
            buffers: vec![],
            params: vec![],
            caches: vec![],
            hyper: None,
            grad_squares: None,
            page_share: PageShare { cp: 1, interleave: 1 },
            topology: Topology::single(),
            rank: Rank::FIRST,
        };
        let op = op.into();
        let program = Program {
            name: "test",
            buffers: self.buffers,
            persistent: 0,
            ops: vec![op.clone()],
            op_layers: vec![None],
            forward_ops: 1,
            io: Io::default(),
            tokens: 0,
        };
        let mut oracle = Oracle::new(precision);
        let plan = Plan::new(&store, &program, oracle.workspace_bytes(&op, &program));
        let memory = Memory::new(&plan.ledger).unwrap();
        let ran = Ran { program, plan, memory, live: self.live };
        let frame = ran.frame();
        for (i, contents) in self.contents.iter().enumerate() {
            let id = BufferId(i as u32);
            match contents {
                Contents::Floats(values) => frame.store_f32(id, values),
                Contents::Words(values) => frame.store_u32(id, values),
            }
        }
        oracle.run(&op, &frame)?;
        Ok(ran)
    }
}

impl Ran {
    fn frame(&self) -> Frame<'_> {
        Frame::new(&self.program, &self.plan, &self.memory, self.live)
    }

    pub(crate) fn floats(&self, id: BufferId) -> Vec<f32> {
        self.frame().load_f32(id)
    }

    pub(crate) fn words(&self, id: BufferId) -> Vec<u32> {
        self.frame().load_u32(id)
    }

    /// Every row of a buffer of tokens, those past the live ones too.
    pub(crate) fn all_rows(&self, id: BufferId) -> Vec<f32> {
        let live = Live { tokens: self.program.buffer(id).rows, ..self.live };
        Frame::new(&self.program, &self.plan, &self.memory, live).load_f32(id)
    }

    pub(crate) fn bits(&self, id: BufferId) -> Vec<u32> {
        bits(&self.floats(id))
    }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}
