//! `samebit replay`: a stored step of reinforcement learning, computed again and compared to the byte.

use crate::learning::Learning;
use crate::model::{self, Source};
use crate::output;
use crate::resumed::{self, RunSettings};
use anyhow::{Context, Result, bail};
use rl::RlSettings;
use rl::replay::{self, Replayed};
use std::path::PathBuf;

/// Arguments of `samebit replay`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run's folder
    run: PathBuf,
    /// The step, from 1
    step: usize,
    /// Leave the model alone: advantages and coefficients only
    #[arg(long)]
    no_model: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let folder = std::path::absolute(&args.run)?;
    let source = resumed::source(&args.source)?;
    let record = resumed::of_kind(&folder, RlSettings::KIND)?;
    let step = rl::read_step(&folder, args.step)?;
    let method = rl::recorded_method(&record).with_context(|| {
        format!("{}: this version does not have its settings", folder.display())
    })?;
    let mut found = replay::coefficients(&method, &step);
    if !args.no_model && replay::has_weights(&folder, args.step) {
        let requested = resumed::recorded_settings::<RlSettings>(&record, &folder)?;
        let reference = requested.settings.train.model.clone().context("the run has no model")?;
        let model = model::open(&reference, &source, args.json)?;
        let learning = Learning::new(requested, model)?;
        let mut engine = learning.scorer(args.json)?;
        found.log_probs = Some(replay::log_probs(&folder, &learning.resolved, &step, &mut engine)?);
    }
    output::report(args.json, &found, text)?;
    if !found.same() {
        bail!("the step did not come out as it was stored");
    }
    if !found.compared() {
        bail!(
            "nothing could be compared: the step had no update, and the weights before it are in no checkpoint (or \
             --no-model)"
        );
    }
    Ok(())
}

fn text(found: &Replayed) -> String {
    let log_probs = match &found.log_probs {
        Some(l) => format!("{} differing bytes in {} tokens", l.differing_bytes, l.compared),
        None => format!(
            "not computed: the weights before step {} are in no checkpoint (or --no-model)",
            found.step
        ),
    };
    format!(
        "step {}: {} samples, {} updates\n\
         advantages: {} differ\n\
         coefficients: {} differing bytes in {}\n\
         measures: {} updates differ\n\
         log-probs: {log_probs}\n",
        found.step,
        found.samples,
        found.updates,
        found.differing_advantages,
        found.differing_coefficient_bytes,
        found.coefficients,
        found.differing_measures,
    )
}
