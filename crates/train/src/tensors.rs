//! States of a model's tensors by SHA-256.

use engine::{Engine, EngineError, Part};
use program::ParamId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Every tensor, trained or frozen, after a number of steps: a line of `tensors.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// Steps done.
    pub(crate) step: usize,
    /// SHA-256 of each tensor's f32 values, little-endian, by name in the model's order.
    tensors: Map<String, Value>,
}

impl State {
    /// Of an engine, whatever its topology. On the first rank, while the others follow.
    ///
    /// # Errors
    /// Another rank failed.
    pub(crate) fn of(engine: &Engine<'_>, step: usize) -> Result<State, EngineError> {
        let mut tensors = Map::new();
        for id in engine.graph.param_ids() {
            tensors.insert(name(engine, id), Value::String(sha256(engine, id)?));
        }
        Ok(State { step, tensors })
    }

    /// Over the lines `name sha256` of every tensor.
    pub(crate) fn sha256(&self) -> String {
        let mut whole = Sha256::new();
        for (name, hash) in &self.tensors {
            whole.update(format!("{name} {}\n", hash.as_str().unwrap_or_default()));
        }
        record::hex(&whole.finalize())
    }

    /// Those of `names` whose bytes are as in another state.
    pub(crate) fn same<'n>(&self, other: &State, names: &'n [String]) -> Vec<&'n str> {
        self.compared(other, names, true)
    }

    /// Those of `names` whose bytes are otherwise than in another state.
    pub(crate) fn differing<'n>(&self, other: &State, names: &'n [String]) -> Vec<&'n str> {
        self.compared(other, names, false)
    }

    fn compared<'n>(&self, other: &State, names: &'n [String], same: bool) -> Vec<&'n str> {
        let names = names.iter().map(String::as_str);
        names.filter(|&name| (self.tensors.get(name) == other.tensors.get(name)) == same).collect()
    }
}

/// Names of the tensors that are trained, and of those that are frozen.
pub(crate) fn names(engine: &Engine<'_>) -> (Vec<String>, Vec<String>) {
    let is_trained = |&id: &ParamId| engine.blueprint.store.slot(id).state.is_some();
    let (trained, frozen): (Vec<_>, Vec<_>) = engine.graph.param_ids().partition(is_trained);
    let named = |ids: Vec<ParamId>| ids.into_iter().map(|id| name(engine, id)).collect();
    (named(trained), named(frozen))
}

fn name(engine: &Engine<'_>, id: ParamId) -> String {
    engine.graph.param_info(id).name.to_string()
}

fn sha256(engine: &Engine<'_>, id: ParamId) -> Result<String, EngineError> {
    let mut hasher = Sha256::new();
    engine.visit_served(id, Part::Value, |numbers| {
        hasher.update(bytemuck::cast_slice(numbers));
        Ok::<(), EngineError>(())
    })?;
    Ok(record::hex(&hasher.finalize()))
}
