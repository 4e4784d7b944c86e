//! Witnesses: what every operation wrote, on every rank, so that two runs can be compared operation by operation.

use arena::{ExecError, Executor, Frame};
use engine::Exchange;
use fabric::{Member, Traffic};
use program::graph::{Param, Split};
use program::listing::op_line;
use program::ops::{Collective, Group};
use program::{Axis, Buffer, DType, Graph, Op, Program, Rank, Topology};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first operation whose result differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `rollout` or `training`.
    pub phase: String,
    /// The program.
    pub program: String,
    /// Index of the operation in the program of the rank.
    pub operation: usize,
    /// The operation in words.
    pub what: String,
    /// Its layer.
    pub layer: Option<usize>,
    /// The tensor that it wrote.
    pub tensor: String,
    /// Number of the rank.
    pub rank: usize,
}

/// Which run of which buffer: alike in runs of all topologies.
type Key = (bool, &'static str, usize, Arc<str>);

/// A buffer as its last write of one run of a program left it.
#[derive(Clone, Debug)]
struct Written {
    order: usize,
    operation: usize,
    what: String,
    layer: Option<usize>,
    /// First row of all ranks' rows.
    first_row: usize,
    cols: usize,
    values: Vec<f32>,
}

/// What one rank saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The rank's place in training and in rollout.
    places: [Option<(Topology, Rank)>; 2],
    written: HashMap<Key, Written>,
    /// Runs of each program, and the operation at which the last one was.
    runs: HashMap<(bool, &'static str), (usize, usize)>,
    order: usize,
    /// Logical micro-batches of other replicas before this one's.
    first_micro_batch: usize,
    on: bool,
}

/// What a rank's witnesses share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Seen>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to watch; micro-batches are counted from this one's first.
    pub(crate) fn start(&self, places: [Option<(Topology, Rank)>; 2], first_micro_batch: usize) {
        let mut seen = self.lock();
        seen.places = places;
        seen.first_micro_batch = first_micro_batch;
        seen.on = true;
    }

    fn record(&self, rollout: bool, op: &Op, index: usize, frame: &Frame<'_>) {
        let mut seen = self.lock();
        if !seen.on {
            return;
        }
        let program = frame.program;
        let run = seen.run(rollout, program, index);
        for id in op.access().writes {
            let buffer = frame.buffer(id);
            let order = seen.order;
            seen.order += 1;
            let written = Written {
                order,
                operation: index,
                what: op_line(program, op),
                layer: program.op_layers[index],
                first_row: seen.first_row(rollout, program, buffer),
                cols: buffer.cols,
                values: match buffer.dtype {
                    // Only bits are compared.
                    DType::U32 => frame.load_u32(id).into_iter().map(f32::from_bits).collect(),
                    _ => frame.load_f32(id),
                },
            };
            seen.written.insert((rollout, program.name, run, buffer.name.clone()), written);
        }
    }
}

impl Seen {
    /// The run of a program that an operation belongs to: operations of one run come in order.
    fn run(&mut self, rollout: bool, program: &Program, index: usize) -> usize {
        let first = if program.name == "train" { self.first_micro_batch } else { 0 };
        let (run, last) = self.runs.entry((rollout, program.name)).or_insert((first, index));
        if index < *last {
            *run += 1;
        }
        *last = index;
        *run
    }

    fn first_row(&self, rollout: bool, program: &Program, buffer: &Buffer) -> usize {
        match (&self.places[usize::from(rollout)], buffer.axis) {
            (Some((topology, rank)), Axis::Tokens) => {
                program.tokens.div_ceil(topology.cp) * rank.cp
            }
            _ => 0,
        }
    }
}

/// An executor that is watched.
pub(crate) struct WatchedExecutor {
    pub(crate) inner: Box<dyn Executor>,
    pub(crate) log: Log,
    pub(crate) rollout: bool,
}

impl Executor for WatchedExecutor {
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError> {
        self.inner.run(op, frame)?;
        let index = frame.program.ops.iter().position(|other| std::ptr::eq(other, op));
        self.log.record(self.rollout, op, index.unwrap_or(0), frame);
        Ok(())
    }

