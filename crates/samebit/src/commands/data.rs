//! `samebit data`: what training would see of the data.

use crate::data_report::{self, DataReport};
use crate::encoding;
use crate::model::{self, Source};
use crate::output;
use crate::sample_view;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use train::{Facts, Requested, Settings};

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
    let reference = requested
        .settings
        .model
        .clone()
        .context("no model: give --model, or `model` in the settings file")?;
    let model = model::open(&reference, &args.source, args.json)?;
    let resolved = requested.resolve(&Facts::of(&model.checkpoint))?;
    let encoded =
        encoding::encode(&model, &resolved, &resolved.sources(), &args.source, args.json)?;
    let dataset = &encoded.dataset;
    let mut schedule = resolved.schedule(dataset)?;
    if let Some(path) = &args.manifest {
        write_manifest(path, &mut schedule, dataset)?;
    }
    let view = match args.show {
        None => None,
        Some(number) => {
            if !(1..=dataset.len()).contains(&number) {
                bail!("--show {number}: there are {} samples, counted from 1", dataset.len());
            }
            Some(sample_view::view(dataset, number - 1, &mut schedule, &model.tokenizer()?)?)
        }
    };
    let report = DataReport::new(&model, &resolved, encoded, &mut schedule, view);
    output::report(args.json, &report, data_report::text)
}

fn write_manifest(
    path: &Path,
    schedule: &mut data::Schedule,
    dataset: &data::Dataset,
) -> Result<()> {
    let named = || path.display().to_string();
    let mut out = BufWriter::new(File::create(path).with_context(named)?);
    schedule.write_manifest(dataset, &mut out).with_context(named)?;
    out.flush().with_context(named)
}
