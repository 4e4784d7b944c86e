//! `samebit verify`: the proof that topologies do not change a bit.

use crate::base;
use crate::commands::shared::Adapt;
use crate::device::{self, Compute, Device};
use crate::model::{self, Model, Source};
use crate::output;
use crate::progress;
use anyhow::{Result, bail};
use arena::Executor;
use engine::{Engine, EngineError, Sampling};
use families::{BuildOptions, Train};
use program::Topology;
use serde::Serialize;
use std::path::{Path, PathBuf};
use verify::{Cell, Pair, Rule, Settings, SmallModel, Verdict, Work};

/// Arguments of `samebit verify`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference [default: a small qwen3 over bytes with random weights]
    model: Option<String>,
    #[command(flatten)]
    adapt: Adapt,
    /// Tensor-parallel ranks of training
    #[arg(long, default_value_t = 1)]
    tp: usize,
    /// Context-parallel ranks of training
    #[arg(long, default_value_t = 1)]
    cp: usize,
    /// Data-parallel ranks of training
    #[arg(long, default_value_t = 1)]
    dp: usize,
    /// Tensor-parallel ranks of rollout
    #[arg(long, default_value_t = 1)]
    rollout_tp: usize,
    /// Context-parallel ranks of rollout
    #[arg(long, default_value_t = 1)]
    rollout_cp: usize,
    /// Updates
    #[arg(long, default_value_t = 2)]
    steps: usize,
    /// Completions of each prompt
    #[arg(long, default_value_t = 4)]
    samples: usize,
    /// Most tokens of a completion
    #[arg(long, default_value_t = 24)]
    max_response_len: usize,
    /// Logical micro-batches of a step
    #[arg(long, default_value_t = 2)]
    accumulation: usize,
    /// Temperature of rollouts
    #[arg(long, default_value_t = 1.0)]
    temperature: f32,
    /// Smallest set of candidates whose probability reaches this
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Most candidates; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Coefficient in the loss of the divergence from the reference model: with LoRA the base, else the model before the
    /// first update; 0 for none
    #[arg(long, default_value_t = 0.0)]
    kl_coef: f64,
    /// Seed of rollouts and of adapters
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// All pairs of training TP × CP = 8 with rollout TP × CP up to 8, then data ranks and accumulation
    #[arg(long, conflicts_with_all = ["tp", "cp", "dp", "rollout_tp", "rollout_cp", "accumulation", "perturb"])]
    matrix: bool,
    /// Folder of the matrix's runs and pages; a matrix that was stopped goes on there [default: verify]
    #[arg(long)]
    archive: Option<PathBuf>,
    /// Break a rule of the arithmetic in the verified run
    #[arg(long, hide = true, value_parser = rule)]
    perturb: Option<Rule>,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    source: Source,
}

fn rule(name: &str) -> Result<Rule, String> {
    Rule::of(name).ok_or_else(|| {
        let names: Vec<&str> = Rule::all().map(Rule::name).collect();
        format!("no such rule; there are {}", names.join(", "))
    })
}

/// What a model that a user gave is asked.
const PROMPTS: [&str; 4] =
    ["What is two and two?", "Name a colour.", "Say hello.", "Which day comes after Monday?"];

/// The report of one pair.
#[derive(Serialize)]
struct Report {
    model: String,
    train: [usize; 3],
    rollout: [usize; 2],
    accumulation: usize,
    perturbed: Option<&'static str>,
    #[serde(flatten)]
    verdict: Verdict,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.archive.is_some() && !args.matrix {
        bail!(
            "--archive is the folder of --matrix, and there is none: leave it out, or give --matrix"
        );
    }
    if args.compute.threads.is_some() {
        bail!(
            "--threads is ignored by verify, where each rank computes on one thread: leave it out"
        );
    }
    let device = Device::new(&Compute { threads: Some(1), ..args.compute.clone() })?;
    device.executor()?;
    let executor = || -> Box<dyn Executor> {
        device.executor().expect("an executor like the one that was just made")
    };
    let train = args.adapt.train()?;
    match &args.model {
        None => {
            let train = if args.adapt.names_lora() { train } else { Train::Full };
            let small = SmallModel::new(&train, Topology::WIDTH)?;
            proceed(&args, &small.work(&executor, arithmetic(&device)?))
        }
        Some(reference) => {
            let model = model::open(reference, &args.source, args.json)?;
            let options = BuildOptions { train, ..BuildOptions::default() };
            let graph = families::build(model.checkpoint.config(), &options)?.graph;
            let load = |engine: &mut Engine<'_>| load(engine, &model, args.seed);
            let (prompts, stops) = questions(&model)?;
            let name = model.identity.clone();
            let weights = base::fingerprint(&model, args.json)?;
            let (executor, arithmetic) = (&executor, arithmetic(&device)?);
            let load = &load;
            proceed(
                &args,
                &Work { name, weights, arithmetic, graph, load, executor, prompts, stops },
            )
        }
    }
}

/// What computes, as far as it may change a bit.
fn arithmetic(device: &Device) -> Result<String> {
    let profile = device::name(device.profile);
    Ok(format!("{profile}, binary {}", record::Binary::current()?.blake3))
}

