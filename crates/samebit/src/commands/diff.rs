//! `samebit diff`: what differs between two runs.

use crate::output;
use crate::sealed::Sealed;
use anyhow::{Result, bail};
use record::{Difference, Pair, Record};
use serde::Serialize;
use std::path::PathBuf;

/// Arguments of `samebit diff`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first run's folder
    first: PathBuf,
    /// The second run's folder
    second: PathBuf,
    /// Exit with 1 where a number or a tensor differs, or the runs have none in common
    #[arg(long)]
    exit_code: bool,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Compared {
    #[serde(flatten)]
    found: Difference,
    /// Whether every number and tensor that both runs have is the same.
    same_bits: bool,
    /// How the seals of the two came out.
    seals: [Sealed; 2],
}

pub(crate) fn run(args: Args) -> Result<()> {
    let runs = [&args.first, &args.second];
    let seal = |run: &PathBuf| Sealed::of(run, &Record::read(run)?, None);
    let seals = [seal(runs[0])?, seal(runs[1])?];
    let intact = || -> Result<()> {
        runs.into_iter().zip(&seals).try_for_each(|(run, seal)| seal.intact(run))
    };
    let found = match record::compare(&args.first, &args.second) {
        Ok(found) => found,
        // What was changed may be what cannot be read.
        Err(error) => return intact().and(Err(error.into())),
    };
    let intact = intact();
    let (has_common, same_bits) = (found.has_common(), found.same_bits());
    let compared = Compared { found, same_bits, seals };
    output::report(args.json, &compared, |compared| text(&compared.found))?;
    intact?;
    if args.exit_code && !has_common {
        bail!("the runs have no step, state or product in common: nothing was compared");
    }
    if args.exit_code && !same_bits {
        bail!("the runs have not the same bits");
    }
    Ok(())
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
        None if found.common_steps == 0 => String::new(),
        None => format!("steps: the same numbers in all {} that both have\n", found.common_steps),
        Some(at) => {
            format!("steps: step {} is the first that differs\n{}", at.step, lines(&at.fields))
        }
    };
    text += &match &found.first_differing_evaluation {
        None if found.common_evaluations == 0 => String::new(),
        None => format!(
            "evaluations: the same numbers in all {} that both have\n",
            found.common_evaluations
        ),
        Some(at) => format!(
            "evaluations: that after step {} is the first that differs\n{}",
            at.step,
            lines(&at.fields)
        ),
    };
    text += &match &found.differing_product_files[..] {
        [] if found.product_files == 0 => String::new(),
        [] => format!("products: the same bytes in all {} files of tensors\n", found.product_files),
        files => format!("products: differ in {}\n", files.join(", ")),
    };
    text += &match &found.first_differing_tensors {
        None if found.common_states == 0 => String::new(),
        None => format!("tensors: the same bytes in all {} states\n", found.common_states),
        Some((step, names)) => {
            const NAMED: usize = 5;
            let more = names.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
            format!("tensors: differ after step {step}: {}{more}\n", named.join(", "))
        }
    };
    text += if !found.has_common() {
        "nothing to compare: no step, state or product that both have\n"
    } else if found.same_bits() {
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
