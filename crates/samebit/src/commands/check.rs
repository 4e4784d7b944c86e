//! `samebit check`: the list before a run, in seconds.

use crate::checks;
use crate::commands::{show, train};
use crate::output;
use crate::tuning::Tuning;
use anyhow::{Result, bail};
use record::{Gate, Verdict};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Serialize)]
struct Checked {
    /// Whether nothing failed.
    ready: bool,
    checks: Vec<Gate>,
    /// Seconds that loading the weights and the checks took.
    seconds: f64,
}

pub(crate) fn run(args: train::Args) -> Result<()> {
    // Of a launcher's processes the first one reports.
    let follows = fabric::launched().is_some_and(|launched| launched.rank > 0);
    let quiet = args.json || follows;
    // Nothing is written, so that a run's folder need not be named: its disk is then that of the working directory.
    let prepared = train::prepare(&args, Some("."), quiet);
    let begin = Instant::now();
    let checks = match &prepared {
        // What comes before the rest fails alone: without it there is nothing to check the rest on.
        Err(not_ready) => vec![not_ready.gate()],
        Ok(tuning) => of_ranks(tuning, args.checks, args.resume.is_some(), quiet),
    };
    let ready = checks.iter().all(|check| check.verdict != Verdict::Failed);
    if !follows {
        let checked = Checked { ready, checks, seconds: begin.elapsed().as_secs_f64() };
        output::report(args.json, &checked, |checked| {
            format!("{}{:.1} s\n", show::gates(&checked.checks), checked.seconds)
        })?;
    }
    if !ready {
        bail!("not ready: see what is FAILED above");
    }
    Ok(())
}

/// The checks of a run that can be planned. What ends a step that runs for real is the failure of one of them.
fn of_ranks(tuning: &Tuning, options: checks::Options, resumes: bool, quiet: bool) -> Vec<Gate> {
    let has_folder = resumes || tuning.requested.sources.contains_key("out");
    let list = Mutex::new(Vec::new());
    let lock = || list.lock().unwrap_or_else(PoisonError::into_inner);
    let ran = tuning.on_ranks(quiet, |rank, engine| {
        if rank == 0 {
            *lock() = checks::standing(tuning, engine, options)?;
        }
        let trial = checks::trial(tuning, engine, options)?;
        if rank == 0 {
            lock().extend(trial);
        }
        if has_folder {
            let mut run = tuning.run(engine, &tuning.surroundings, &[]);
            match rank {
                0 => lock().push(run.folder_is_ready(resumes)?),
                _ => run.follow()?,
            }
        }
        Ok(())
    });
    let failed = ran.err().map(|error| Gate::failed("steps run", output::message(&error), ""));
    let mut checks = list.into_inner().unwrap_or_else(PoisonError::into_inner);
    checks.extend(failed);
    checks
}