fn load(engine: &mut Engine<'_>, model: &Model, seed: u64) -> Result<(), EngineError> {
    engine.load(&model.checkpoint, &mut |_| ())?;
    if engine.graph.params.iter().any(|param| param.adapter) {
        engine.init_adapter(seed);
    }
    Ok(())
}

fn questions(model: &Model) -> Result<(Vec<Vec<u32>>, Vec<u32>)> {
    let tokenizer = model.tokenizer()?;
    let prompts: Result<Vec<Vec<u32>>> =
        PROMPTS.iter().map(|text| Ok(tokenizer.encode(text, true)?)).collect();
    Ok((prompts?, model.stops(&tokenizer)))
}

fn proceed(args: &Args, work: &Work<'_>) -> Result<()> {
    let defaults = Settings::default();
    let settings = Settings {
        steps: args.steps,
        samples: args.samples,
        max_response: args.max_response_len,
        accumulation: args.accumulation,
        kl_coef: args.kl_coef,
        sampling: Sampling {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            seed: args.seed,
            ..defaults.sampling
        },
        ..defaults
    };
    if args.matrix { matrix(args, work, &settings) } else { one(args, work, &settings) }
}

fn one(args: &Args, work: &Work<'_>, settings: &Settings) -> Result<()> {
    let topology = |tp, cp, dp| Topology { tp, cp, dp, width: Topology::WIDTH };
    let pair = Pair {
        train: topology(args.tp, args.cp, args.dp),
        rollout: topology(args.rollout_tp, args.rollout_cp, 1),
    };
    device::check_available(&verify::planned(work, settings, pair)?)?;
    let (verdict, _) = verify::verify(work, settings, pair, args.perturb, None)?;
    let report = Report {
        model: work.name.clone(),
        train: [args.tp, args.cp, args.dp],
        rollout: [args.rollout_tp, args.rollout_cp],
        accumulation: args.accumulation,
        perturbed: args.perturb.map(Rule::name),
        verdict,
    };
    // Of processes the first one speaks for all.
    if fabric::launched().is_none_or(|launched| launched.rank == 0) {
        output::report(args.json, &report, |report| text(&pair, report))?;
    }
    if !report.verdict.same {
        bail!("{} of the compared values differ", report.verdict.differences.len());
    }
    Ok(())
}

fn text(pair: &Pair, report: &Report) -> String {
    let verdict = &report.verdict;
    let mut text = format!("{}\n{pair}, {} micro-batches\n", report.model, report.accumulation);
    for step in &verdict.steps {
        text.push_str(&format!(
            "step {}: {} tokens, {} natural stops, loss {:.6}, {} differing log-prob bytes\n",
            step.step, step.generated, step.natural_stops, step.loss, step.differing_log_prob_bytes
        ));
    }
    if verdict.same {
        text.push_str(&format!("the same bits: 0 of {} values differ\n", verdict.compared));
        return text;
    }
    for difference in verdict.differences.iter().take(MOST_NAMED) {
        text.push_str(&format!("step {}: {} differs\n", difference.step, difference.what));
    }
    if let Some(origin) = &verdict.origin {
        text.push_str(&format!(
            "first operation: {} {} of {}, rank {}{}, tensor {}: {}\n",
            origin.phase,
            origin.operation,
            origin.program,
            origin.rank,
            origin.layer.map_or(String::new(), |layer| format!(", layer {layer}")),
            origin.tensor,
            origin.what
        ));
    }
    text
}

/// Differences that the text names.
const MOST_NAMED: usize = 8;

fn matrix(args: &Args, work: &Work<'_>, settings: &Settings) -> Result<()> {
    if let Some(launched) = fabric::launched() {
        bail!(
            "--matrix under a launcher of {} processes: its topologies have different numbers of ranks; start one \
             process, whose ranks are threads",
            launched.processes
        );
    }
    let cases = verify::cases(Topology::WIDTH);
    for case in &cases {
        let settings = Settings { accumulation: case.accumulation, ..*settings };
        device::check_available(&verify::planned(work, &settings, case.pair)?)?;
    }
    let bar = progress::count("verifying", cases.len() as u64, args.json);
    let mut told = |cell: &Cell, done: usize| {
        bar.set_position(done as u64);
        bar.set_message(cell.case.clone());
    };
    let archive = args.archive.as_deref().unwrap_or(Path::new("verify"));
    let matrix = verify::matrix(work, settings, &cases, archive, &mut told)?;
    bar.finish_and_clear();
    let mut json = serde_json::to_vec_pretty(&matrix)?;
    json.push(b'\n');
    for (name, bytes) in [
        ("matrix.json", json),
        ("matrix.md", verify::markdown(&matrix).into_bytes()),
        ("matrix.html", verify::html(&matrix).into_bytes()),
    ] {
        record::durable::write(archive, name, &bytes)?;
    }
    output::report(args.json, &matrix, verify::markdown)?;
    if matrix.passing < matrix.total {
        bail!(
            "{} of {} runs are not the same bits; see {}",
            matrix.total - matrix.passing,
            matrix.total,
            archive.display()
        );
    }
    Ok(())
}
