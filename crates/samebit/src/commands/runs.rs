//! `samebit runs` and `samebit ps`: the runs under a folder.

use crate::output::{self, Table};
use anyhow::Result;
use record::{Index, Listed, Record, Standing};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `samebit runs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that holds runs; an index of them is kept in it (.samebit-runs.sqlite)
    #[arg(default_value = "runs")]
    root: PathBuf,
    /// Throw the index away and build it again from the folders
    #[arg(long)]
    rebuild: bool,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// Arguments of `samebit ps`.
#[derive(clap::Args)]
pub(crate) struct PsArgs {
    /// The folder that holds runs; an index of them is kept in it (.samebit-runs.sqlite)
    #[arg(default_value = "runs")]
    root: PathBuf,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// A listed run with its process looked up.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    listed: Listed,
    /// `running`, `dead`, `finished`, `stopped`, `failed`, `unknown` or `unreadable`.
    standing: String,
}

/// A run that says that it runs.
#[derive(Serialize)]
struct Process {
    path: PathBuf,
    pid: u32,
    host: String,
    /// `running`, `dead` or `unknown`.
    life: String,
    /// Why it is dead or unknown.
    why: Option<String>,
    step: usize,
    steps: usize,
    started: String,
    /// Seconds of its process when it last wrote its record, by the steady clock.
    seconds: f64,
}

fn listed(root: &Path, rebuild: bool) -> Result<Vec<Listed>> {
    Ok(Index::open(root, rebuild)?.refresh()?)
}

pub(crate) fn run(args: Args) -> Result<()> {
    let rows: Vec<Row> = listed(&args.root, args.rebuild)?
        .into_iter()
        .map(|listed| Row { standing: standing(&args.root, &listed), listed })
        .collect();
    output::report(args.json, &rows, |rows| {
        let mut table = Table::left(&["run", "state", "steps", "loss", "seal", "started", "model"]);
        for Row { listed, standing } in rows {
            let loss = listed.losses.map_or("-".into(), |(a, b)| format!("{a:.4} → {b:.4}"));
            table.row([
                listed.path.display().to_string(),
                standing.clone(),
                format!("{}/{}", listed.step, listed.steps),
                loss,
                if listed.sealed { "not checked".into() } else { "none".into() },
                listed.started.clone(),
                listed.unreadable.clone().unwrap_or_else(|| listed.model.clone()),
            ]);
        }
        table.text()
    })
}

/// The index holds what records say; whether a process still runs is looked up now.
fn standing(root: &Path, listed: &Listed) -> String {
    if listed.state != "running" {
        return listed.state.clone();
    }
    match Record::read(&root.join(&listed.path)) {
        Ok(record) => record.standing().to_string(),
        Err(_) => "unreadable".to_owned(),
    }
}

pub(crate) fn ps(args: PsArgs) -> Result<()> {
    let mut processes = Vec::new();
    for run in listed(&args.root, false)?.into_iter().filter(|run| run.state == "running") {
        let record = Record::read(&args.root.join(&run.path))?;
        let Some(session) = record.sessions.last() else { continue };
        let standing = record.standing();
        let why = match &standing {
            Standing::Dead(why) | Standing::Unknown(why) => Some(why.clone()),
            Standing::As(_) => None,
        };
        processes.push(Process {
            path: run.path,
            pid: session.process.pid,
            host: session.process.host.clone(),
            life: standing.to_string(),
            why,
            step: run.step,
            steps: run.steps,
            started: session.started.clone(),
            seconds: session.seconds,
        });
    }
    output::report(args.json, &processes, |processes| {
        let mut table = Table::left(&["run", "pid", "life", "steps", "started", ""]);
        for process in processes {
            table.row([
                process.path.display().to_string(),
                process.pid.to_string(),
                process.life.clone(),
                format!("{}/{}", process.step, process.steps),
                process.started.clone(),
                process.why.clone().unwrap_or_default(),
            ]);
        }
        table.text()
    })
}
