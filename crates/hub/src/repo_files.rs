//! Which files of a hub repository a model needs.

use std::collections::BTreeSet;

use serde_json::Value;

/// The model's configuration, without which a repository holds no model.
pub(crate) const CONFIG: &str = "config.json";
/// The list of shards of a checkpoint in several files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// A checkpoint in one file.
const SINGLE: &str = "model.safetensors";

/// Files beside the weights that are taken where a repository has them.
const OPTIONAL: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The most shards that an index may name.
const SHARD_LIMIT: usize = 4096;

/// The files to take besides the weights, the configuration first.
pub(crate) fn small_files(present: &BTreeSet<String>) -> Result<Vec<String>, String> {
    if !present.contains(CONFIG) {
        return Err("it has no config.json".to_owned());
    }
    let optional = OPTIONAL.iter().filter(|name| present.contains(**name));
    Ok([&CONFIG].into_iter().chain(optional).map(|name| (*name).to_owned()).collect())
}

/// Where the weights are.
pub(crate) enum Weights {
    /// In one file.
    Single(String),
    /// In the shards that the index names.
    Sharded,
}

/// Finds the weights.
pub(crate) fn weights(present: &BTreeSet<String>) -> Result<Weights, String> {
    if present.contains(INDEX) {
        return Ok(Weights::Sharded);
    }
    if present.contains(SINGLE) {
        return Ok(Weights::Single(SINGLE.to_owned()));
    }
    let other: Vec<&str> = present
        .iter()
        .map(String::as_str)
        .filter(|name| [".bin", ".gguf", ".pth", ".pt"].iter().any(|end| name.ends_with(end)))
        .collect();
    Err(match other[..] {
        [] => "it has no weights (neither model.safetensors nor its index)".to_owned(),
        _ => format!(
            "it has no safetensors weights, only {}; download a .gguf file and give its path",
            other.join(", ")
        ),
    })
}

/// The shards that an index names, each checked to be a file of the repository.
pub(crate) fn shards(index: &[u8], present: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let index: Value =
        serde_json::from_slice(index).map_err(|error| format!("{INDEX} is not JSON: {error}"))?;
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| format!("{INDEX} has no `weight_map` object"))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let shard = shard
            .as_str()
            .ok_or_else(|| format!("{INDEX}: the shard of {tensor} is not a string"))?;
        if !present.contains(shard) {
            return Err(format!("{INDEX} names {shard}, which is not in the repository"));
        }
        shards.insert(shard.to_owned());
    }
    if shards.is_empty() || shards.len() > SHARD_LIMIT {
        return Err(format!(
            "{INDEX} names {} shards; it must be between 1 and {SHARD_LIMIT}",
            shards.len()
        ));
    }
    Ok(shards.into_iter().collect())
}

/// Whether a name from the hub stays inside the folder that it is put in.
pub(crate) fn is_safe(name: &str) -> bool {
    !name.is_empty()
        && !name.contains('\\')
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_model_is_its_configuration_its_text_files_and_its_weights() {
        let files = present(&["README.md", "model.safetensors", "tokenizer.json", "config.json"]);
        assert_eq!(small_files(&files).unwrap(), ["config.json", "tokenizer.json"]);
        assert!(matches!(weights(&files), Ok(Weights::Single(_))));
        assert!(small_files(&present(&["model.safetensors"])).is_err());
    }

    #[test]
    fn weights_of_other_kinds_are_named() {
        let reason = weights(&present(&["pytorch_model.bin", "x.gguf"])).err().unwrap();
        assert!(reason.contains("pytorch_model.bin, x.gguf"), "{reason}");
        assert!(weights(&present(&["config.json"])).is_err());
    }

    #[test]
    fn an_index_names_shards_that_are_there() {
        let files = present(&["a.safetensors", "b.safetensors"]);
        let read = |text: &str| shards(text.as_bytes(), &files);
        let good =
            r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#;
        assert_eq!(read(good).unwrap(), ["a.safetensors", "b.safetensors"]);
        for bad in [
            "{",
            "{}",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": {"x": 1}}"#,
            r#"{"weight_map": {"x": "c.safetensors"}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_not_safe() {
        assert!(is_safe("a.json") && is_safe("sub/a.json"));
        for name in ["", "../a", "a/../b", "/a", "a//b", "a\\b", "."] {
            assert!(!is_safe(name), "{name}");
        }
    }
}
