//! `samebit diff`: what differs between two runs.

use crate::output;
use anyhow::Result;
use record::{Difference, Pair};
use std::path::PathBuf;

/// Arguments of `samebit diff`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first run's folder
    first: PathBuf,
    /// The second run's folder
    second: PathBuf,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let found = record::compare(&args.first, &args.second)?;
    output::report(args.json, &found, text)
}

fn text(found: &Difference) -> String {
    let mut text = String::new();
    for (title, pairs) in [
        ("settings", &found.settings),
        ("identity", &found.identities),
        ("around it (may differ with the same bits)", &found.surroundings),
    ] {
        if pairs.is_empty() {
            text += &format!("{title}: the same\n");
        } else {
            text += &format!("{title}\n{}", lines(pairs));
        }
    }
    text += &match &found.first_differing_step {
        None => format!("steps: the same numbers in all {} that both have\n", found.common_steps),
        Some(at) => {
            format!("steps: step {} is the first that differs\n{}", at.step, lines(&at.fields))
        }
    };
    text += &match &found.first_differing_tensors {
        None => format!("trained tensors: the same bytes in all {} states\n", found.common_states),
        Some((step, names)) => {
            const NAMED: usize = 5;
            let more = names.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
            format!("trained tensors: differ after step {step}: {}{more}\n", named.join(", "))
        }
    };
    text += if found.same_bits() {
        "the same bits wherever both runs have any\n"
    } else {
        "NOT the same bits\n"
    };
    text
}

fn lines(pairs: &[Pair]) -> String {
    let said = |value: &serde_json::Value| {
        const MOST: usize = 160;
        let text = value.to_string();
        match text.char_indices().nth(MOST) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    };
    let line =
        |pair: &Pair| format!("  {}: {} | {}\n", pair.what, said(&pair.first), said(&pair.second));
    pairs.iter().map(line).collect()
}
