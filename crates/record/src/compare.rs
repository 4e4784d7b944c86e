//! What differs between two runs: settings, identities, and the first step whose bits do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::RecordError;
use crate::record::{Record, Status};
use crate::rows::{self, EVALS_FILE, SECONDS, STEPS_FILE, TENSORS_FILE};
use crate::seal::read_seal;

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// What.
    pub what: String,
    /// In the first run; null where it has none.
    pub first: Value,
    /// In the second.
    pub second: Value,
}

/// The first step of which two runs logged different numbers, or evaluated to different ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstStep {
    /// The step, from 1.
    pub step: usize,
    /// Its fields that differ.
    pub fields: Vec<Pair>,
}

/// What differs between two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// Settings as they ran.
    pub settings: Vec<Pair>,
    /// Hashes of the identity: data, weights, programs, binary, …
    pub identities: Vec<Pair>,
    /// Arithmetic, kernels, machine, code: they may differ with the same bits.
    pub surroundings: Vec<Pair>,
    /// Steps that both runs logged.
    pub common_steps: usize,
    /// The first of them that differs; wall-clock time does not count.
    pub first_differing_step: Option<FirstStep>,
    /// The first state in which tensors differ, by steps done, with the names of those that do.
    pub first_differing_tensors: Option<(usize, Vec<String>)>,
    /// States of tensors that both runs recorded.
    pub common_states: usize,
    /// Evaluations that both runs made.
    pub common_evaluations: usize,
    /// The first of them that differs; wall-clock time does not count.
    pub first_differing_evaluation: Option<FirstStep>,
    /// Files of tensors in the products of two finished runs, by their seals.
    pub product_files: usize,
    /// Those of them that differ, or that one product has alone.
    pub differing_product_files: Vec<String>,
}

impl Difference {
    /// Whether there is any number, tensor or file that both runs have.
    pub fn has_common(&self) -> bool {
        let common = [self.common_steps, self.common_states, self.common_evaluations];
        common.iter().chain([&self.product_files]).any(|&count| count > 0)
    }

    /// Whether every number and tensor that both runs have is the same, and there is one.
    pub fn same_bits(&self) -> bool {
        self.has_common()
            && self.first_differing_step.is_none()
            && self.first_differing_tensors.is_none()
            && self.first_differing_evaluation.is_none()
            && self.differing_product_files.is_empty()
    }
}

/// A line of `tensors.jsonl`.
#[derive(Deserialize)]
struct State {
    step: usize,
    tensors: BTreeMap<String, String>,
}

/// Compares the runs in two folders.
///
/// # Errors
/// As [`Record::read`] and [`rows::read`].
pub fn compare(first: &Path, second: &Path) -> Result<Difference, RecordError> {
    let (a, b) = (Record::read(first)?, Record::read(second)?);
    let steps = [rows::read(first, STEPS_FILE)?, rows::read(second, STEPS_FILE)?];
    let states = [rows::read(first, TENSORS_FILE)?, rows::read(second, TENSORS_FILE)?];
    let (common_steps, first_differing_step) = first_step(&steps[0], &steps[1]);
    let (common_states, first_differing_tensors) = first_state(&states[0], &states[1]);
    let evals = [rows::read(first, EVALS_FILE)?, rows::read(second, EVALS_FILE)?];
    let (common_evaluations, first_differing_evaluation) = first_step(&evals[0], &evals[1]);
    let (product_files, differing_product_files) =
        products(&product(first, &a)?, &product(second, &b)?);
    Ok(Difference {
        settings: pairs(&settings(&a), &settings(&b)),
        identities: pairs(&object(&a.identity.hashes), &object(&b.identity.hashes)),
        surroundings: pairs(&surroundings(&a), &surroundings(&b)),
        common_steps,
        first_differing_step,
        first_differing_tensors,
        common_states,
        common_evaluations,
        first_differing_evaluation,
        product_files,
        differing_product_files,
    })
}

/// Hashes of the files of tensors that a finished run made, by path in its product: what its seal says.
fn product(folder: &Path, record: &Record) -> Result<BTreeMap<String, String>, RecordError> {
    let Status::Finished { product, .. } = &record.status else { return Ok(BTreeMap::new()) };
    let files = read_seal(folder, &record.status)?.map(|seal| seal.files).unwrap_or_default();
    let prefix = format!("{}/", product.display());
    let of = |(path, hash): (String, String)| {
        let path = path.strip_prefix(&prefix)?.to_owned();
        path.ends_with(".safetensors").then_some((path, hash))
    };
    Ok(files.into_iter().filter_map(of).collect())
}

