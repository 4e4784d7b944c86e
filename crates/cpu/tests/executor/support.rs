//! Runs one operation on the oracle and on every variant of the executor, and compares
//! every byte of every buffer, the rows past the live ones included.

use arena::{ExecError, Executor, Frame, Memory};
use cpu::{Cpu, Isa, Precision, Settings};
use oracle::Oracle;
use program::buffer::Live;
use program::lower::Io;
use program::store::StoreOptions;
use program::{
    Axis, Buffer, BufferId, DType, Graph, Kind, Op, Plan, Program, Rank, Store, Topology,
};

/// A small, fast generator (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    /// About normal, with exponents that make most sums inexact.
    pub(crate) fn float(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() & 0xffff) as f32 / 65_536.0).sum();
        (sum - 2.0) * [0.05, 1.0, 1.0, 3.0][self.below(4)]
    }
}

/// What a buffer holds before the operation.
pub(crate) enum Data {
    Random,
    /// Positive: second moments.
    Positive,
    Floats(Vec<f32>),
    Words(Vec<u32>),
}

/// One operation with its buffers.
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) live: Live,
    data: Vec<Data>,
    store: Store,
}

impl Case {
    pub(crate) fn new(live: Live) -> Case {
        let graph = Graph::default();
        let store = Store::new(&graph, Topology::single(), Rank::FIRST, StoreOptions::default());
        let program = Program {
            name: "test",
            buffers: vec![],
            persistent: 0,
            ops: vec![],
            op_layers: vec![],
            forward_ops: 1,
            io: Io::default(),
            tokens: 0,
        };
        Case { program, live, data: vec![], store }
    }

    pub(crate) fn buffer(
        &mut self,
        dtype: DType,
        (rows, cols): (usize, usize),
        axis: Axis,
        data: Data,
    ) -> BufferId {
        let name = format!("b{}", self.data.len());
        self.program.buffers.push(Buffer {
            name: name.into(),
            dtype,
            rows,
            cols,
            axis,
            kind: Kind::Input,
        });
        self.data.push(data);
        BufferId(self.data.len() as u32 - 1)
    }

    /// Replaces what a buffer holds.
    pub(crate) fn set(&mut self, id: BufferId, data: Data) {
        self.data[id.0 as usize] = data;
    }

    /// Random f32 rows over tokens.
    pub(crate) fn tokens(&mut self, rows: usize, cols: usize) -> BufferId {
        self.buffer(DType::F32, (rows, cols), Axis::Tokens, Data::Random)
    }

    /// Random f32, every row live.
    pub(crate) fn fixed(&mut self, rows: usize, cols: usize) -> BufferId {
        self.buffer(DType::F32, (rows, cols), Axis::Fixed, Data::Random)
    }

    /// Random weights of either type.
    pub(crate) fn weight(&mut self, dtype: DType, rows: usize, cols: usize) -> BufferId {
        self.buffer(dtype, (rows, cols), Axis::Fixed, Data::Random)
    }

    /// U32 rows over tokens.
    pub(crate) fn words(&mut self, words: Vec<u32>) -> BufferId {
        self.buffer(DType::U32, (words.len(), 1), Axis::Tokens, Data::Words(words))
    }

    fn fill(&self, frame: &Frame<'_>) {
        let mut rng = Rng::new(11);
        for (index, data) in self.data.iter().enumerate() {
            let id = BufferId(index as u32);
            let count = self.program.buffers[index].rows * self.program.buffers[index].cols;
            match data {
                Data::Random => {
                    frame.store_f32(id, &(0..count).map(|_| rng.float()).collect::<Vec<_>>());
                }
                Data::Positive => {
                    let values: Vec<f32> = (0..count).map(|_| rng.float().abs()).collect();
                    frame.store_f32(id, &values);
                }
                Data::Floats(values) => frame.store_f32(id, values),
                Data::Words(words) => frame.store_u32(id, words),
            }
        }
    }

