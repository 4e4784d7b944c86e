//! What differs between two runs: settings, identities, and the first step whose bits do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::RecordError;
use crate::record::Record;
use crate::rows::{self, SECONDS, STEPS_FILE, TENSORS_FILE};

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

/// The first step of which two runs logged different numbers.
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
    /// The first state in which trained tensors differ, by steps done, with the names of those that do.
    pub first_differing_tensors: Option<(usize, Vec<String>)>,
    /// States of trained tensors that both runs recorded.
    pub common_states: usize,
}

impl Difference {
    /// Whether every number and tensor that both runs have is the same.
    pub fn same_bits(&self) -> bool {
        self.first_differing_step.is_none() && self.first_differing_tensors.is_none()
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
    Ok(Difference {
        settings: pairs(&settings(&a), &settings(&b)),
        identities: pairs(&object(&a.identity.hashes), &object(&b.identity.hashes)),
        surroundings: pairs(&surroundings(&a), &surroundings(&b)),
        common_steps,
        first_differing_step,
        first_differing_tensors,
        common_states,
    })
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

/// A line of `steps.jsonl`, whatever kind of run wrote it.
type Line = Map<String, Value>;

fn first_step(a: &[Line], b: &[Line]) -> (usize, Option<FirstStep>) {
    let differing = |at: usize, a: &Line, b: &Line| {
        let mut fields = pairs(a, b);
        fields.retain(|pair| pair.what != SECONDS);
        (!fields.is_empty()).then_some(FirstStep { step: at + 1, fields })
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