/// Files of two products, and those that are not the same in both; none where one run has no product.
fn products(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> (usize, Vec<String>) {
    if a.is_empty() || b.is_empty() {
        return (0, Vec::new());
    }
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let count = names.len();
    let differing = names.into_iter().filter(|name| a.get(*name) != b.get(*name));
    (count, differing.cloned().collect())
}

fn settings(record: &Record) -> Map<String, Value> {
    record.settings.iter().map(|s| (s.key.clone(), s.resolved.clone())).collect()
}

fn surroundings(record: &Record) -> Map<String, Value> {
    let last = record.sessions.last();
    [
        ("samebit", json(&record.version)),
        ("device", json(&record.arithmetic.device)),
        ("kernels", json(&record.arithmetic.kernels)),
        ("processor", json(&record.machine.processor)),
        ("host", json(&record.machine.host)),
        ("system", json(&record.machine.system)),
        ("git", json(&record.git)),
        ("binary", json(&last.map(|session| &session.binary.blake3))),
        ("compiled programs", json(&record.programs)),
        ("adapters", json(&record.adapters)),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

fn object<T: Serialize>(map: &BTreeMap<String, T>) -> Map<String, Value> {
    map.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

fn pairs(a: &Map<String, Value>, b: &Map<String, Value>) -> Vec<Pair> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let of = |map: &Map<String, Value>, key: &String| map.get(key).cloned().unwrap_or(Value::Null);
    keys.into_iter()
        .map(|key| Pair { what: key.clone(), first: of(a, key), second: of(b, key) })
        .filter(|pair| pair.first != pair.second)
        .collect()
}

/// A line of `steps.jsonl` or `evals.jsonl`, whatever kind of run wrote it.
type Line = Map<String, Value>;

/// Fields that say how long something took, how long the whole run is, and what earlier evaluations found, of which one
/// run may have made more: no bit of the step.
const BESIDE_THE_STEP: [&str; 5] = [SECONDS, "steps", "best_loss", "best_step", "since_best"];

/// Lines of the same steps: how many both have, and the first that differs.
fn first_step(a: &[Line], b: &[Line]) -> (usize, Option<FirstStep>) {
    let step = |line: &Line| line.get("step").and_then(Value::as_u64);
    let in_b: BTreeMap<u64, &Line> =
        b.iter().filter_map(|line| Some((step(line)?, line))).collect();
    let both = a.iter().filter_map(|line| Some((step(line)?, line, *in_b.get(&step(line)?)?)));
    let (mut common, mut first) = (0, None);
    for (step, a, b) in both {
        common += 1;
        let mut fields = pairs(a, b);
        fields.retain(|pair| !BESIDE_THE_STEP.contains(&pair.what.as_str()));
        if first.is_none() && !fields.is_empty() {
            first = Some(FirstStep { step: step as usize, fields });
        }
    }
    (common, first)
}

fn first_state(a: &[State], b: &[State]) -> (usize, Option<(usize, Vec<String>)>) {
    let mut common = 0;
    for mine in a {
        let Some(theirs) = b.iter().find(|state| state.step == mine.step) else { continue };
        common += 1;
        let names: BTreeSet<&String> = mine.tensors.keys().chain(theirs.tensors.keys()).collect();
        let differing: Vec<String> = names
            .into_iter()
            .filter(|name| mine.tensors.get(*name) != theirs.tensors.get(*name))
            .cloned()
            .collect();
        if !differing.is_empty() {
            return (common, Some((mine.step, differing)));
        }
    }
    (common, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn lines_of_the_same_step_are_compared_wherever_they_stand() {
        let every =
            lines(r#"[{"step": 1, "loss": 5}, {"step": 2, "loss": 4}, {"step": 4, "loss": 3}]"#);
        let some =
            lines(r#"[{"step": 2, "loss": 4}, {"step": 4, "loss": 3}, {"step": 6, "loss": 1}]"#);
        assert_eq!(first_step(&every, &some), (2, None));
        let other = lines(r#"[{"step": 4, "loss": 2}]"#);
        let (common, first) = first_step(&every, &other);
        let FirstStep { step, fields } = first.unwrap();
        assert_eq!((common, step, fields[0].what.as_str()), (1, 4, "loss"));
        assert_eq!(first_step(&every, &lines(r#"[{"step": 9}, {"loss": 5}]"#)), (0, None));
    }

    #[test]
    fn what_is_no_bit_of_a_step_does_not_count() {
        let a = lines(
            r#"[{"step": 4, "loss": 3, "steps": 4, "seconds": 1, "best_loss": 2, "best_step": 3, "since_best": 1}]"#,
        );
        let b = lines(
            r#"[{"step": 4, "loss": 3, "steps": 8, "seconds": 2, "best_loss": 3, "best_step": 4, "since_best": 0}]"#,
        );
        assert_eq!(first_step(&a, &b), (1, None));
    }

    #[test]
    fn runs_with_nothing_in_common_have_not_the_same_bits() {
        let found = Difference::default();
        assert!(!found.same_bits());
        for found in [
            Difference { common_steps: 1, ..found.clone() },
            Difference { common_states: 1, ..found.clone() },
            Difference { common_evaluations: 1, ..found.clone() },
            Difference { product_files: 1, ..found.clone() },
        ] {
            assert!(found.same_bits(), "{found:?}");
        }
    }
}
