//! `samebit annotate`: a note beside a run's record.

use crate::commands::show;
use crate::output;
use anyhow::Result;
use std::path::PathBuf;

/// Arguments of `samebit annotate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run's folder
    run: PathBuf,
    /// What no longer holds; may be given again
    #[arg(long)]
    falls: Vec<String>,
    /// What still holds; may be given again
    #[arg(long)]
    survives: Vec<String>,
    /// Anything else
    #[arg(default_value = "")]
    note: String,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let note = record::annotate(&args.run, args.falls, args.survives, args.note)?;
    output::report(args.json, &note, |note| {
        format!("added beside the record, which stays as it is{}", show::annotation(note))
    })
}
