//! `samebit train`: fine-tune a model.

use crate::checks;
use crate::device;
use crate::model::Source;
use crate::output;
use crate::resumed;
use crate::tuning::{self, Bar, MemoryReport, Tuning};
use anyhow::{Result, anyhow, bail};
use data::CacheOutcome;
use engine::{Exchange, Job};
use fabric::{Cause, RunError, Seat, World};
use program::Topology;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use train::{Outcome, Settings, StepEvent};

/// Arguments of `samebit train`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Settings file (TOML) with the same keys as the flags below; flags outrank it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Go on from the newest checkpoint of a run: RUN alone is enough, its record has the settings; without RUN, the one in
    /// --out
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "")]
    resume: Option<PathBuf>,
    /// Resume although these changed: settings, or what the refusal names (data, template, binary, …)
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', requires = "resume")]
    allow_changed: Vec<String>,
    /// Sign the finished run with the key in a file of 64 hexadecimal digits [default: $SAMEBIT_SIGN_KEY]
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) checks: checks::Options,
    /// Print the JSON schema of the settings file and stop
    #[arg(long)]
    schema: bool,
    /// Machine-readable report
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    source: Source,
}

/// Settings, model, data and plan of a run, and what its record is to say.
pub(crate) fn prepare(args: &Args, quiet: bool) -> Result<Tuning> {
    let (resume, config) = (args.resume.as_deref(), args.config.as_deref());
    let requested = resumed::requested(resume, config, &args.settings)?;
    let mut tuning = tuning::prepare(requested, &args.source, Job::default(), quiet)?;
    let surroundings = &mut tuning.surroundings;
    surroundings.allow_changed = args.allow_changed.clone();
    surroundings.signing_key = resumed::signing_key(args.sign_key.as_deref())?;
    Ok(tuning)
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
    encode_cache: CacheOutcome,
    memory: MemoryReport,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.schema {
        return output::report(true, &schemars::schema_for!(Settings), |_| String::new());
    }
    let launched = fabric::launched();
    let quiet = args.json || launched.is_some_and(|launched| launched.rank > 0);
    let tuning = prepare(&args, quiet)?;
    if !quiet {
        eprint!("{}", tuning.summary()?);
    }
    let before = device::resident_bytes();
    let companions = crate::commands::merge::companions(&tuning.model)?;
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let bar = Mutex::new(Some(Bar::new(quiet)?));
    let topology = tuning.resolved.topology();
    let rank = |seat: &mut Seat<'_>| {
        // The first rank alone tells people.
        let lead = |_: &mut Bar| seat.index() == 0;
        let bar = bar.lock().unwrap_or_else(PoisonError::into_inner).take_if(lead);
        let exchange = seat.member(0).map(|member| Box::new(member) as Box<dyn Exchange>);
        let mut engine = tuning.rank_engine(seat.index(), exchange, quiet)?;
        let led = match bar {
            None => {
                tuning.run(&mut engine, &tuning.surroundings, &extra).follow()?;
                None
            }
            Some(mut bar) => {
                let surroundings = tuning.checked(&mut engine, args.checks)?;
                let mut run = tuning.run(&mut engine, &surroundings, &extra);
                let outcome = match args.resume {
                    Some(_) => run.resume(&mut bar)?,
                    None => run.start(&mut bar)?,
                };
                Some((outcome, bar.steps))
            }
        };
        anyhow::Ok((led, engine.ledger().total()))
    };
    let world = World::new(&[topology]);
    let ranks = match launched {
        None => world.run(rank),
        Some(_) => world.run_process(rank).map(|mine| vec![mine]),
    };
    let mut ranks = ranks.map_err(|error| of_ranks(error, &topology))?;
    let allocated = ranks.iter().map(|(_, bytes)| bytes).sum();
    // Of a launcher's processes the first one reports, for itself.
    let Some((outcome, steps)) = ranks.swap_remove(0).0 else { return Ok(()) };
    let planned = match launched {
        None => tuning.planned_bytes(),
        Some(launched) => tuning.blueprints[launched.rank].ledger.total(),
    };
    let (product, checkpoint) = match outcome {
        Outcome::Finished { product } => (Some(product), None),
        Outcome::Stopped { checkpoint, .. } => (None, Some(checkpoint)),
    };
    let report = Trained {
        out: tuning.resolved.out.value.clone(),
        product,
        checkpoint,
        steps,
        encode_cache: tuning.cache.clone(),
        memory: MemoryReport::of_ranks(planned, allocated, before),
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
