//! `samebit bench topology`: what the canon's width costs on one rank.

use super::bench::{Args, HYPER, Kernel, kernels, kernels_text, median, random_batch};
use crate::commands::shared;
use crate::device::{Device, processor};
use crate::model;
use crate::output::thousands;
use anyhow::Result;
use canon::random::{Numbers, Purpose};
use engine::{Blueprint, Engine, Exchange, Job, MicroBatch, TrainShape};
use fabric::Member;
use families::{BuildOptions, Train};
use formats::{Checkpoint, ModelConfig};
use program::keep::{Keep, Level};
use program::{Graph, Rank, Topology};
use serde::Serialize;
use std::time::Instant;
use train::Facts;

/// The report: seconds are medians.
#[derive(Serialize)]
pub(crate) struct TopologyReport {
    device: String,
    processor: String,
    tokens: usize,
    pairs: usize,
    /// Seconds of a step at the canon's width, and at width 1.
    canon_s: f64,
    native_s: f64,
    /// Canonical over native, less 1: of the pairs' ratios the median, the lowest and the highest.
    cost: f64,
    cost_lowest: f64,
    cost_highest: f64,
    /// The same of the fastest step of each: what is left where other work on the machine slows some steps.
    cost_of_fastest: f64,
    /// Where the time goes at each of the two widths; with --kernels.
    kernels: Option<[Vec<Kernel>; 2]>,
}

/// What is measured: a model, or a configuration whose weights are random, since no time depends on them.
pub(crate) struct Subject {
    config: ModelConfig,
    stored_as_bf16: bool,
    checkpoint: Option<Checkpoint>,
}

impl Subject {
    pub(crate) fn open(args: &Args) -> Result<Subject> {
        let source = &args.running.source;
        if args.model.ends_with(".json") {
            let (config, stored_as_bf16, _) = model::config(&args.model, source, args.json)?;
            return Ok(Subject { config, stored_as_bf16, checkpoint: None });
        }
        let checkpoint = model::open(&args.model, source, args.json)?.checkpoint;
        Ok(Subject {
            config: checkpoint.config().clone(),
            stored_as_bf16: Facts::of(&checkpoint).stored_as_bf16,
            checkpoint: Some(checkpoint),
        })
    }

    fn graph(&self, args: &Args, width: usize) -> Result<Graph> {
        let train = args.adapt.train()?;
        let weights = shared::weights(args.running.memory.weights, self.stored_as_bf16, &train);
        let options = BuildOptions { weights, train, width };
        Ok(families::build(&self.config, &options)?.graph)
    }

    /// An engine that trains micro-batches of `batch` sequences of a length; as a rank if there is a `member`.
    pub(crate) fn engine<'r>(
        &self,
        args: &Args,
        device: &Device,
        topology: Topology,
        (batch, accumulation): ((usize, usize), usize),
        member: Option<Member<'r>>,
    ) -> Result<Engine<'r>> {
        let graph = self.graph(args, topology.width)?;
        let rank = member.as_ref().map_or(Rank::FIRST, Member::rank);
        let train = TrainShape {
            tokens: batch.0 * batch.1,
            segments: batch.0,
            accumulation,
            keep: Keep::uniform(Level::All),
            coef_known: true,
        };
        let job = Job { train: Some(train), ..Job::default() };
        let blueprint = Blueprint::new(&graph, topology, rank, job, &device.workspace());
        let mut engine = Engine::new(graph, blueprint, device.executor()?)?;
        if let Some(member) = member {
            engine = engine.with_exchange(Box::new(member) as Box<dyn Exchange + 'r>);
        }
        match &self.checkpoint {
            Some(checkpoint) => engine.load(checkpoint, &mut |_| ())?,
            None => write_random(&mut engine),
        }
        if args.adapt.train()? != Train::Full {
            engine.init_adapter(0);
        }
        Ok(engine)
    }
}

/// Random weights of the size that a layer's values keep through it.
fn write_random(engine: &mut Engine<'_>) {
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        if param.adapter {
            continue;
        }
        let mut values = vec![0f32; param.elements()];
        let size = (param.cols as f32).sqrt().recip();
        let (low, high) = if param.name.contains("norm") { (0.8, 1.2) } else { (-size, size) };
        Numbers::new(0, Purpose::Init, u64::from(id.0)).fill_uniform(0, low, high, &mut values);
        engine.write_whole(id, &values);
    }
}

pub(crate) fn run(args: &Args, device: &Device) -> Result<TopologyReport> {
    let subject = Subject::open(args)?;
    let shape = (args.batch, args.sequence);
    let engine = |width| {
        let one = Topology { width, ..Topology::single() };
        subject.engine(args, device, one, (shape, 1), None)
    };
    let mut engines = [engine(Topology::WIDTH)?, engine(1)?];
    let batch = random_batch(shape, engines[0].graph.vocab);
    let mut seconds = [Vec::new(), Vec::new()];
    for pair in 0..=args.steps {
        // Who goes first alternates, so that a machine that slows down favours neither.
        for side in [pair % 2, 1 - pair % 2] {
            let taken = step(&mut engines[side], &batch, pair as u64 + 1)?;
            // The first one touches memory for the first time.
            if pair > 0 {
                seconds[side].push(taken);
            } else if args.kernels {
                engines[side].start_profile();
            }
        }
    }
    let profiles = engines.each_ref().map(|engine| engine.profile().map(kernels));
    let kernels = match profiles {
        [Some(canon), Some(native)] => Some([canon, native]),
        _ => None,
    };
    Ok(report(args, device, &mut seconds, kernels))
}

/// Seconds of a step and its update.
fn step(engine: &mut Engine<'_>, batch: &MicroBatch, number: u64) -> Result<f64> {
    let start = Instant::now();
    engine.train_micro_batch(batch, 0, 1)?;
    engine.update(&HYPER, number)?;
    Ok(start.elapsed().as_secs_f64())
}

fn report(
    args: &Args,
    device: &Device,
    [canon, native]: &mut [Vec<f64>; 2],
    kernels: Option<[Vec<Kernel>; 2]>,
) -> TopologyReport {
    let mut costs: Vec<f64> =
        canon.iter().zip(native.iter()).map(|(canon, native)| canon / native - 1.0).collect();
    let (canon_s, native_s, cost) = (median(canon), median(native), median(&mut costs));
    // All are in ascending order now.
    TopologyReport {
        device: device.describe(),
        processor: processor(),
        tokens: args.batch * args.sequence,
        pairs: args.steps,
        canon_s,
        native_s,
        cost,
        cost_lowest: costs[0],
        cost_highest: costs[costs.len() - 1],
        cost_of_fastest: canon[0] / native[0] - 1.0,
        kernels,
    }
}

/// The report for people.
pub(crate) fn text(report: &TopologyReport) -> String {
    let percent = |cost: f64| format!("{:+.1}%", 100.0 * cost);
    let width = Topology::WIDTH;
    let mut text = format!(
        "{} · {}\na step of {} tokens on one rank: {:.3} s at width {width}, {:.3} s at width 1\n\
         width {width} costs {} (median of {} pairs; {} to {}; {} between the fastest steps)\n",
        report.processor,
        report.device,
        thousands(report.tokens),
        report.canon_s,
        report.native_s,
        percent(report.cost),
        report.pairs,
        percent(report.cost_lowest),
        percent(report.cost_highest),
        percent(report.cost_of_fastest),
    );
    for (kernels, width) in report.kernels.iter().flatten().zip([width, 1]) {
        text.push_str(&format!("\nwidth {width}\n{}", kernels_text(kernels)));
    }
    text
}
