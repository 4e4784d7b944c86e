//! `samebit data`: what training would see of the data.

use crate::data_report::{self, DataReport};
use crate::model::{self, Source};
use crate::output;
use crate::sample_view::{self, SampleView};
use crate::tuning::{self, Data};
use ::data::{Dataset, Schedule};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use text::Tokenizer;
use train::{Requested, Settings};

/// Arguments of `samebit data`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Settings file (TOML), as for `samebit train`; flags outrank it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Show this sample (from 1, in order of the data) token by token: what is learnt, and its weight in the loss
    #[arg(long, value_name = "N")]
    show: Option<usize>,
    /// Write the order manifest: JSON Lines, the samples of every step
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut flags = args.settings;
    // Nothing is written there.
    flags.out.get_or_insert_with(|| PathBuf::from("unused"));
    let requested = Requested::read(args.config.as_deref(), flags)?;
    let model = model::open_asked(&requested, &args.source, args.json)?;
    let resolved = requested.resolve(&model.facts()?)?;
    let data = tuning::datasets(&model, &resolved, &args.source, args.json)?;
    let mut schedule = resolved.schedule(&data.dataset)?;
    if let Some(path) = &args.manifest {
        write_manifest(path, &mut schedule, &data.dataset)?;
    }
    let view = match args.show {
        None => None,
        Some(number) => Some(view(&data, number, &mut schedule, &model.tokenizer()?)?),
    };
    let report = DataReport::new(&model, &resolved, data, &mut schedule, view);
    output::report(args.json, &report, data_report::text)
}

/// Sample `number`, from 1, of all that was encoded: one that is trained on, or one that is held out.
fn view(
    data: &Data,
    number: usize,
    schedule: &mut Schedule,
    tokenizer: &Tokenizer,
) -> Result<SampleView> {
    let held_out = data.stay.as_ref().and(data.evaluation.as_ref());
    let whole = data.dataset.len() + held_out.map_or(0, Dataset::len);
    if !(1..=whole).contains(&number) {
        bail!("--show {number}: there are {whole} samples, counted from 1");
    }
    let index = number - 1;
    let place = data.stay.as_ref().map_or(Ok(index), |stay| stay.binary_search(&index));
    match (place, held_out) {
        // As many of those before it stay.
        (Err(stay), Some(held_out)) => {
            sample_view::view(held_out, index - stay, number, None, tokenizer)
        }
        (Ok(index) | Err(index), _) => {
            sample_view::view(&data.dataset, index, number, Some(schedule), tokenizer)
        }
    }
}

fn write_manifest(path: &Path, schedule: &mut Schedule, dataset: &Dataset) -> Result<()> {
    let named = || path.display().to_string();
    let mut out = BufWriter::new(File::create(path).with_context(named)?);
    schedule.write_manifest(dataset, &mut out).with_context(named)?;
    out.flush().with_context(named)
}
