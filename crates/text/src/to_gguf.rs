//! A tokenizer and its chat template as GGUF metadata, the reverse of [`Tokenizer::from_gguf`].
//!
//! Source: `SpecialVocab` of `gguf-py` and `get_vocab_base` of `convert_hf_to_gguf.py` of llama.cpp.

use std::collections::HashMap;

use formats::gguf::{Array, Metadata, Value as Entry};
use serde_json::Value;

use crate::pre_tokenizer::PreTokenizer;
use crate::template_source::{DEFAULT, TOOL_USE};
use crate::{ChatTemplate, Tokenizer, TokenizerError, gguf};

/// `tokenizer.ggml.token_type` as llama.cpp numbers it.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// A token's id under the key that GGUF gives its role.
const ROLES: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
];

impl Tokenizer {
    /// The entries `tokenizer.*` of a GGUF file for a model whose embedding has `rows` rows and that stops at `ends`.
    ///
    /// Rows without a token get unused ones, as llama.cpp wants one for each. Of `ends`, GGUF holds two: the tokenizer's
    /// own end and the first other one.
    ///
    /// # Errors
    /// [`TokenizerError::NotInGguf`] where the tokenizer is not byte-level BPE that cuts text in a way that has a name
    /// in llama.cpp; [`TokenizerError::VocabularySize`] where there are more tokens than rows.
    pub fn to_gguf(
        &self,
        rows: usize,
        ends: &[u32],
        template: Option<&ChatTemplate>,
    ) -> Result<Metadata, TokenizerError> {
        let refuse = |reason: String| TokenizerError::NotInGguf { reason };
        let json: Value = serde_json::from_str(&self.to_json()?)
            .map_err(|error| TokenizerError::Serialize { reason: error.to_string() })?;
        let kind = kind_of(&json).map_err(refuse)?;
        let (tokens, types) = self.tokens(rows)?;
        let mut entries = vec![
            (gguf::KEY_MODEL, Entry::String("gpt2".into())),
            (gguf::KEY_PRE, Entry::String(kind.name().into())),
            (gguf::KEY_TOKENS, Entry::Array(Array::String(tokens))),
            (gguf::KEY_TYPES, Entry::Array(Array::I32(types))),
            (gguf::KEY_MERGES, Entry::Array(Array::String(merges(&json).map_err(refuse)?))),
        ];
        for (role, key) in ROLES {
            if let Some(id) = self.special_tokens().get(role).and_then(|text| self.id(text)) {
                entries.push((key, Entry::U32(id)));
            }
        }
        // A model may name its end where its tokenizer does not.
        let eos = self.eos().or(ends.first().copied());
        if let (None, Some(eos)) = (self.eos(), eos) {
            entries.push((ROLES[1].1, Entry::U32(eos)));
        }
        if let Some(&other) = ends.iter().find(|&&end| Some(end) != eos) {
            entries.push(("tokenizer.ggml.eot_token_id", Entry::U32(other)));
        }
        entries.push((gguf::KEY_ADD_BOS, Entry::Bool(self.adds_bos())));
        for (name, source) in template.map_or(&[][..], ChatTemplate::sources) {
            match name.as_str() {
                DEFAULT => entries.push((gguf::KEY_TEMPLATE, Entry::String(source.clone()))),
                TOOL_USE => entries.push((gguf::KEY_TEMPLATE_TOOLS, Entry::String(source.clone()))),
                // Templates of other names are reached by nobody who reads a GGUF.
                _ => {}
            }
        }
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Every token by id, and its type.
    fn tokens(&self, rows: usize) -> Result<(Vec<String>, Vec<i32>), TokenizerError> {
        let used = self.vocab_size();
        if used > rows {
            return Err(TokenizerError::VocabularySize { tokens: used, limit: rows });
        }
        let added: HashMap<u32, bool> = self.added_tokens();
        Ok((0..rows as u32)
            .map(|id| match (self.token(id), added.get(&id)) {
                (None, _) => (format!("[PAD{id}]"), UNUSED),
                (Some(text), Some(true)) => (text, CONTROL),
                (Some(text), Some(false)) => (text, USER_DEFINED),
                (Some(text), None) => (text, NORMAL),
            })
            .unzip())
    }
}

/// How the tokenizer cuts text, if llama.cpp has a name for it.
fn kind_of(json: &Value) -> Result<PreTokenizer, String> {
    let model = &json["model"];
    if model["type"] != "BPE" || model["byte_fallback"] == true {
        let what = if model["type"] == "BPE" { "SentencePiece" } else { "another kind" };
        return Err(format!("it is {what}, not byte-level BPE"));
    }
    let kind = PreTokenizer::of(&json["pre_tokenizer"]);
    let Some(kind) = kind else {
        return Err(format!(
            "it cuts text in a way that has no name here ({}); known are {}",
            json["pre_tokenizer"],
            PreTokenizer::ALL.map(PreTokenizer::name).join(", ")
        ));
    };
    let normalizer = &json["normalizer"];
    let known = normalizer.is_null() || (normalizer["type"] == "NFC" && kind.composes());
    if !known {
        return Err(format!("it normalises text first ({normalizer})"));
    }
    if (model["ignore_merges"] == true) != kind.ignores_merges() {
        return Err(format!(
            "`ignore_merges` is {} where `{}` has it the other way",
            model["ignore_merges"] == true,
            kind.name()
        ));
    }
    Ok(kind)
}

/// The merge rules, each as two tokens with a space between.
fn merges(json: &Value) -> Result<Vec<String>, String> {
    let rules = json["model"]["merges"].as_array().ok_or("it has no list of merges")?;
    let rule = |(index, rule): (usize, &Value)| {
        let text = match rule {
            Value::String(text) => Some(text.clone()),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some(format!("{left} {right}")),
                _ => None,
            },
            _ => None,
        };
        text.filter(|text| text.matches(' ').count() == 1)
            .ok_or_else(|| format!("merge {index} ({rule}) is not two tokens without spaces"))
    };
    rules.iter().enumerate().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn described(pre_tokenizer: Value, ignore_merges: bool) -> Value {
        json!({"normalizer": null, "pre_tokenizer": pre_tokenizer,
               "model": {"type": "BPE", "ignore_merges": ignore_merges, "merges": []}})
    }

    #[test]
    fn ways_of_cutting_are_told_apart() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        assert_eq!(kind_of(&described(bytes.clone(), false)), Ok(PreTokenizer::Gpt2));
        let digits = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, bytes]});
        assert_eq!(kind_of(&described(digits, false)), Ok(PreTokenizer::DigitsGpt2));
        let prefix = json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true});
        assert!(kind_of(&described(prefix, false)).unwrap_err().contains("no name here"));
        assert!(kind_of(&described(bytes.clone(), true)).unwrap_err().contains("ignore_merges"));
        let mut lower = described(bytes.clone(), false);
        lower["normalizer"] = json!({"type": "Lowercase"});
        assert!(kind_of(&lower).unwrap_err().contains("normalises"));
        let mut pieces = described(bytes, false);
        pieces["model"]["byte_fallback"] = json!(true);
        assert!(kind_of(&pieces).unwrap_err().contains("SentencePiece"));
    }

    #[test]
    fn rules_are_two_tokens() {
        let with = |rule: Value| merges(&json!({"model": {"merges": [rule]}}));
        assert_eq!(with(json!("a b")).unwrap(), ["a b"]);
        assert_eq!(with(json!(["a", "b"])).unwrap(), ["a b"]);
        for wrong in [json!("ab"), json!(["a", "b", "c"]), json!(["a b", "c"]), json!(7)] {
            assert!(with(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
