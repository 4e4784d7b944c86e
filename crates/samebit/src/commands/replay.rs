//! `samebit replay`: a stored step of reinforcement learning, computed again and compared to the byte.

use crate::learning::Learning;
use crate::model::{self, Source};
use crate::output;
use anyhow::{Result, bail};
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
    let record = rl::read_record(&args.run)?;
    let step = rl::read_step(&args.run, args.step)?;
    let mut found = replay::coefficients(&record.resolved, &step);
    if !args.no_model && replay::has_weights(&args.run, args.step) {
        let reference = &record.resolved.train.model.value;
        let model = model::open(reference, &args.source, args.json)?;
        let learning = Learning::new(record.requested.clone(), model)?;
        let mut engine = learning.scorer(args.json)?;
        found.log_probs = Some(replay::log_probs(&args.run, &record.resolved, &step, &mut engine)?);
    }
    output::report(args.json, &found, text)?;
    if !found.same() {
        bail!("the step did not come out as it was stored");
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
