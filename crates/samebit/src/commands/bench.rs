//! `samebit bench`: rates of training and generation on random tokens, and where the time goes.

use crate::commands::generate::PASS_TOKENS;
use crate::commands::shared::{self, Adapt, Running};
use crate::commands::{bench_exchanges, bench_topology};
use crate::device::{self, Device};
use crate::infer;
use crate::model;
use crate::output::{self, Table, thousands};
use anyhow::{Result, bail};
use engine::{
    Advance, Blueprint, Engine, Fitter, GenerateShape, Hyper, Job, KernelRow, MicroBatch, Profile,
    Sequence, TrainShape,
};
use families::{BuildOptions, Train};
use program::keep::{Keep, Level};
use program::ledger::Bytes;
use program::{Rank, Topology};
use serde::Serialize;
use std::ops::Range;
use std::time::Instant;
use train::Facts;

/// Arguments of `samebit bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// Model reference; for topology and exchanges also a config.json, whose weights are then random
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) adapt: Adapt,
    /// Sequences in a micro-batch
    #[arg(long, default_value_t = 4)]
    pub(crate) batch: usize,
    /// Tokens of a sequence; of the prompt, when generating
    #[arg(long, default_value_t = 512)]
    pub(crate) sequence: usize,
    /// Sequences generated at once
    #[arg(long, default_value_t = 1)]
    sequences: usize,
    /// Steps or pairs of steps, after one that is not counted; tokens, when generating
    #[arg(long, default_value_t = 5)]
    pub(crate) steps: usize,
    /// Print where the time goes, a row a kind of operation
    #[arg(long)]
    pub(crate) kernels: bool,
    /// Machine-readable report
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) running: Running,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Training steps: forward, backward, update; every token supervised
    Train,
    /// A prompt of --sequence tokens, then --steps tokens one at a time
    Generate,
    /// Training steps at the canon's width against width 1 on one rank, in pairs
    Topology,
    /// What the ranks of several topologies receive in a short step: predicted against counted
    Exchanges,
}

/// The report.
#[derive(Serialize)]
struct Rates {
    device: String,
    processor: String,
    /// What was kept from forward to backward; training only.
    keep: Option<String>,
    /// Median over steps.
    train_tokens_per_s: Option<f64>,
    prefill_tokens_per_s: Option<f64>,
    decode_tokens_per_s: Option<f64>,
    planned_bytes: usize,
    resident_growth_bytes: usize,
    peak_resident_bytes: usize,
    /// Where the time goes, the longest first; with --kernels.
    kernels: Option<Vec<Kernel>>,
}

/// One kind of operation.
#[derive(Serialize)]
pub(crate) struct Kernel {
    operation: String,
    times: usize,
    seconds: f64,
    /// Of all operations' time.
    share: f64,
    gflops: f64,
}

/// Most steps, sequences, and tokens of one.
const MOST: usize = 1 << 20;

pub(crate) fn run(args: Args) -> Result<()> {
    let counts = [
        ("--steps", args.steps),
        ("--batch", args.batch),
        ("--sequence", args.sequence),
        ("--sequences", args.sequences),
    ];
    for (name, count) in counts {
        if count == 0 || count > MOST {
            bail!("{name} {count}: must be between 1 and {MOST}");
        }
    }
    let device = Device::new(&args.running.compute)?;
    let report = match args.what {
        What::Train => train(&args, &device)?,
        What::Generate => generate(&args, &device)?,
        What::Topology => {
            let report = bench_topology::run(&args, &device)?;
            return output::report(args.json, &report, bench_topology::text);
        }
        What::Exchanges => {
            let report = bench_exchanges::run(&args)?;
            output::report(args.json, &report, bench_exchanges::text)?;
            return report.check();
        }
    };
    output::report(args.json, &report, text)
}

