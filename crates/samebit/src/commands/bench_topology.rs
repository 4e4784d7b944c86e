//! `samebit bench topology`: what the width costs on one rank, and what ranks exchange.

use super::bench::{Args, HYPER, median, random_batch};
use crate::commands::shared;
use crate::device::{Compute, Device};
use crate::model::{self, Model};
use crate::output::{Table, thousands};
use anyhow::{Context, Result};
use engine::{AdapterSource, Blueprint, Engine, Exchange, Job, TrainShape};
use fabric::{Movement, World};
use families::{BuildOptions, Train};
use program::keep::{Keep, Level};
use program::{Graph, Op, Rank, Topology, cost};
use serde::Serialize;
use std::time::Instant;
use train::Facts;

/// Topologies whose exchanges are counted: tp, cp, dp.
const TOPOLOGIES: [(usize, usize, usize); 5] =
    [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)];

/// Logical micro-batches of a counted step.
const MICRO_BATCHES: usize = 2;

/// The report.
#[derive(Serialize)]
pub(crate) struct TopologyReport {
    tokens: usize,
    /// Median seconds of a step at the canon's width and at width 1, one rank, in turn.
    canon_s: f64,
    native_s: f64,
    /// Canonical over native, less 1.
    cost: f64,
    exchanges: Vec<Exchanged>,
}

/// Bytes that a step moves, over all ranks.
#[derive(Serialize)]
struct Exchanged {
    topology: [usize; 3],
    movement: &'static str,
    predicted_bytes: u64,
    counted_bytes: u64,
}

pub(crate) fn run(args: &Args, device: &Device) -> Result<TopologyReport> {
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let (canon_s, native_s) = widths(args, device, &model)?;
    let mut exchanges = Vec::new();
    for (tp, cp, dp) in TOPOLOGIES {
        let topology = Topology { tp, cp, dp, width: Topology::WIDTH };
        exchanges.extend(count(args, &model, topology)?);
    }
    let tokens = args.batch * args.sequence;
    Ok(TopologyReport { tokens, canon_s, native_s, cost: canon_s / native_s - 1.0, exchanges })
}

fn graph(args: &Args, model: &Model, width: usize) -> Result<Graph> {
    let train = args.adapt.train()?;
    let stored_as_bf16 = Facts::of(&model.checkpoint).stored_as_bf16;
    let weights = shared::weights(args.running.memory.weights, stored_as_bf16, &train);
    let options = BuildOptions { weights, train, width };
    Ok(families::build(model.checkpoint.config(), &options)?.graph)
}

fn job(args: &Args, accumulation: usize) -> Job {
    let train = TrainShape {
        tokens: args.batch * args.sequence,
        segments: args.batch,
        accumulation,
        keep: Keep::uniform(Level::All),
        coef_known: true,
    };
    Job { train: Some(train), ..Job::default() }
}

fn engine<'r>(
    args: &Args,
    device: &Device,
    model: &Model,
    topology: Topology,
    (accumulation, member): (usize, Option<fabric::Member<'r>>),
) -> Result<Engine<'r>> {
    let graph = graph(args, model, topology.width)?;
    let rank = member.as_ref().map_or(Rank::FIRST, fabric::Member::rank);
    let workspace = device.workspace();
    let blueprint = Blueprint::new(&graph, topology, rank, job(args, accumulation), &workspace);
    let mut engine = Engine::new(graph, blueprint, device.executor()?)?;
    if let Some(member) = member {
        engine = engine.with_exchange(Box::new(member) as Box<dyn Exchange + 'r>);
    }
    engine.load(&model.checkpoint, &mut |_| ())?;
    if args.adapt.train()? != Train::Full {
        engine.load_adapter(&AdapterSource::Fresh { seed: 0 })?;
    }
    Ok(engine)
}

