//! `samebit train`: fine-tune a model.

use crate::checks::{self, NotReady};
use crate::device;
use crate::model::Source;
use crate::output;
use crate::resumed;
use crate::tuning::{self, Bar, MemoryReport, Tuning};
use anyhow::{Result, bail};
use data::CacheOutcome;
use engine::{Engine, Job};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use train::{Outcome, Requested, Settings, StepEvent};

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
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    pub(crate) resume: Option<Option<PathBuf>>,
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

/// Settings, model, data and plan of a run, and what its record is to say; `out` where no folder is named.
pub(crate) fn prepare(args: &Args, out: Option<&str>, quiet: bool) -> Result<Tuning, NotReady> {
    let begins = out.is_none() && args.resume.is_none();
    let asked = Asked::read(args, out).map_err(NotReady::at(checks::SETTINGS))?;
    // Again when the run begins; here before anything is opened. Of a launcher's processes the first one has the folder.
    let first = fabric::launched().is_none_or(|launched| launched.rank == 0);
    if let Some(out) = asked.requested.settings.out.as_ref().filter(|_| first && begins) {
        train::check_free(out).map_err(NotReady::at(train::FOLDER))?;
    }
    let mut tuning = tuning::prepare(asked.requested, &asked.source, Job::default(), quiet)?;
    let surroundings = &mut tuning.surroundings;
    surroundings.allow_changed = args.allow_changed.clone();
    surroundings.signing_key = asked.signing_key;
    Ok(tuning)
}

/// What arguments, a settings file and the record of a run to go on with ask for.
struct Asked {
    requested: Requested,
    source: Source,
    signing_key: Option<PathBuf>,
}

impl Asked {
    fn read(args: &Args, out: Option<&str>) -> Result<Asked> {
        // A resumed run goes to where it was begun; what this command names is where it is given.
        let signing_key = resumed::signing_key(args.sign_key.as_deref())?;
        let source = resumed::source(&args.source)?;
        let resume = args.resume.as_ref().map(Option::as_deref);
        let mut requested = resumed::requested(resume, args.config.as_deref(), &args.settings)?;
        if requested.settings.out.is_none() {
            requested.settings.out = out.map(PathBuf::from);
        }
        Ok(Asked { requested, source, signing_key })
    }
}

/// The report.
#[derive(Serialize)]
struct Trained {
    /// `finished` or `stopped`.
    status: &'static str,
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
    let tuning = prepare(&args, None, quiet)?;
    if !quiet {
        tell!("{}", tuning.summary().trim_end());
    }
    let before = device::resident_bytes();
    let companions = crate::commands::merge::companions(&tuning.model)?;
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let bar = Mutex::new(Some(Bar::new(quiet, args.resume.is_some())?));
    let rank = |index: usize, engine: &mut Engine<'_>| {
        // The first rank alone tells people.
        let lead = |_: &mut Bar| index == 0;
        let bar = bar.lock().unwrap_or_else(PoisonError::into_inner).take_if(lead);
        let led = match bar {
            None => {
                checks::trial(&tuning, engine, args.checks)?;
                tuning.run(engine, &tuning.surroundings, &extra).follow()?;
                None
            }
            Some(mut bar) => {
                let surroundings = tuning.checked(engine, args.checks)?;
                let mut run = tuning.run(engine, &surroundings, &extra);
                let outcome = match args.resume {
                    Some(_) => run.resume(&mut bar)?,
                    None => run.start(&mut bar)?,
                };
                Some((outcome, bar.steps))
            }
        };
        Ok((led, engine.ledger().total()))
    };
    let mut ranks = tuning.on_ranks(quiet, rank)?;
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
        status: if product.is_some() { "finished" } else { "stopped" },
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
        Some(checkpoint) => bail!(
            "stopped before its end, after {}; go on with samebit train --resume {}",
            checkpoint.display(),
            report.out.display()
        ),
    }
}

fn text(report: &Trained) -> String {
    let end = match &report.product {
        Some(product) => format!("{}: {}", report.status, product.display()),
        None => report.status.to_owned(),
    };
    format!("{}\n{}{end}\n", tuning::steps_text(&report.steps), report.memory.text())
}