fn train(args: &Args, device: &Device) -> Result<Rates> {
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let config = model.checkpoint.config();
    let train = args.adapt.train()?;
    let stored_as_bf16 = Facts::of(&model.checkpoint).stored_as_bf16;
    let options = BuildOptions {
        weights: shared::weights(args.running.memory.weights, stored_as_bf16, &train),
        train: train.clone(),
        ..BuildOptions::default()
    };
    let graph = families::build(config, &options)?.graph;
    let shape = |keep| TrainShape {
        tokens: args.batch * args.sequence,
        segments: args.batch,
        accumulation: 1,
        keep,
        coef_known: true,
    };
    let mut job = Job { train: Some(shape(Keep::uniform(Level::All))), ..Job::default() };
    let workspace = device.workspace();
    let limit = args.running.memory.memory.map_or(usize::MAX, |m| m.0);
    let keep = {
        let fitter = Fitter::new(&graph, Topology::single(), Rank::FIRST, &job, &workspace);
        fitter.fastest(shape(Keep::uniform(Level::All)).step(), limit).map(|fit| fit.keep)
    };
    let Some(keep) = keep else { bail!("nothing fits the lease of {}", Bytes(limit)) };
    job.train = Some(shape(keep));
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    device::check_available(&blueprint.ledger)?;
    let before = device::resident_bytes().unwrap_or(0);
    let mut engine = Engine::new(graph, blueprint, device.executor()?)?;
    infer::load(&mut engine, &model, args.json)?;
    if matches!(train, Train::Lora(_)) {
        engine.init_adapter(0);
    }
    let batch = random_batch((args.batch, args.sequence), engine.graph.vocab);
    let mut seconds = Vec::new();
    for step in 0..=args.steps {
        if step == 1 && args.kernels {
            engine.start_profile();
        }
        let start = Instant::now();
        engine.train_micro_batch(&batch, 0, 1)?;
        engine.update(&HYPER, step as u64 + 1)?;
        if step > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let rate = batch.tokens() as f64 / median(&mut seconds);
    Ok(rates(device, &engine, before, Some(keep), Some(rate), None))
}

pub(crate) const HYPER: Hyper =
    Hyper { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, max_grad_norm: 1.0 };

fn generate(args: &Args, device: &Device) -> Result<Rates> {
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let length = args.sequence + args.steps;
    let shape = GenerateShape::full(args.sequences, length, args.sequence.min(PASS_TOKENS));
    let setup = infer::Setup { adapter: None, memory: &args.running.memory, quiet: args.json };
    let before = device::resident_bytes().unwrap_or(0);
    let job = Job { generate: Some(shape), ..Job::default() };
    let mut engine = infer::engine(&model, device, job, &setup)?;
    let vocab = engine.graph.vocab;
    let prompts: Vec<Vec<u32>> =
        (0..args.sequences).map(|i| random_ids(args.sequence, vocab, i as u64)).collect();
    let pages: Vec<Vec<u32>> = (0..args.sequences).map(|slot| shape.slot(slot)).collect();
    // Tokens `range` of every sequence, whose tokens go round its prompt.
    let advance = |engine: &mut Engine<'_>, range: Range<usize>| -> Result<f64> {
        let ids: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| range.clone().map(|i| prompt[i % prompt.len()]).collect())
            .collect();
        let work: Vec<Advance<'_>> = ids
            .iter()
            .zip(&pages)
            .map(|(ids, pages)| Advance { pages, past: range.start, ids, logits: true })
            .collect();
        let start = Instant::now();
        engine.advance(&work)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // Once uncounted: memory is touched for the first time.
    advance(&mut engine, 0..args.sequence)?;
    if args.kernels {
        engine.start_profile();
    }
    let prefill_s = advance(&mut engine, 0..args.sequence)?;
    let mut seconds = (args.sequence..length)
        .map(|token| advance(&mut engine, token..token + 1))
        .collect::<Result<Vec<f64>>>()?;
    let sequences = args.sequences as f64;
    let prefill = sequences * args.sequence as f64 / prefill_s;
    let generated = (prefill, sequences / median(&mut seconds));
    Ok(rates(device, &engine, before, None, None, Some(generated)))
}

fn rates(
    device: &Device,
    engine: &Engine<'_>,
    before: usize,
    keep: Option<Keep>,
    train: Option<f64>,
    generate: Option<(f64, f64)>,
) -> Rates {
    let peak = device::peak_resident_bytes().unwrap_or(0);
    Rates {
        device: device.describe(),
        processor: device::processor(),
        keep: keep.map(|k| k.to_string()),
        train_tokens_per_s: train,
        prefill_tokens_per_s: generate.map(|g| g.0),
        decode_tokens_per_s: generate.map(|g| g.1),
        planned_bytes: engine.ledger().total(),
        resident_growth_bytes: peak.saturating_sub(before),
        peak_resident_bytes: peak,
        kernels: engine.profile().map(kernels),
    }
}

fn random_ids(count: usize, vocab: usize, stream: u64) -> Vec<u32> {
    let numbers = canon::random::Numbers::new(1, canon::random::Purpose::Sample, stream);
    (0..count as u64).map(|i| numbers.below(i, vocab as u64) as u32).collect()
}

/// `count` sequences of `length` random tokens, all supervised.
pub(crate) fn random_batch((count, length): (usize, usize), vocab: usize) -> MicroBatch {
    let coef = -1.0 / (count * (length - 1).max(1)) as f32;
    let sequence = |index: usize| {
        let ids = random_ids(length, vocab, index as u64);
        let mut sequence = Sequence::next_tokens(&ids, &vec![true; ids.len()]);
        sequence.coef = vec![coef; ids.len()];
        sequence
    };
    MicroBatch { sequences: (0..count).map(sequence).collect() }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn text(rates: &Rates) -> String {
    let mut text = format!("{} · {}\n", rates.processor, rates.device);
    let mut line = |name: &str, rate: Option<f64>| {
        if let Some(rate) = rate {
            text.push_str(&format!("{name}: {rate:.1} tokens/s\n"));
        }
    };
    line("training", rates.train_tokens_per_s);
    line("prefill", rates.prefill_tokens_per_s);
    line("decode", rates.decode_tokens_per_s);
    if let Some(keep) = &rates.keep {
        text.push_str(&format!("kept: {keep}\n"));
    }
    text.push_str(&format!(
        "planned {} · resident growth {} · peak resident {}\n",
        Bytes(rates.planned_bytes),
        Bytes(rates.resident_growth_bytes),
        Bytes(rates.peak_resident_bytes)
    ));
    if let Some(kernels) = &rates.kernels {
        text.push_str(&kernels_text(kernels));
    }
    text
}

pub(crate) fn kernels(profile: &Profile) -> Vec<Kernel> {
    let total = profile.total().as_secs_f64();
    let row = |(name, row): (&str, KernelRow)| {
        let seconds = row.time.as_secs_f64();
        Kernel {
            operation: name.to_string(),
            times: row.count,
            seconds,
            share: seconds / total,
            gflops: row.flops / seconds / 1e9,
        }
    };
    profile.rows().into_iter().map(row).collect()
}

pub(crate) fn kernels_text(kernels: &[Kernel]) -> String {
    let mut table = Table::new(&["operation", "times", "ms", "share", "GFLOP/s"]);
    for kernel in kernels {
        table.row([
            kernel.operation.clone(),
            thousands(kernel.times),
            format!("{:.1}", kernel.seconds * 1e3),
            format!("{:.1}%", kernel.share * 100.0),
            format!("{:.0}", kernel.gflops),
        ]);
    }
    table.text()
}
