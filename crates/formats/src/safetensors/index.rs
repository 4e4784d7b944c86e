//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeSet, HashMap};
use std::path::{Component, Path};

use serde::Deserialize;

use super::IndexError;
use super::header::Pairs;

/// The largest index file, bytes.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;
/// The most shards of a checkpoint.
pub const MAX_SHARDS: usize = 10_000;

/// A parsed index.
pub(crate) struct Index {
    /// Tensor name → shard file name.
    pub(crate) shard_of: HashMap<String, String>,
    /// The shards, in order of their names.
    pub(crate) shards: BTreeSet<String>,
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: Pairs,
}

impl Index {
    pub(crate) fn parse(json: &[u8]) -> Result<Self, IndexError> {
        let raw: RawIndex = serde_json::from_slice(json).map_err(IndexError::NotJson)?;
        let mut shard_of = HashMap::new();
        let mut shards = BTreeSet::new();
        for (name, shard) in raw.weight_map.0 {
            if !is_plain_file_name(&shard) {
                return Err(IndexError::BadShardName { shard });
            }
            shards.insert(shard.clone());
            if shard_of.contains_key(&name) {
                return Err(IndexError::DuplicateTensor { name });
            }
            shard_of.insert(name, shard);
        }
        if shards.is_empty() {
            return Err(IndexError::Empty);
        }
        if shards.len() > MAX_SHARDS {
            return Err(IndexError::TooManyShards { found: shards.len(), limit: MAX_SHARDS });
        }
        Ok(Self { shard_of, shards })
    }
}

/// Whether a name is one path component that stays in its folder.
fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Index, IndexError> {
        Index::parse(json.as_bytes())
    }

    #[test]
    fn an_index_is_parsed() {
        let index =
            parse(r#"{"metadata":{"total_size":8},"weight_map":{"a":"x.safetensors"}}"#).unwrap();
        assert_eq!(index.shard_of["a"], "x.safetensors");
        assert_eq!(index.shards.len(), 1);
    }

    #[test]
    fn each_wrong_index_has_its_error() {
        assert!(matches!(parse("{"), Err(IndexError::NotJson(_))));
        assert!(matches!(parse(r#"{"weight_map":{"a":1}}"#), Err(IndexError::NotJson(_))));
        assert!(matches!(parse(r#"{"weight_map":{}}"#), Err(IndexError::Empty)));
        let twice = r#"{"weight_map":{"a":"x","a":"y"}}"#;
        assert!(matches!(parse(twice), Err(IndexError::DuplicateTensor { name }) if name == "a"));
        for shard in ["../x", "/x", "a/b", "", ".", "x/"] {
            let json = serde_json::json!({"weight_map": {"a": shard}}).to_string();
            assert!(matches!(parse(&json), Err(IndexError::BadShardName { .. })), "{shard}");
        }
        let map: HashMap<String, String> =
            (0..=MAX_SHARDS).map(|i| (format!("t{i}"), format!("s{i}"))).collect();
        let json = serde_json::json!({ "weight_map": map }).to_string();
        assert!(matches!(parse(&json), Err(IndexError::TooManyShards { .. })));
    }
}
