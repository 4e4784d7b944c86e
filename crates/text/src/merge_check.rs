//! A check of `tokenizer.json` that its library leaves out.
//!
//! While it joins the two parts of a merge, the library writes into a buffer as long as the longest token and indexes it
//! unchecked, so a merge whose result is longer (and therefore no token) makes it panic.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

/// The bytes of the longest token.
#[derive(Default)]
struct Vocabulary(usize);

/// The bytes of the two parts.
struct Merge(usize, usize);

/// Says what is wrong with the merges of a `tokenizer.json`, or that it is no such file.
pub(crate) fn check(json: &[u8]) -> Result<(), String> {
    let File { model } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let prefix = model.continuing_subword_prefix.map_or(0, |prefix| prefix.len());
    for (index, Merge(left, right)) in model.merges.into_iter().enumerate() {
        let right = right
            .checked_sub(prefix)
            .ok_or_else(|| format!("merge {index} lacks the continuing subword prefix"))?;
        if left + right > model.vocab.0 {
            return Err(format!("merge {index} makes a token that is not in the vocabulary"));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Longest;

        impl<'de> Visitor<'de> for Longest {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut longest = 0;
                while let Some((token, _)) = map.next_entry::<String, IgnoredAny>()? {
                    longest = longest.max(token.len());
                }
                Ok(Vocabulary(longest))
            }

            // Unigram vocabularies are lists, and have no merges.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocabulary(0))
            }
        }

        deserializer.deserialize_any(Longest)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;

        impl<'de> Visitor<'de> for Parts {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, as a list or separated by a space")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
                let (left, right) =
                    text.split_once(' ').ok_or_else(|| E::custom("a merge without a space"))?;
                Ok(Merge(left.len(), right.len()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let short = || A::Error::custom("a merge of fewer than two tokens");
                let left: String = list.next_element()?.ok_or_else(short)?;
                let right: String = list.next_element()?.ok_or_else(short)?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Merge(left.len(), right.len()))
            }
        }

        deserializer.deserialize_any(Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(merges: &str, more: &str) -> Result<(), String> {
        let json = format!(
            r#"{{"model": {{"vocab": {{"a": 0, "b": 1, "ab": 2}}, "merges": {merges}{more}}}}}"#
        );
        check(json.as_bytes())
    }

    #[test]
    fn merges_must_fit_the_longest_token() {
        assert_eq!(model(r#"[["a", "b"], "a b"]"#, ""), Ok(()));
        for bad in [
            r#"[["ab", "a"]]"#,
            r#"["ab a"]"#,
            r#"["ab"]"#,
            r#"[["a"]]"#,
            r#"[1]"#,
            r#"{"a": "b"}"#,
        ] {
            assert!(model(bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn the_prefix_of_continued_words_counts() {
        let prefix = r###", "continuing_subword_prefix": "##""###;
        assert!(model(r###"[["a", "##b"]]"###, prefix).is_ok());
        assert!(model(r#"[["a", "b"]]"#, prefix).is_err());
    }

    #[test]
    fn other_models_have_nothing_to_check() {
        assert_eq!(check(br#"{"model": {"vocab": [["a", -1.0]]}}"#), Ok(()));
        assert!(check(b"{}").is_err());
    }
}
