//! `samebit bench exchanges`: bytes that ranks receive, as the cost model predicts them and as they are counted.

use super::bench::{Args, HYPER, random_batch};
use super::bench_topology::Subject;
use crate::device::{Compute, Device};
use crate::output::{Table, thousands};
use anyhow::{Context, Result, bail};
use engine::{Engine, MicroBatch};
use fabric::{Movement, Seat, World};
use program::cost::{self, Exchanged};
use program::{Op, Rank, Topology};
use serde::Serialize;
use std::ops::Range;

/// Topologies whose exchanges are counted: tp, cp, dp.
const TOPOLOGIES: [(usize, usize, usize); 5] =
    [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)];

/// Logical micro-batches of a counted step: one sequence each.
const MICRO_BATCHES: usize = 2;

/// Most tokens of a sequence: bytes are counted, not timed, and most grow with the tokens.
const MOST_TOKENS: usize = 64;

/// The report.
#[derive(Serialize)]
pub(crate) struct ExchangesReport {
    /// Tokens of a step.
    tokens: usize,
    micro_batches: usize,
    rows: Vec<Row>,
}

/// Bytes that all ranks together receive in a step.
#[derive(Serialize)]
struct Row {
    /// tp, cp, dp.
    topology: [usize; 3],
    movement: &'static str,
    predicted_bytes: u64,
    counted_bytes: u64,
}

/// Predicted and counted bytes of one rank, by [`Movement`].
type Bytes = [(u64, u64); Movement::ALL.len()];

impl ExchangesReport {
    /// An error where what was counted is not what was predicted.
    pub(crate) fn check(&self) -> Result<()> {
        match self.rows.iter().find(|row| row.predicted_bytes != row.counted_bytes) {
            None => Ok(()),
            Some(Row { topology: [tp, cp, dp], movement, .. }) => {
                bail!("{movement} at tp {tp} cp {cp} dp {dp}: not the predicted bytes")
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExchangesReport> {
    let subject = Subject::open(args)?;
    let length = args.sequence.min(MOST_TOKENS);
    let mut rows = Vec::new();
    for (tp, cp, dp) in TOPOLOGIES {
        let topology = Topology { tp, cp, dp, width: Topology::WIDTH };
        let ranks = World::new(&[topology])
            .run(|seat| count(args, &subject, (topology, length), seat))
            .map_err(|error| anyhow::anyhow!("tp {tp} cp {cp} dp {dp}: {error}"))?;
        // Exchanges of the host are no part of a program.
        let programs = Movement::ALL.into_iter().filter(|m| *m != Movement::Host);
        rows.extend(programs.map(|movement| {
            let sum = |get: fn((u64, u64)) -> u64| -> u64 {
                ranks.iter().map(|bytes| get(bytes[movement as usize])).sum()
            };
            Row {
                topology: [tp, cp, dp],
                movement: movement.name(),
                predicted_bytes: sum(|bytes| bytes.0),
                counted_bytes: sum(|bytes| bytes.1),
            }
        }));
    }
    rows.retain(|row| row.predicted_bytes + row.counted_bytes > 0);
    Ok(ExchangesReport { tokens: MICRO_BATCHES * length, micro_batches: MICRO_BATCHES, rows })
}

/// Runs one step as a rank.
fn count(
    args: &Args,
    subject: &Subject,
    (topology, length): (Topology, usize),
    seat: &mut Seat<'_>,
) -> Result<Bytes> {
    let device = Device::new(&Compute { threads: Some(1), ..args.running.compute.clone() })?;
    let member = seat.member(0).context("every rank is one of the only topology")?;
    let rank = member.rank();
    let shape = ((1, length), MICRO_BATCHES);
    let mut engine = subject.engine(args, &device, topology, shape, Some(member))?;
    let batch = random_batch((1, length), engine.graph.vocab);
    let mine = engine.micro_batches_of(MICRO_BATCHES);
    for index in mine.clone() {
        engine.train_micro_batch(&batch, index, MICRO_BATCHES)?;
    }
    engine.update(&HYPER, 1)?;
    let traffic = engine.traffic();
    let mut bytes = predicted(&engine, (topology, rank), mine, &batch);
    for movement in Movement::ALL {
        bytes[movement as usize].1 = traffic.bytes(movement);
    }
    Ok(bytes)
}

/// What the programs of a step receive, by the cost model.
fn predicted(
    engine: &Engine<'_>,
    (topology, rank): (Topology, Rank),
    mine: Range<usize>,
    batch: &MicroBatch,
) -> Bytes {
    let mut bytes = Bytes::default();
    let ids: Vec<u32> = batch.sequences.iter().flat_map(|s| s.ids.clone()).collect();
    let share = ids.len().div_ceil(topology.cp);
    let tokens = ids.chunks(share).nth(rank.cp).unwrap_or_default();
    let step = Exchanged { topology: &topology, rank, micro_batches: MICRO_BATCHES, tokens };
    let blueprint = &engine.blueprint;
    for (compiled, times) in [(&blueprint.train, mine.len()), (&blueprint.optimizer, 1)] {
        for op in compiled.iter().flat_map(|compiled| &compiled.program.ops) {
            let (Op::Collective(op), Some(compiled)) = (op, compiled) else { continue };
            let received = cost::received(&compiled.program, op, &step);
            bytes[Movement::of(&op.kind) as usize].0 += received * times as u64;
        }
    }
    bytes
}

/// The report for people.
pub(crate) fn text(report: &ExchangesReport) -> String {
    let mut table = Table::new(&["tp.cp.dp", "movement", "predicted bytes", "counted bytes"]);
    for row in &report.rows {
        let [tp, cp, dp] = row.topology;
        table.row([
            format!("{tp}.{cp}.{dp}"),
            row.movement.to_string(),
            thousands(row.predicted_bytes as usize),
            thousands(row.counted_bytes as usize),
        ]);
    }
    format!(
        "a step of {} tokens in {} micro-batches, all ranks together\n{}",
        report.tokens,
        report.micro_batches,
        table.text()
    )
}