/// Median seconds of a step at the canon's width and at width 1, measured in turn so that both see the same machine.
fn widths(args: &Args, device: &Device, model: &Model) -> Result<(f64, f64)> {
    let one = |width| Topology { width, ..Topology::single() };
    let mut engines = [
        engine(args, device, model, one(Topology::WIDTH), (1, None))?,
        engine(args, device, model, one(1), (1, None))?,
    ];
    let batch = random_batch(args, engines[0].graph.vocab);
    let mut seconds = [Vec::new(), Vec::new()];
    for step in 0..=args.steps {
        for (engine, seconds) in engines.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            engine.train_micro_batch(&batch, 0, 1)?;
            engine.update(&HYPER, step as u64 + 1)?;
            // The first one touches memory for the first time.
            if step > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    Ok((median(&mut seconds[0]), median(&mut seconds[1])))
}

/// Runs one step on rank threads; predicted and counted bytes of every kind of movement.
fn count(args: &Args, model: &Model, topology: Topology) -> Result<Vec<Exchanged>> {
    let ranks = World::new(&[topology]).run(|seat| {
        let device = Device::new(&Compute { threads: Some(1), ..args.running.compute.clone() })?;
        let member = seat.member(0).context("every rank is one of the only topology")?;
        let rank = member.rank();
        let mut engine = engine(args, &device, model, topology, (MICRO_BATCHES, Some(member)))?;
        let batch = random_batch(args, engine.graph.vocab);
        let mine = engine.micro_batches_of(MICRO_BATCHES);
        for index in mine.clone() {
            engine.train_micro_batch(&batch, index, MICRO_BATCHES)?;
        }
        engine.update(&HYPER, 1)?;
        let traffic = engine.traffic();
        let mut predicted = [0u64; Movement::ALL.len()];
        let blueprint = &engine.blueprint;
        for (compiled, times) in [(&blueprint.train, mine.len()), (&blueprint.optimizer, 1)] {
            for op in compiled.iter().flat_map(|compiled| &compiled.program.ops) {
                let (Op::Collective(op), Some(compiled)) = (op, compiled) else { continue };
                let bytes = cost::received(&compiled.program, op, &topology, rank, MICRO_BATCHES);
                predicted[Movement::of(&op.kind) as usize] += bytes * times as u64;
            }
        }
        anyhow::Ok(
            Movement::ALL
                .map(|movement| (movement, predicted[movement as usize], traffic.bytes(movement))),
        )
    });
    let ranks = ranks.map_err(|error| anyhow::anyhow!("{error}"))?;
    let sum = |at: usize, of: fn(&(Movement, u64, u64)) -> u64| -> u64 {
        ranks.iter().map(|rank| of(&rank[at])).sum()
    };
    // Exchanges of the host are no part of a program.
    let programs = Movement::ALL.into_iter().enumerate().filter(|(_, m)| *m != Movement::Host);
    Ok(programs
        .map(|(at, movement)| Exchanged {
            topology: [topology.tp, topology.cp, topology.dp],
            movement: movement.name(),
            predicted_bytes: sum(at, |rank| rank.1),
            counted_bytes: sum(at, |rank| rank.2),
        })
        .filter(|row| row.predicted_bytes + row.counted_bytes > 0)
        .collect())
}

/// The report for people.
pub(crate) fn text(report: &TopologyReport) -> String {
    let mut table = Table::new(&["tp.cp.dp", "movement", "predicted bytes", "counted bytes"]);
    for row in &report.exchanges {
        let [tp, cp, dp] = row.topology;
        table.row([
            format!("{tp}.{cp}.{dp}"),
            row.movement.to_string(),
            thousands(row.predicted_bytes as usize),
            thousands(row.counted_bytes as usize),
        ]);
    }
    format!(
        "a step of {} tokens on one rank: {:.3} s at width {}, {:.3} s at width 1 ({:+.1}%)\n\n\
         a step of {MICRO_BATCHES} micro-batches, all ranks together (owner_rows depends on the tokens: at most)\n{}",
        thousands(report.tokens),
        report.canon_s,
        Topology::WIDTH,
        report.native_s,
        100.0 * report.cost,
        table.text()
    )
}
