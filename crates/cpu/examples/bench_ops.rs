//! Times the operations of a training step other than attention, at the shapes of
//! SmolLM2-135M.
//!
//! ```text
//! cargo run --release -p cpu --example bench_ops [THREADS] [TOKENS] [bf16]
//! ```
//! Memory-bound operations are given in GB/s of bytes read and written, products and
//! log-probs in GFLOP/s (2·m·n·k a product). With one thread the processor time of the
//! thread is used, so a busy machine disturbs little.

use std::time::Instant;

use arena::{Executor, Frame, Memory};
use cpu::{Cpu, Precision, Settings};
use program::buffer::Live;
use program::lower::Io;
use program::ops::*;
use program::store::StoreOptions;
use program::{
    Axis, Buffer, BufferId, DType, Graph, Kind, Op, Plan, Program, Rank, Store, Topology,
};

const HIDDEN: usize = 576;
const FEED_FORWARD: usize = 1536;
const VOCAB: usize = 49_152;
/// Runs of each operation; the median counts.
const RUNS: usize = 5;

/// Processor time of the thread, or time itself where there are several.
fn seconds_now(threads: usize, start: Instant) -> f64 {
    if threads > 1 {
        return start.elapsed().as_secs_f64();
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

struct Bench {
    program: Program,
    fill: Vec<(BufferId, Vec<u32>)>,
    tokens: usize,
}

impl Bench {
    fn buffer(&mut self, dtype: DType, rows: usize, cols: usize, axis: Axis) -> BufferId {
        let name = format!("b{}", self.program.buffers.len());
        self.program.buffers.push(Buffer {
            name: name.into(),
            dtype,
            rows,
            cols,
            axis,
            kind: Kind::Input,
        });
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    fn tokens(&mut self, cols: usize) -> BufferId {
        self.buffer(DType::F32, self.tokens, cols, Axis::Tokens)
    }

    fn words(&mut self, words: impl Fn(usize) -> u32) -> BufferId {
        let id = self.buffer(DType::U32, self.tokens, 1, Axis::Tokens);
        self.fill.push((id, (0..self.tokens).map(words).collect()));
        id
    }

    /// Median seconds of one run of `op`.
    fn time(&mut self, cpu: &mut Cpu, op: impl Into<Op>) -> f64 {
        let op = op.into();
        self.program.ops = vec![op.clone()];
        self.program.op_layers = vec![None];
        let store =
            Store::new(&Graph::default(), Topology::single(), Rank::FIRST, StoreOptions::default());
        let plan = Plan::new(&store, &self.program, cpu.workspace_bytes(&op, &self.program));
        let memory = Memory::new(&plan.ledger).unwrap();
        let live = Live { tokens: self.tokens, all_tokens: self.tokens, ..Live::default() };
        let frame = Frame::new(&self.program, &plan, &memory, live);
        for (index, buffer) in self.program.buffers.iter().enumerate() {
            if buffer.dtype != DType::U32 {
                let value = |i: usize| ((i * 2_654_435_761) % 1021) as f32 / 1021.0 - 0.5;
                let values: Vec<f32> = (0..buffer.rows * buffer.cols).map(value).collect();
                frame.store_f32(BufferId(index as u32), &values);
            }
        }
        for (id, words) in &self.fill {
            frame.store_u32(*id, words);
        }
        let mut seconds: Vec<f64> = (0..RUNS)
            .map(|_| {
                let (threads, start) = (cpu.context().threads(), Instant::now());
                let before = seconds_now(threads, start);
                cpu.run(&op, &frame).expect("a valid operation");
                seconds_now(threads, start) - before
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds[RUNS / 2]
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (threads, tokens) = (number(0, 1), number(1, 256));
    let precision =
        if arguments.iter().any(|a| a == "bf16") { Precision::Bf16 } else { Precision::F32 };
    let mut cpu = Cpu::new(Settings { threads, precision, isa: None }).expect("a usable processor");
    println!("{threads} threads, {tokens} tokens, {}, {precision:?}", cpu.context().isa());
    let program = Program {
        name: "bench",
        buffers: vec![],
        persistent: 0,
        ops: vec![],
        op_layers: vec![],
        forward_ops: 1,
        io: Io::default(),
        tokens,
    };
    let mut bench = Bench { program, fill: vec![], tokens };
    memory_bound(&mut bench, &mut cpu);
    head(&mut bench, &mut cpu);
}

fn memory_bound(bench: &mut Bench, cpu: &mut Cpu) {
    let tokens = bench.tokens;
    let [x, y, z] = [(); 3].map(|()| bench.tokens(HIDDEN));
    let [gate, up, out] = [(); 3].map(|()| bench.tokens(FEED_FORWARD));
    let weight = bench.buffer(DType::Bf16, 1, HIDDEN, Axis::Fixed);
    let positions = bench.words(|t| t as u32);
    let table = bench.tokens(64);
    let (group, eps, plus_one, activation) = (HIDDEN, 1e-5, false, Activation::Silu);
    let backward = NormBackward { x, weight, dy: y, dx: z, group, eps, plus_one, accumulate: true };
    let inv_freq = (0..32).map(|i| 0.75_f32.powi(i)).collect();
    let gate_backward = GateBackward { gate, up, dout: out, dgate: gate, dup: up, activation };
    let cases: Vec<(&str, usize, Op)> = vec![
        ("copy", 2 * HIDDEN, Copy { x, out: y }.into()),
        ("add", 3 * HIDDEN, Add { a: x, b: y, out: z }.into()),
        ("norm", 2 * HIDDEN, Norm { x, weight, out: y, group, eps, plus_one }.into()),
        ("norm backward", 4 * HIDDEN, backward.into()),
        ("gate", 3 * FEED_FORWARD, Gate { gate, up, out, activation }.into()),
        ("gate backward", 5 * FEED_FORWARD, gate_backward.into()),
        ("rope table", 64, RopeTable { positions, out: table, inv_freq, scale: 1.0 }.into()),
        ("rope", 2 * HIDDEN, Rope { x, table, head_dim: 64, inverse: false }.into()),
    ];
    for (name, elements, op) in cases {
        let seconds = bench.time(cpu, op);
        let rate = (tokens * elements * 4) as f64 / seconds / 1e9;
        println!("{name:<22}{:>10.3} ms{rate:>10.1} GB/s", seconds * 1e3);
    }
}

fn head(bench: &mut Bench, cpu: &mut Cpu) {
    let tokens = bench.tokens;
    let x = bench.tokens(HIDDEN);
    let weight = bench.buffer(DType::Bf16, VOCAB, HIDDEN, Axis::Fixed);
    let targets = bench.words(|t| (t * 7919 % VOCAB) as u32);
    let (logp, coef, dx) = (bench.tokens(1), bench.tokens(1), bench.tokens(HIDDEN));
    let leaf = VOCAB / 8;
    let leaves = (0..8).map(|i| i * leaf..(i + 1) * leaf).collect();
    let shard = VocabShard { first: 0, rows: VOCAB, vocab: VOCAB, leaves };
    let flops = 2.0 * (tokens * VOCAB * HIDDEN) as f64;
    let logits = bench.buffer(DType::F32, tokens, VOCAB, Axis::Tokens);
    let product = |out, leaves| MatMul {
        label: "bench".into(),
        out,
        leaves,
        tail: vec![],
        alpha: 1.0,
        init: Init::Zero,
    };
    let forward = vec![vec![Term { a: Operand::whole(x), b: Operand::whole(weight) }]];
    let backward = shard.leaves.iter().map(|leaf: &std::ops::Range<usize>| {
        let a = Operand::whole(logits).with_cols(leaf.clone());
        vec![Term { a, b: Operand::transposed(weight).with_rows(leaf.clone()) }]
    });
    let grad = Some((coef, dx));
    let log_prob = |chunk, grad| {
        let shard = shard.clone();
        LogProb {
            x,
            weight,
            targets,
            policy: Policy::PLAIN,
            logp,
            lse: None,
            entropy: None,
            full: None,
            shard,
            chunk,
            grad,
        }
        .into()
    };
    let cases: Vec<(&str, f64, Op)> = vec![
        ("product: logits", 1.0, product(logits, forward).into()),
        ("product: dx", 1.0, product(dx, backward.collect()).into()),
        ("log-prob", 1.0, log_prob(tokens, None)),
        ("log-prob + dx", 2.0, log_prob(tokens, grad)),
        ("  in chunks of half", 2.0, log_prob(tokens / 2, grad)),
    ];
    for (name, products, op) in cases {
        let seconds = bench.time(cpu, op);
        let rate = products * flops / seconds / 1e9;
        println!("{name:<22}{:>10.1} ms{rate:>10.1} GFLOP/s", seconds * 1e3);
    }
}