    fn workspace_bytes(&self, op: &Op, program: &Program) -> usize {
        self.inner.workspace_bytes(op, program)
    }
}

/// An exchange that is watched.
pub(crate) struct WatchedExchange<'a> {
    pub(crate) inner: Member<'a>,
    pub(crate) log: Log,
    pub(crate) rollout: bool,
}

impl Exchange for WatchedExchange<'_> {
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String> {
        Exchange::collective(&mut self.inner, op, frame)?;
        let mut ops = frame.program.ops.iter();
        let index = ops.position(|o| matches!(o, Op::Collective(c) if std::ptr::eq(c, op)));
        self.log.record(self.rollout, &op.clone().into(), index.unwrap_or(0), frame);
        Ok(())
    }

    fn all_gather(
        &mut self,
        group: Group,
        what: &str,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, String> {
        Exchange::all_gather(&mut self.inner, group, what, mine)
    }

    fn traffic(&self) -> Traffic {
        Exchange::traffic(&self.inner)
    }
}

/// The first operation, in the reference's order, whose result on some rank is not the reference's.
///
/// Compared are buffers that carry the same name in programs of every topology: values of the graph, their gradients,
/// and gradients of parameters; partial sums have no counterpart on one rank.
pub(crate) fn first_difference(graph: &Graph, reference: &Log, ranks: &[Log]) -> Option<Origin> {
    let reference = reference.lock();
    let mut order: Vec<(&Key, &Written)> = reference.written.iter().collect();
    order.sort_by_key(|(_, written)| written.order);
    let ranks: Vec<MutexGuard<'_, Seen>> = ranks.iter().map(Log::lock).collect();
    for (key, theirs) in order {
        for (rank, seen) in ranks.iter().enumerate() {
            let Some((topology, place)) = &seen.places[usize::from(key.0)] else { continue };
            // Sums of a replica's own micro-batches have no counterpart on one rank.
            if topology.dp > 1 && key.1 == "accumulate" {
                continue;
            }
            let Some(ours) = seen.written.get(key) else { continue };
            let (rows, cols) = region(graph, &key.3, theirs.cols, topology, *place);
            if differs(theirs, ours, rows, &cols) {
                return Some(Origin {
                    phase: if key.0 { "rollout" } else { "training" }.into(),
                    program: key.1.into(),
                    operation: ours.operation,
                    what: ours.what.clone(),
                    layer: ours.layer,
                    tensor: key.3.to_string(),
                    rank,
                });
            }
        }
    }
    None
}

/// First row (apart from a rank's tokens) and columns of a rank's part of a named buffer.
fn region(
    graph: &Graph,
    name: &str,
    cols: usize,
    topology: &Topology,
    rank: Rank,
) -> (usize, Range<usize>) {
    let base = name.strip_suffix(".grad").unwrap_or(name);
    if let Some(value) = graph.values.iter().find(|value| *value.name == *base) {
        let owned = value.cut.as_ref().map(|cut| cut.owned(topology.tp, rank.tp));
        return (0, owned.unwrap_or(0..cols));
    }
    match graph.params.iter().find(|param| *param.name == *base) {
        Some(Param { split: Split::Rows(cut), .. }) => {
            (cut.owned(topology.tp, rank.tp).start, 0..cols)
        }
        Some(Param { split: Split::Cols(cut), .. }) => (0, cut.owned(topology.tp, rank.tp)),
        _ => (0, 0..cols),
    }
}

/// Whether a rank's part differs from the reference's. Parts of other shapes are not the same thing.
fn differs(theirs: &Written, ours: &Written, first_row: usize, cols: &Range<usize>) -> bool {
    if ours.cols != cols.len() || ours.cols == 0 || cols.end > theirs.cols {
        return false;
    }
    let first = ours.first_row + first_row;
    ours.values.chunks(ours.cols).enumerate().any(|(row, values)| {
        let start = (first + row) * theirs.cols + cols.start;
        theirs.values.get(start..start + cols.len()).is_some_and(|reference| {
            reference.iter().zip(values).any(|(a, b)| a.to_bits() != b.to_bits())
        })
    })
}
