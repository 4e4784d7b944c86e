//! A training step over rank threads.

use arena::{Executor, Frame, Memory};
use canon::random::philox4x32;
use fabric::{Member, Ranks};
use oracle::{Oracle, Precision};
use program::buffer::Live;
use program::graph::Split;
use program::keep::{Keep, Level};
use program::lower::{Head, Mode, Options, Program, lower};
use program::store::StoreOptions;
use program::{BufferId, Graph, Op, ParamId, Plan, Rank, Store, Topology};
use std::collections::BTreeMap;

const INACTIVE: u32 = u32::MAX;

/// Packed sequences with targets and coefficients.
pub(crate) struct Batch {
    lengths: Vec<usize>,
    capacity: usize,
}

/// What may be chosen of a step's arithmetic and memory.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) precision: Precision,
    /// Whether d loss / d log-prob is known before the forward pass.
    pub(crate) coef_known: bool,
    /// What is kept from forward to backward.
    pub(crate) level: Level,
}

/// Bits of what a step computed, over all ranks.
pub(crate) struct Step {
    pub(crate) logp: Vec<u32>,
    /// Whole gradients by parameter.
    pub(crate) gradients: BTreeMap<String, Vec<u32>>,
}

impl Batch {
    pub(crate) fn new(lengths: &[usize], capacity: usize) -> Batch {
        Batch { lengths: lengths.to_vec(), capacity }
    }

    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn ids(&self) -> Vec<u32> {
        (0..self.tokens() as u32).map(|t| philox4x32([t, 0, 0, 0], [7, 0])[0] % 67).collect()
    }

    /// Every fourth token has no target.
    fn targets(&self) -> Vec<u32> {
        let target = |t: u32| philox4x32([t, 0, 0, 0], [8, 0])[0] % 67;
        (0..self.tokens() as u32).map(|t| if t % 4 == 2 { INACTIVE } else { target(t) }).collect()
    }

    fn coef(&self) -> Vec<f32> {
        uniform(9, self.tokens())
    }

    /// Segment rows of the tokens `start..end`, query rows counted from `start`; and each token's position.
    fn segments(&self, start: usize, end: usize) -> (Vec<u32>, Vec<u32>) {
        let (mut table, mut positions) = (Vec::new(), Vec::new());
        let mut row = 0;
        for &length in &self.lengths {
            let (from, to) = (row.max(start), (row + length).min(end));
            if from < to {
                let words = [from - start, to - from, from - row, row];
                table.extend(words.map(|word| word as u32));
                positions.extend((from - row..to - row).map(|p| p as u32));
            }
            row += length;
        }
        (table, positions)
    }
}

/// `count` values in [−1, 1).
fn uniform(seed: u32, count: usize) -> Vec<f32> {
    let value = |i| philox4x32([i, 0, 0, 0], [seed, 1])[0] as i32 as f32 / 2_147_483_648.0;
    (0..count as u32).map(value).collect()
}

/// A parameter's whole value: near 1 for norms, padding rows zero.
fn whole(graph: &Graph, id: ParamId) -> Vec<f32> {
    let param = graph.param_info(id);
    let mut values = uniform(100 + id.0, param.rows * param.cols);
    let norm = param.name.contains("norm");
    for value in &mut values {
        *value = if norm { 1.0 + 0.2 * *value } else { 0.4 * *value };
    }
    values.resize(param.padded_rows * param.cols, 0.0);
    values
}

/// Elements of a parameter that a rank holds, as indices in the whole.
fn share(graph: &Graph, id: ParamId, topology: &Topology, rank: Rank) -> Vec<usize> {
    let param = graph.param_info(id);
    let (rows, cols) = match &param.split {
        Split::Replicated => (0..param.padded_rows, 0..param.cols),
        Split::Rows(cut) => (cut.owned(topology.tp, rank.tp), 0..param.cols),
        Split::Cols(cut) => (0..param.padded_rows, cut.owned(topology.tp, rank.tp)),
    };
    rows.flat_map(|row| cols.clone().map(move |col| row * param.cols + col)).collect()
}

/// What one rank has at the end: its rows of log-probs, and its share of each gradient.
struct Share {
    rank: Rank,
    logp: Vec<f32>,
    gradients: Vec<(ParamId, Vec<f32>)>,
}