    /// Runs `op` alone; the bits of every buffer after it.
    pub(crate) fn run(
        &mut self,
        op: &Op,
        executor: &mut dyn Executor,
    ) -> Result<Vec<Vec<u32>>, ExecError> {
        self.plan_op(op);
        let bytes = executor.workspace_bytes(op, &self.program);
        self.run_in(op, executor, bytes)
    }

    fn plan_op(&mut self, op: &Op) {
        self.program.ops = vec![op.clone()];
        self.program.op_layers = vec![None];
    }

    /// [`Case::run`] with a workspace of so many bytes.
    pub(crate) fn run_in(
        &mut self,
        op: &Op,
        executor: &mut dyn Executor,
        bytes: usize,
    ) -> Result<Vec<Vec<u32>>, ExecError> {
        self.plan_op(op);
        let plan = Plan::new(&self.store, &self.program, bytes);
        let memory = Memory::new(&plan.ledger).unwrap();
        let whole = Live {
            tokens: self.capacity(Axis::Tokens),
            all_tokens: self.capacity(Axis::AllTokens),
            picked: self.capacity(Axis::Picked),
            segments: self.capacity(Axis::Segments),
            all_segments: self.capacity(Axis::AllSegments),
            blocks: self.capacity(Axis::Blocks),
            micro_batches: 0,
        };
        let all = Frame::new(&self.program, &plan, &memory, whole);
        self.fill(&all);
        executor.run(op, &Frame::new(&self.program, &plan, &memory, self.live))?;
        let ids = (0..self.data.len()).map(|index| BufferId(index as u32));
        Ok(ids
            .map(|id| match all.buffer(id).dtype {
                DType::U32 => all.load_u32(id),
                _ => all.load_f32(id).into_iter().map(f32::to_bits).collect(),
            })
            .collect())
    }

    fn capacity(&self, axis: Axis) -> usize {
        let buffers = self.program.buffers.iter().filter(|b| b.axis == axis);
        buffers.map(|b| b.rows).max().unwrap_or(0)
    }

    /// The oracle and every executor leave the same bits or fail alike.
    pub(crate) fn check_in(&mut self, op: impl Into<Op>, precision: Precision) {
        let op = op.into();
        let reference = match precision {
            Precision::F32 => oracle::Precision::F32,
            Precision::Bf16 => oracle::Precision::Bf16,
            Precision::Bf16Tiles => oracle::Precision::Bf16Tiles,
        };
        let expected = self.run(&op, &mut Oracle::new(reference));
        for (settings, mut cpu) in executors(precision) {
            let found = self.run(&op, &mut cpu);
            match (&expected, &found) {
                (Ok(expected), Ok(found)) => self.compare(&op, &settings, expected, found),
                _ => assert_eq!(found, expected, "{} with {settings:?}", op.name()),
            }
        }
    }

    /// [`Case::check_in`] profile `cpu-f32`.
    pub(crate) fn check(&mut self, op: impl Into<Op>) {
        self.check_in(op, Precision::F32);
    }

    fn compare(&self, op: &Op, settings: &Settings, expected: &[Vec<u32>], found: &[Vec<u32>]) {
        for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
            let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) else { continue };
            let buffer = &self.program.buffers[index];
            panic!(
                "{} with {settings:?}: {} differs at row {}, column {}: {:e}, the oracle says {:e}",
                op.name(),
                buffer.name,
                at / buffer.cols,
                at % buffer.cols,
                f32::from_bits(found[at]),
                f32::from_bits(expected[at])
            );
        }
    }
}

/// One executor an instruction set and number of threads.
pub(crate) fn executors(precision: Precision) -> Vec<(Settings, Cpu)> {
    let mut executors = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 2] {
            let settings = Settings { threads, precision, isa: Some(isa) };
            executors.push((settings, Cpu::new(settings).expect("the processor has it")));
        }
    }
    executors
}

/// Live rows: `tokens` of both token axes.
pub(crate) fn live(tokens: usize) -> Live {
    Live { tokens, all_tokens: tokens, ..Live::default() }
}
