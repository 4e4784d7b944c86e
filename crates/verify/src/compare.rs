//! A run against the reference, and why it passes or not.

use crate::error::VerifyError;
use crate::judge;
use crate::perturb::Rule;
use crate::rank::{Run, world};
use crate::seen::{Seen, Step, Trace};
use crate::witness::{Log, Origin, first_difference};
use crate::work::{Pair, Settings, Work};
use fabric::{Cause, World};
use program::Ledger;
use serde::{Deserialize, Serialize};

/// Something that is not the reference's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The step, from 1.
    pub step: usize,
    /// What differs, such as `gradient of model.norm.weight`.
    pub what: String,
    /// The reference's hash or bits.
    pub reference: String,
    /// This run's.
    pub found: String,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether every byte is the same.
    pub same: bool,
    /// Values compared.
    pub compared: usize,
    /// Everything that differs, in the order in which it comes about.
    pub differences: Vec<Difference>,
    /// The first operation whose result differs, where one was found.
    pub origin: Option<Origin>,
    /// What this run saw.
    pub steps: Vec<Step>,
}

/// Runs the updates on a pair of topologies and compares them with `reference`, or with one rank's, which it returns too.
///
/// # Errors
/// Whatever makes a run prove nothing ([`VerifyError`]); differences are a verdict, not an error.
pub fn verify(
    work: &Work<'_>,
    settings: &Settings,
    pair: Pair,
    rule: Option<Rule>,
    reference: Option<&Trace>,
) -> Result<(Verdict, Trace), VerifyError> {
    pair.check()?;
    settings.check(work)?;
    let one = Pair::reference(pair.train.width);
    if pair == one && rule.is_none() {
        return Err(VerifyError::OneRank);
    }
    let processes = fabric::launched().is_some();
    let run = Run { work, settings, pair, rule, watch: None, processes };
    let reference = match reference {
        Some(trace) => trace.clone(),
        None => trace(&Run { pair: one, rule: None, processes: false, ..run })?,
    };
    judge::same_identity(&reference.identity, &work.identity(settings))?;
    judge::honest(&reference, settings)?;
    let found = trace(&run)?;
    judge::same_start(&reference.initial, &found.initial)?;
    judge::honest(&found, settings)?;
    let (compared, differences) = compare(&reference.steps, &found.steps);
    let origin = match differences.first() {
        None => None,
        // Processes meet once: they cannot run again under witnesses.
        Some(_) if processes => None,
        Some(first) => origin(&run, one, first)?,
    };
    let same = differences.is_empty();
    Ok((Verdict { same, compared, differences, origin, steps: found.steps }, reference))
}

/// Bytes that a verification needs at most: those of the engines of all ranks together, of the pair or of one rank.
///
/// # Errors
/// As [`verify`], before anything runs.
pub fn planned(work: &Work<'_>, settings: &Settings, pair: Pair) -> Result<Ledger, VerifyError> {
    pair.check()?;
    settings.check(work)?;
    let run = Run { work, settings, pair, rule: None, watch: None, processes: false };
    let one = Run { pair: Pair::reference(pair.train.width), ..run };
    let (pair, one) = (run.ledger(), one.ledger());
    Ok(if one.total() > pair.total() { one } else { pair })
}

/// Runs on every rank. Every training rank gathers wholes, which must be the first one's: that speaks for all.
fn trace(run: &Run<'_>) -> Result<Trace, VerifyError> {
    let world = World::new(&world(&run.pair));
    let ranks = match run.processes {
        true => world.run_process(|seat| run.rank(seat)).map(|mine| vec![mine]),
        false => world.run(|seat| run.rank(seat)),
    };
    let mut ranks = ranks.map_err(|error| match error.cause {
        Cause::Error(error) => error,
        cause => VerifyError::Rank {
            rank: error.rank,
            operation: error.operation,
            message: cause.to_string(),
        },
    })?;
    ranks.truncate(run.pair.train.ranks());
    judge::same_ranks(&ranks)?;
    let Seen { initial, steps } = ranks.swap_remove(0);
    Ok(Trace { identity: run.work.identity(run.settings), initial, steps })
}

/// Values compared, and those that differ.
fn compare(reference: &[Step], steps: &[Step]) -> (usize, Vec<Difference>) {
    let (mut compared, mut differences) = (0, Vec::new());
    for (theirs, ours) in reference.iter().zip(steps) {
        let (theirs_fields, ours_fields) = (theirs.fields(), ours.fields());
        compared += theirs_fields.len() + 1;
        if theirs_fields.len() != ours_fields.len() {
            let (reference, found) =
                (theirs_fields.len().to_string(), ours_fields.len().to_string());
            let what = "number of compared values".into();
            differences.push(Difference { step: ours.step, what, reference, found });
        }
        for ((what, reference), (_, found)) in theirs_fields.into_iter().zip(ours_fields) {
            if reference != found {
                differences.push(Difference { step: ours.step, what, reference, found });
            }
        }
        if ours.differing_log_prob_bytes > 0 {
            differences.push(Difference {
                step: ours.step,
                what: "bytes of log-probs between rollout and training".into(),
                reference: "0".into(),
                found: ours.differing_log_prob_bytes.to_string(),
            });
        }
    }
    (compared, differences)
}

/// Runs both again under witnesses and finds the first operation that differs.
fn origin(
    run: &Run<'_>,
    one: Pair,
    difference: &Difference,
) -> Result<Option<Origin>, VerifyError> {
    let (step, first) = (difference.step, difference.what.as_str());
    let settings = &Settings { steps: step, ..*run.settings };
    let reference = [Log::default()];
    let watch = Some((step, reference.as_slice()));
    trace(&Run { settings, pair: one, rule: None, watch, ..*run })?;
    let size = run.pair.train.ranks().max(run.pair.rollout.ranks());
    let logs: Vec<Log> = (0..size).map(|_| Log::default()).collect();
    trace(&Run { settings, watch: Some((step, &logs)), ..*run })?;
    let mut origin = first_difference(&run.work.graph, &reference[0], &logs);
    // Tokens are chosen by the host: the first pass that differs was given other ones.
    if let Some(origin) = origin.as_mut().filter(|o| first == "tokens" && o.tensor == EMBEDDED) {
        origin.what = "Sample: other tokens were chosen from the same logits".into();
    }
    Ok(origin)
}

/// The value that the first operation of a forward pass makes.
const EMBEDDED: &str = "embed";
