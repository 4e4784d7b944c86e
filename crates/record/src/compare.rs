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
    /// Whether every number and tensor that both runs have is the same.
    pub fn same_bits(&self) -> bool {
        self.first_differing_step.is_none()
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
    let files = read_seal(folder)?.map(|seal| seal.files).unwrap_or_default();
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
        ("profile", json(&record.arithmetic.profile)),
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

fn first_step(a: &[Line], b: &[Line]) -> (usize, Option<FirstStep>) {
    let differing = |at: usize, a: &Line, b: &Line| {
        let mut fields = pairs(a, b);
        fields.retain(|pair| pair.what != SECONDS);
        let step = a.get("step").and_then(Value::as_u64).map_or(at + 1, |step| step as usize);
        (!fields.is_empty()).then_some(FirstStep { step, fields })
    };
    let mut common = a.iter().zip(b).enumerate();
    let first = common.find_map(|(at, (a, b))| differing(at, a, b));
    (a.len().min(b.len()), first)
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

    #[test]
    fn a_line_that_names_no_step_is_counted_from_one() {
        let lines = |text: &str| serde_json::from_str::<Vec<Line>>(text).unwrap();
        let (a, b) =
            (lines(r#"[{"loss": 1}, {"loss": 2}]"#), lines(r#"[{"loss": 1}, {"loss": 3}, {}]"#));
        let (common, first) = first_step(&a, &b);
        assert_eq!((common, first.unwrap().step), (2, 2));
        let named = lines(r#"[{"loss": 9, "step": 7}]"#);
        assert_eq!(first_step(&a, &named).1.unwrap().step, 1);
        assert_eq!(first_step(&named, &a).1.unwrap().step, 7);
    }
}
