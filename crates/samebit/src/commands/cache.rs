//! `samebit cache`: encoded data that is kept for later runs.

use crate::encoding::encode_cache;
use crate::model::Source;
use crate::output::{self, Table, duration, thousands};
use anyhow::Result;
use data::{EntryInfo, Pruned};
use program::ledger::Bytes;
use serde::Serialize;
use std::path::PathBuf;
use train::Size;

/// Arguments of `samebit cache`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the encoded data sets, the one used last first
    List(Common),
    /// Remove the data sets used longest ago
    Prune {
        /// Bytes that may stay (1GiB); nothing stays without it
        #[arg(long, value_name = "SIZE")]
        keep: Option<Size>,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    /// Folder of the cache [default: $SAMEBIT_CACHE, or samebit in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

/// The report of `list`.
#[derive(Serialize)]
struct Listed {
    folder: PathBuf,
    bytes: u64,
    entries: Vec<EntryInfo>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let (common, keep) = match args.action {
        Action::List(common) => (common, None),
        Action::Prune { keep, common } => (common, Some(keep.map_or(0, |size| size.0 as u64))),
    };
    let source = Source { cache: common.cache, ..Source::default() };
    let cache = encode_cache(&source, u64::MAX)?;
    if let Some(keep) = keep {
        return output::report(common.json, &cache.prune(keep)?, pruned);
    }
    let entries = cache.list()?;
    let bytes = entries.iter().map(|entry| entry.bytes).sum();
    let report = Listed { folder: cache.folder().to_owned(), bytes, entries };
    output::report(common.json, &report, listed)
}

fn listed(report: &Listed) -> String {
    let mut table = Table::new(&["entry", "size", "samples", "tokens", "last used", "saves"]);
    for info in &report.entries {
        let count = |of: fn(&data::Entry) -> usize| {
            info.entry.as_ref().map_or("not readable".into(), |entry| thousands(of(entry)))
        };
        // A clock that was set back makes an age of less than nothing.
        let age = info.used.elapsed().unwrap_or_default().as_secs_f64();
        table.row([
            info.key.chars().take(16).collect(),
            Bytes(info.bytes as usize).to_string(),
            count(|entry| entry.samples),
            count(|entry| entry.tokens),
            format!("{} ago", duration(age)),
            info.entry.as_ref().map_or(String::new(), |entry| duration(entry.encode_s)),
        ]);
    }
    let total = format!(
        "{}: {} entries, {}\n",
        report.folder.display(),
        report.entries.len(),
        Bytes(report.bytes as usize)
    );
    if report.entries.is_empty() { total } else { format!("{}{total}", table.text()) }
}

fn pruned(report: &Pruned) -> String {
    format!(
        "removed {} entries, {}; {} are left, {}\n",
        report.removed,
        Bytes(report.removed_bytes as usize),
        report.kept,
        Bytes(report.kept_bytes as usize)
    )
}
