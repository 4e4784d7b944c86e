//! `samebit train`: fine-tune a model.

use crate::device;
use crate::model::Source;
use crate::output;
use crate::tuning::{self, Bar, MemoryReport};
use anyhow::{Result, anyhow, bail};
use engine::Job;
use fabric::{Cause, Ranks, RunError};
use program::Topology;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use train::{Observer, Outcome, Requested, Run, Settings, Silent, StepEvent};

/// Arguments of `samebit train`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Settings file (TOML) with the same keys as the flags below; flags outrank it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Go on from the newest checkpoint of the run in --out
    #[arg(long)]
    resume: bool,
    /// Print the JSON schema of the settings file and stop
    #[arg(long)]
    schema: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

/// The report.
#[derive(Serialize)]
struct Trained {
    out: PathBuf,
    /// Adapter or model folder; null when the run was stopped.
    product: Option<PathBuf>,
    /// The checkpoint, when the run was stopped.
    checkpoint: Option<PathBuf>,
    steps: Vec<StepEvent>,
    memory: MemoryReport,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.schema {
        return output::report(true, &schemars::schema_for!(Settings), |_| String::new());
    }
    let requested = Requested::read(args.config.as_deref(), args.settings)?;
    let tuning = tuning::prepare(requested, &args.source, Job::default(), args.json)?;
    if !args.json {
        eprint!("{}", tuning.summary()?);
    }
    let before = device::resident_bytes();
    let companions = crate::commands::merge::companions(&tuning.model)?;
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let bar = Mutex::new(Some(Bar::new(args.json)?));
    let ranks = Ranks::new(tuning.resolved.topology()).run(|member| {
        // The first rank alone tells people.
        let mut bar =
            bar.lock().unwrap_or_else(PoisonError::into_inner).take_if(|_| member.index() == 0);
        let mut silent = Silent;
        let mut engine = tuning.rank_engine(member.index(), Some(Box::new(member)), args.json)?;
        let observer: &mut dyn Observer = match &mut bar {
            Some(bar) => bar,
            None => &mut silent,
        };
        let mut run = Run {
            engine: &mut engine,
            checkpoint: &tuning.model.checkpoint,
            dataset: &tuning.dataset,
            requested: &tuning.requested,
            resolved: &tuning.resolved,
            extra_files: &extra,
        };
        let outcome = if args.resume { run.resume(observer)? } else { run.start(observer)? };
        anyhow::Ok((outcome, bar.map_or(Vec::new(), |bar| bar.steps), engine.ledger().total()))
    });
    let mut ranks = ranks.map_err(|error| of_ranks(error, &tuning.resolved.topology()))?;
    let allocated = ranks.iter().map(|(_, _, bytes)| bytes).sum();
    let (outcome, steps, _) = ranks.swap_remove(0);
    let (product, checkpoint) = match outcome {
        Outcome::Finished { product } => (Some(product), None),
        Outcome::Stopped { checkpoint, .. } => (None, Some(checkpoint)),
    };
    let report = Trained {
        out: tuning.resolved.out.value.clone(),
        product,
        checkpoint,
        steps,
        memory: MemoryReport::of_ranks(tuning.planned_bytes(), allocated, before),
    };
    output::report(args.json, &report, text)?;
    match &report.checkpoint {
        None => Ok(()),
        Some(checkpoint) => {
            bail!("stopped before its end; go on from {} with --resume", checkpoint.display())
        }
    }
}

/// The failure of the first rank to fail; which one it was is told where there are several.
fn of_ranks(error: RunError<anyhow::Error>, topology: &Topology) -> anyhow::Error {
    match error.cause {
        Cause::Error(cause) if topology.ranks() == 1 => cause,
        Cause::Error(cause) => {
            cause.context(format!("rank {} failed at {}", error.rank, error.operation))
        }
        cause => anyhow!("rank {} failed at {}: {cause}", error.rank, error.operation),
    }
}

fn text(report: &Trained) -> String {
    let end = match &report.product {
        Some(product) => format!("finished: {}", product.display()),
        _ => "stopped".to_string(),
    };
    format!("{}\n{}{end}\n", tuning::steps_text(&report.steps), report.memory.text())
}
