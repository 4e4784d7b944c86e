//! `samebit check`: the list before a run, in seconds.

use crate::checks;
use crate::commands::{show, train};
use crate::output;
use anyhow::Result;
use record::Gate;
use serde::Serialize;

#[derive(Serialize)]
struct Checked {
    /// Whether nothing failed.
    ready: bool,
    checks: Vec<Gate>,
    /// Seconds that loading the weights and the checks took.
    seconds: f64,
}

pub(crate) fn run(args: train::Args) -> Result<()> {
    let quiet = args.json || fabric::launched().is_some_and(|launched| launched.rank > 0);
    // Nothing is written, so that a run's folder need not be named: its disk is then that of the working directory.
    let prepared = train::prepare(&args, Some("."), quiet)?;
    let begin = std::time::Instant::now();
    let mut ranks = prepared.on_ranks(quiet, |rank, engine| {
        if rank == 0 {
            return checks::run(&prepared, engine, args.checks).map(Some);
        }
        checks::trial(&prepared, engine, args.checks).map(|_| None)
    })?;
    // Of a launcher's processes the first one reports.
    let Some(checks) = ranks.swap_remove(0) else { return Ok(()) };
    let refusal = checks::refuse_failed(&checks);
    let seconds = begin.elapsed().as_secs_f64();
    let checked = Checked { ready: refusal.is_ok(), checks, seconds };
    output::report(args.json, &checked, |checked| {
        format!("{}{:.1} s\n", show::gates(&checked.checks), checked.seconds)
    })?;
    match refusal {
        Err(_) => anyhow::bail!("not ready: see what is FAILED above"),
        Ok(()) => Ok(()),
    }
}
