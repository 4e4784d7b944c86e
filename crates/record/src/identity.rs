//! What makes a run this run, and what changed of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The key that stands for every setting where changes are let pass.
pub const SETTINGS: &str = "settings";

/// Settings and hashes that decide a run's bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Values of the settings that can change a bit or the plan, by key.
    pub settings: BTreeMap<String, Value>,
    /// Hashes (and versions) by what they are of, a word each: `data`, `base_weights`, `program`, `template`, `binary`, …
    pub hashes: BTreeMap<String, String>,
}

/// Something that is not as it was when the run began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The setting's key, or what a hash is of.
    pub key: String,
    /// Whether it is a setting.
    pub setting: bool,
    /// Then.
    pub was: String,
    /// Now.
    pub is: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, setting, was, is } = self;
        if *setting {
            write!(f, "`{key}` was {was} and is {is}")
        } else {
            write!(f, "{key} (hash) was {was} and is {is}")
        }
    }
}

impl Change {
    /// Whether a list of keys lets it pass: by its key, or as one of the `settings`.
    pub fn allowed_by(&self, keys: &[String]) -> bool {
        keys.iter().any(|key| *key == self.key || (self.setting && key == SETTINGS))
    }
}

impl Identity {
    /// BLAKE3 over all of it, in hexadecimal.
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).expect("an identity is an object with string keys");
        blake3::hash(&text).to_hex().to_string()
    }

    /// Names of settings and of hashes.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.settings.keys().chain(self.hashes.keys()).map(String::as_str)
    }

    /// What is otherwise in `now`, settings first.
    pub fn changes(&self, now: &Identity) -> Vec<Change> {
        let mut changes = differing(&self.settings, &now.settings, true);
        changes.extend(differing(&self.hashes, &now.hashes, false));
        changes
    }
}

fn differing<T: PartialEq + ToString>(
    was: &BTreeMap<String, T>,
    is: &BTreeMap<String, T>,
    setting: bool,
) -> Vec<Change> {
    let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let text = |value: Option<&T>| value.map_or_else(|| "absent".to_owned(), T::to_string);
    keys.into_iter()
        .filter(|key| was.get(*key) != is.get(*key))
        .map(|key| Change {
            key: key.clone(),
            setting,
            was: text(was.get(key)),
            is: text(is.get(key)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn identity() -> Identity {
        Identity {
            settings: [("lr".to_owned(), json!(1e-4)), ("rank".to_owned(), json!(8))].into(),
            hashes: [("data".to_owned(), "aa".to_owned())].into(),
        }
    }

    #[test]
    fn a_setting_and_a_hash_change_the_hash_of_all() {
        let base = identity().hash();
        let mut other = identity();
        other.settings.insert("lr".into(), json!(2e-4));
        assert_ne!(other.hash(), base);
        let mut other = identity();
        other.hashes.insert("data".into(), "ab".into());
        assert_ne!(other.hash(), base);
        assert_eq!(identity().hash(), base);
    }

    #[test]
    fn every_setting_and_hash_has_its_key() {
        assert_eq!(identity().keys().collect::<Vec<_>>(), ["lr", "rank", "data"]);
    }

    #[test]
    fn what_changed_is_named_with_both_values() {
        let was = identity();
        assert!(was.changes(&identity()).is_empty());
        let mut is = identity();
        is.settings.insert("lr".into(), json!(2e-4));
        is.settings.remove("rank");
        is.hashes.insert("data".into(), "bb".into());
        is.hashes.insert("template".into(), "cc".into());
        let said: Vec<String> = was.changes(&is).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "`lr` was 0.0001 and is 0.0002",
                "`rank` was 8 and is absent",
                "data (hash) was aa and is bb",
                "template (hash) was absent and is cc",
            ]
        );
    }

    #[test]
    fn a_change_passes_by_its_own_key_only() {
        let mut is = identity();
        is.settings.insert("lr".into(), json!(2e-4));
        is.hashes.insert("data".into(), "bb".into());
        let [lr, data] = &identity().changes(&is)[..] else { panic!() };
        let allowed = |change: &Change, key: &str| change.allowed_by(&[key.to_owned()]);
        assert!(allowed(lr, "lr") && allowed(lr, "settings") && !allowed(lr, "data"));
        assert!(allowed(data, "data") && !allowed(data, "settings") && !allowed(data, "lr"));
    }
}
