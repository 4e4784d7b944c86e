//! What a record says of a run: settings, the identity of its data.

use std::collections::BTreeMap;

use data::epoch_order;
use record::{DataRecord, Record, Setting};
use serde_json::{Map, Value, json};
use train::Requested;
use train::contents::{self as of_train, About};

use crate::prompts::{Pair, Prompt};
use crate::run::Data;
use crate::settings::{Method, Resolved, RlSettings};

/// Settings beside those of training that a resumed run may have otherwise: they change no bit of it.
const FREE: [&str; 3] = ["rollout_sequences", "rollout_tp", "rollout_cp"];

/// Name of the setting that is one of several kinds, with what the kind takes.
const REWARD: &str = "reward";

/// What a run says of itself.
pub(crate) fn about(
    requested: &Requested<RlSettings>,
    resolved: &Resolved,
    data: &Data<'_>,
) -> About<'static> {
    let mut hashes = BTreeMap::new();
    let mut put =
        |key: &str, hash: blake3::Hash| hashes.insert(key.to_owned(), hash.to_hex().to_string());
    put(
        "data",
        if data.pairs.is_empty() { of_prompts(data.prompts) } else { of_pairs(data.pairs) },
    );
    if !data.eval.is_empty() {
        put("evaluation_data", of_prompts(data.eval));
    }
    let order = order(resolved, data);
    put("order", order);
    About {
        kind: "rl",
        settings: settings(requested, resolved),
        free: [&of_train::FREE[..], &FREE[..]].concat(),
        hashes,
        profile: resolved.train.profile.value,
        lease_bytes: resolved.train.memory.as_ref().map(|chosen| chosen.value.0),
        steps: resolved.steps(),
        data: data_record(data, order),
    }
}

/// Every setting that the method reads; what a grader takes is told with the grader.
fn settings(requested: &Requested<RlSettings>, resolved: &Resolved) -> Vec<Setting> {
    let mut settings =
        of_train::settings(&requested.settings, &requested.sources, resolved.by_key(requested));
    let known: Vec<String> = settings.iter().map(|setting| setting.key.clone()).collect();
    let asked = serde_json::to_value(&requested.settings).unwrap_or(Value::Null);
    let rest = requested.sources.iter().filter(|(key, _)| !known.contains(key));
    settings.extend(rest.map(|(key, source)| Setting {
        key: key.clone(),
        requested: asked[key].clone(),
        source: json!(source),
        resolved: asked[key].clone(),
        why: format!("{source}; part of `{REWARD}`"),
    }));
    settings
}

/// The method of a recorded run with its settings as they ran.
///
/// # Errors
/// A record whose settings this version does not have, or of another kind of run.
pub fn method(record: &Record) -> Result<Method, serde_json::Error> {
    let mut chosen = Map::new();
    for Setting { key, resolved, why, .. } in &record.settings {
        chosen.insert(key.clone(), json!({"value": resolved, "why": why}));
    }
    let absent = |key: &str| record.setting(key).is_none_or(|setting| setting.resolved.is_null());
    for key in ["kl_estimator", "kl_in"] {
        if absent(key) {
            chosen.insert(key.into(), Value::Null);
        }
    }
    let name = record.setting("method").map_or(Value::Null, |setting| setting.resolved.clone());
    let name = name.as_str().unwrap_or_default().to_owned();
    serde_json::from_value(json!({name: chosen}))
}

fn data_record(data: &Data<'_>, order: blake3::Hash) -> DataRecord {
    let tokens = |prompts: &[Prompt]| prompts.iter().map(|p| p.ids.len()).sum::<usize>();
    let completions = |pair: &Pair| pair.chosen.len() + pair.rejected.len();
    let supervised: usize = data.pairs.iter().map(completions).sum();
    let of_pairs: usize = data.pairs.iter().map(|p| 2 * p.prompt.ids.len() + completions(p)).sum();
    let evaluation = match data.eval {
        [] => Value::Null,
        eval => json!({"samples": eval.len(), "tokens": tokens(eval)}),
    };
    DataRecord {
        samples: data.prompts.len() + data.pairs.len(),
        tokens: tokens(data.prompts) + of_pairs,
        supervised,
        order: order.to_hex().to_string(),
        evaluation,
        ..DataRecord::default()
    }
}

/// Which prompts or pairs the first epoch sees, in order.
fn order(resolved: &Resolved, data: &Data<'_>) -> blake3::Hash {
    let total = data.prompts.len() + data.pairs.len();
    let mut hasher = blake3::Hasher::new();
    for index in epoch_order(total, resolved.train.seed.value, 0) {
        hasher.update(&(index as u64).to_le_bytes());
    }
    hasher.finalize()
}

fn ids(hasher: &mut blake3::Hasher, ids: &[u32]) {
    hasher.update(&(ids.len() as u64).to_le_bytes());
    hasher.update(bytemuck::cast_slice(ids));
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// What is generated from and graded by: tokens, the answer, and every other field.
fn of_prompts(prompts: &[Prompt]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for prompt in prompts {
        ids(&mut hasher, &prompt.ids);
        text(&mut hasher, &prompt.answer.as_ref().map_or(String::new(), Value::to_string));
        text(&mut hasher, &Value::Object(prompt.fields.clone()).to_string());
    }
    hasher.finalize()
}

fn of_pairs(pairs: &[Pair]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for pair in pairs {
        for list in [&pair.prompt.ids, &pair.chosen, &pair.rejected] {
            ids(&mut hasher, list);
        }
    }
    hasher.finalize()
}
