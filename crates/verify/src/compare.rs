//! A run against the reference, and why it passes or not.

use crate::error::VerifyError;
use crate::perturb::Rule;
use crate::rank::{Run, world};
use crate::seen::Step;
use crate::witness::{Log, Origin, first_difference};
use crate::work::{Pair, Settings, Work};
use fabric::{Cause, World};
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
    reference: Option<&[Step]>,
) -> Result<(Verdict, Vec<Step>), VerifyError> {
    pair.check()?;
    settings.check(work)?;
    let one = Pair::reference(pair.train.width);
    let reference = match reference {
        Some(steps) => steps.to_vec(),
        None => steps(&Run { work, settings, pair: one, rule: None, watch: None })?,
    };
    honest(&reference)?;
    let steps = steps(&Run { work, settings, pair, rule, watch: None })?;
    let (compared, differences) = compare(&reference, &steps);
    let origin = match differences.first() {
        None => None,
        Some(first) => origin(work, settings, (one, pair), rule, first)?,
    };
    if differences.is_empty() {
        honest(&steps)?;
    }
    Ok((Verdict { same: differences.is_empty(), compared, differences, origin, steps }, reference))
}

/// Runs on every rank; all that train must have seen the same.
fn steps(run: &Run<'_>) -> Result<Vec<Step>, VerifyError> {
    let ranks = World::new(&world(&run.pair)).run(|seat| run.rank(seat));
    let mut ranks = ranks.map_err(|error| match error.cause {
        Cause::Error(error) => error,
        cause => VerifyError::Rank {
            rank: error.rank,
            operation: error.operation,
            message: cause.to_string(),
        },
    })?;
    // Every training rank gathers the same wholes: the first one speaks for all.
    Ok(ranks.swap_remove(0))
}

/// What no pass may hide.
fn honest(steps: &[Step]) -> Result<(), VerifyError> {
    for (index, step) in steps.iter().enumerate() {
        let Some(before) = index.checked_sub(1).map(|i| &steps[i]) else { continue };
        let pairs = step.parameters.iter().zip(&before.parameters);
        let unchanged =
            pairs.filter(|(now, before)| !now.zero_gradient && now.value == before.value);
        if let Some((parameter, _)) = unchanged.into_iter().next() {
            let parameter = parameter.name.clone();
            return Err(VerifyError::Unchanged { step: step.step, parameter });
        }
    }
    Ok(())
}

/// Values compared, and those that differ.
fn compare(reference: &[Step], steps: &[Step]) -> (usize, Vec<Difference>) {
    let (mut compared, mut differences) = (0, Vec::new());
    if reference.len() != steps.len() {
        differences.push(Difference {
            step: reference.len().min(steps.len()) + 1,
            what: "missing step".into(),
            reference: reference.len().to_string(),
            found: steps.len().to_string(),
        });
    }
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
    work: &Work<'_>,
    settings: &Settings,
    (one, pair): (Pair, Pair),
    rule: Option<Rule>,
    difference: &Difference,
) -> Result<Option<Origin>, VerifyError> {
    let (step, first) = (difference.step, difference.what.as_str());
    let settings = &Settings { steps: step, ..*settings };
    let reference = [Log::default()];
    let watch = Some((step, reference.as_slice()));
    steps(&Run { work, settings, pair: one, rule: None, watch })?;
    let size = pair.train.ranks().max(pair.rollout.ranks());
    let logs: Vec<Log> = (0..size).map(|_| Log::default()).collect();
    let watched = steps(&Run { work, settings, pair, rule, watch: Some((step, &logs)) });
    watched?;
    let mut origin = first_difference(&work.graph, &reference[0], &logs);
    // Tokens are chosen by the host: the first pass that differs was given other ones.
    if let Some(origin) = origin.as_mut().filter(|o| first == "tokens" && o.tensor == EMBEDDED) {
        origin.what = "Sample: other tokens were chosen from the same logits".into();
    }
    Ok(origin)
}

/// The value that the first operation of a forward pass makes.
const EMBEDDED: &str = "embed";
