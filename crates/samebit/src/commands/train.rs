//! `samebit train`: fine-tune a model.

use crate::checks;
use crate::device;
use crate::model::Source;
use crate::output;
use crate::tuning::{self, Bar, MemoryReport, Tuning};
use anyhow::{Context, Result, bail};
use data::CacheOutcome;
use engine::{Engine, Job};
use record::Record;
use serde::Serialize;
use std::path::{Path, PathBuf};
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
    resume: Option<Option<PathBuf>>,
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

impl Args {
    fn requested(&self) -> Result<Requested> {
        match &self.resume {
            Some(Some(run)) => self.recorded(run),
            _ => Ok(Requested::read(self.config.as_deref(), self.settings.clone())?),
        }
    }

    /// The settings of a run's record; flags outrank them. Relative paths in them count from where the run was begun, so
    /// that is where this process goes.
    fn recorded(&self, run: &Path) -> Result<Requested> {
        if self.config.is_some() || self.settings.out.is_some() {
            bail!(
                "--resume {} has the settings already: leave --config and --out out",
                run.display()
            );
        }
        let folder = std::path::absolute(run_of(run))?;
        let record = Record::read(&folder)?;
        let mut flags = self.settings.clone();
        let data = flags.data.iter_mut().flatten().map(|source| &mut source.path);
        for path in data.chain(flags.eval.iter_mut().flatten()) {
            *path = std::path::absolute(&*path)?;
        }
        if let Some(model) = flags.model.as_mut().filter(|model| Path::new(model).exists()) {
            let path = std::path::absolute(&*model)?;
            *model = path.to_str().context("--model: its path is not UTF-8")?.to_owned();
        }
        let recorded = train::requested(&record, folder.clone()).with_context(|| {
            format!("{}: this version does not have its settings", folder.display())
        })?;
        let from = &record.directory;
        std::env::set_current_dir(from).with_context(|| {
            format!("{}: the run was begun there, and its paths count from there", from.display())
        })?;
        Ok(recorded.overridden(flags)?)
    }
}

/// The run of a path that may be one of its checkpoints, as the end of a stopped run names it.
fn run_of(path: &Path) -> &Path {
    let of_checkpoint = || {
        let checkpoints = path.parent()?;
        let is_step = path.file_name()?.to_str()?.starts_with("step-");
        (is_step && checkpoints.ends_with(train::CHECKPOINTS)).then(|| checkpoints.parent())?
    };
    of_checkpoint().unwrap_or(path)
}

/// Settings, model, data and plan of a run, and what its record is to say.
pub(crate) fn prepare(args: &Args, quiet: bool) -> Result<Tuning> {
    // A resumed run goes to where it was begun; what this command names is where it is given.
    let absolute = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
    let from_environment = || std::env::var_os(SIGN_KEY).map(PathBuf::from);
    let signing_key = absolute(args.sign_key.clone().or_else(from_environment))?;
    let cache = args.source.cache.clone().map_or_else(hub::default_folder, Ok);
    let source = Source { cache: absolute(cache.ok())?, ..args.source.clone() };
    let mut tuning = tuning::prepare(args.requested()?, &source, Job::default(), quiet)?;
    let surroundings = &mut tuning.surroundings;
    surroundings.allow_changed = args.allow_changed.clone();
    surroundings.signing_key = signing_key;
    if let Some(key) = &surroundings.signing_key {
        // A key that cannot be read must not show after the last step.
        record::read_signing_key(key)?;
    }
    Ok(tuning)
}

/// Environment variable with the file of the signing key.
const SIGN_KEY: &str = "SAMEBIT_SIGN_KEY";

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
    let tuning = prepare(&args, quiet)?;
    if !quiet {
        eprint!("{}", tuning.summary()?);
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
