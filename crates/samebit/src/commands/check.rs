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
    /// Seconds that the checks took, weights and data loaded.
    seconds: f64,
}

pub(crate) fn run(args: train::Args) -> Result<()> {
    let prepared = train::prepare(&args, args.json)?;
    let mut engine = prepared.engine(args.json)?;
    let begin = std::time::Instant::now();
    let checks = checks::run(&prepared, &mut engine, args.checks)?;
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
