//! `samebit train`: fine-tune a model.

use crate::device;
use crate::model::Source;
use crate::output;
use crate::tuning::{self, Bar, MemoryReport};
use anyhow::{Result, bail};
use engine::Job;
use serde::Serialize;
use std::path::PathBuf;
use train::{Outcome, Requested, Settings, StepEvent};

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
    let mut engine = tuning.engine(args.json)?;
    let companions = crate::commands::merge::companions(&tuning.model)?;
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let mut bar = Bar::new(args.json)?;
    let mut run = tuning.run(&mut engine, &extra);
    let outcome = if args.resume { run.resume(&mut bar)? } else { run.start(&mut bar)? };
    let (product, checkpoint) = match outcome {
        Outcome::Finished { product } => (Some(product), None),
        Outcome::Stopped { checkpoint, .. } => (None, Some(checkpoint)),
    };
    let report = Trained {
        out: tuning.resolved.out.value.clone(),
        product,
        checkpoint,
        steps: bar.steps,
        memory: MemoryReport::of(&engine, before),
    };
    output::report(args.json, &report, text)?;
    match &report.checkpoint {
        None => Ok(()),
        Some(checkpoint) => {
            bail!("stopped before its end; go on from {} with --resume", checkpoint.display())
        }
    }
}

fn text(report: &Trained) -> String {
    let end = match &report.product {
        Some(product) => format!("finished: {}", product.display()),
        _ => "stopped".to_string(),
    };
    format!("{}\n{}{end}\n", tuning::steps_text(&report.steps), report.memory.text())
}
