//! `samebit annotate`: a note beside a run's record.

use crate::commands::show;
use crate::output;
use crate::sealed::Sealed;
use anyhow::Result;
use record::Record;
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
    let seal = Sealed::of(&args.run, &Record::read(&args.run)?, None)?;
    if let Err(broken) = seal.intact(&args.run) {
        output::warn(&format!("the note stands, and {broken}"));
    }
    output::report(args.json, &note, |note| {
        format!("added beside the record, which stays as it is{}", show::annotation(note))
    })
}