/// Runs a step on every rank and joins what they have; ranks that hold the same values must agree.
pub(crate) fn train(graph: &Graph, topology: Topology, batch: &Batch, settings: Settings) -> Step {
    let shares = Ranks::new(topology)
        .run(|member| run_rank(member, graph, topology, batch, settings))
        .unwrap_or_else(|error| panic!("{error}"));
    let mut logp: Vec<Vec<u32>> = vec![Vec::new(); topology.cp];
    let mut gradients = BTreeMap::new();
    for share_of_rank in &shares {
        let rank = share_of_rank.rank;
        let mine = bits(&share_of_rank.logp);
        assert!(rank.tp == 0 || logp[rank.cp] == mine, "tensor ranks agree on log-probs");
        logp[rank.cp] = mine;
        for (id, gradient) in &share_of_rank.gradients {
            let param = graph.param_info(*id);
            let whole: &mut Vec<Option<u32>> = gradients
                .entry(param.name.to_string())
                .or_insert_with(|| vec![None; param.padded_rows * param.cols]);
            for (at, value) in share(graph, *id, &topology, rank).into_iter().zip(bits(gradient)) {
                let old = whole[at].replace(value);
                assert!(old.is_none_or(|old| old == value), "{}: ranks agree", param.name);
            }
        }
    }
    let complete = |gradient: Vec<Option<u32>>| gradient.into_iter().map(Option::unwrap).collect();
    Step {
        logp: logp.concat(),
        gradients: gradients.into_iter().map(|(name, g)| (name, complete(g))).collect(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn run_rank(
    member: &mut Member<'_>,
    graph: &Graph,
    topology: Topology,
    batch: &Batch,
    settings: Settings,
) -> Result<Share, String> {
    let rank = member.rank();
    let store = Store::new(
        graph,
        topology,
        rank,
        StoreOptions { accumulation: 1, ..StoreOptions::default() },
    );
    let options = Options {
        mode: Mode::Train { coef_known: settings.coef_known },
        tokens: batch.capacity,
        segments: batch.lengths.len(),
        chunk: 4,
        head: Head::default(),
        adapters: true,
        keep: Keep::uniform(settings.level).set(graph),
    };
    let program = lower(graph, &store, &options);
    let plan = Plan::new(&store, &program, 0);
    let memory = Memory::new(&plan.ledger).unwrap();
    let share_rows = batch.capacity.div_ceil(topology.cp);
    let bound = |n: usize| (n * share_rows).min(batch.tokens());
    let range = bound(rank.cp)..bound(rank.cp + 1);
    let segments = batch.segments(range.start, range.end).0.len() / 4;
    let live = Live {
        tokens: range.len(),
        all_tokens: batch.tokens(),
        segments,
        all_segments: batch.lengths.len(),
        ..Live::default()
    };
    let frame = Frame::new(&program, &plan, &memory, live);
    for id in graph.param_ids() {
        let all = whole(graph, id);
        let mine: Vec<f32> =
            share(graph, id, &topology, rank).into_iter().map(|at| all[at]).collect();
        frame.store_f32(store.slot(id).value, &mine);
    }
    write_inputs(&frame, batch, range, topology.cp);
    run_operations(member, &program, &frame, settings.precision)?;
    let gradient = |id| {
        let state = store.slot(id).state.as_ref()?;
        Some((id, frame.load_f32(state.grad)))
    };
    Ok(Share {
        rank,
        logp: frame.load_f32(program.io.logp.expect("a training program gives log-probs")),
        gradients: graph.param_ids().filter_map(gradient).collect(),
    })
}

fn write_inputs(frame: &Frame<'_>, batch: &Batch, range: std::ops::Range<usize>, cp: usize) {
    let io = &frame.program.io;
    let words = |id: Option<BufferId>, values: &[u32]| {
        if let Some(id) = id {
            frame.store_u32(id, values);
        }
    };
    let (ids, targets, coef) = (batch.ids(), batch.targets(), batch.coef());
    let (segments, positions) = batch.segments(range.start, range.end);
    words(io.ids, &ids[range.clone()]);
    words(io.positions, &positions);
    words(io.targets, &targets[range.clone()]);
    words(io.segments, &segments);
    frame.store_f32(io.coef.expect("training takes coefficients"), &coef[range]);
    if cp > 1 {
        words(io.all_ids, &ids);
        words(io.all_targets, &targets);
        words(io.all_segments, &batch.segments(0, batch.tokens()).0);
        frame.store_f32(io.all_coef.expect("training takes coefficients"), &coef);
    }
}

fn run_operations(
    member: &mut Member<'_>,
    program: &Program,
    frame: &Frame<'_>,
    precision: Precision,
) -> Result<(), String> {
    let mut oracle = Oracle::new(precision);
    for (index, op) in program.ops.iter().enumerate() {
        member.entering(&format!("{} (operation {index})", op.name()));
        match op {
            Op::Collective(op) => {
                member.collective(op, frame).map_err(|error| error.to_string())?;
            }
            op => oracle.run(op, frame).map_err(|error| error.to_string())?,
        }
    }
    Ok(())
}
