//! How byte-level vocabularies cut text before merging, by the name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of each model's own `tokenizer.json`; llama.cpp's `llama-vocab.cpp` gives the names.

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

use crate::TokenizerError;

/// Llama 3: contractions, letter runs with one leading symbol, up to three digits.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 2 and 3: as Llama 3, with digits one by one.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// One way of cutting text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2's pattern.
    Gpt2,
    /// Every digit alone, then GPT-2's pattern on what lies between (SmolLM, StarCoder).
    DigitsGpt2,
    /// [`LLAMA3`].
    Llama3,
    /// [`QWEN2`].
    Qwen2,
}

/// The names that are known. A file without the key predates it and means GPT-2, as does `default`.
const NAMES: &[(&str, PreTokenizer)] = &[
    ("default", PreTokenizer::Gpt2),
    ("gpt-2", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::DigitsGpt2),
    ("starcoder", PreTokenizer::DigitsGpt2),
    ("refact", PreTokenizer::DigitsGpt2),
    ("command-r", PreTokenizer::DigitsGpt2),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("llama-bpe", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
];

impl PreTokenizer {
    /// The way named by `tokenizer.ggml.pre`.
    pub(crate) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        let Some(name) = name else {
            return Ok(Self::Gpt2);
        };
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| {
            TokenizerError::UnknownPreTokenizer {
                pre: name.to_owned(),
                supported: NAMES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// The way that a `tokenizer.json` describes under `pre_tokenizer`, if it is one of these to the letter (what
    /// changes offsets only does not count).
    pub(crate) fn of(pre_tokenizer: &Value) -> Option<Self> {
        let stages = match pre_tokenizer["pretokenizers"].as_array() {
            Some(stages) => stages.iter().collect(),
            None => vec![pre_tokenizer],
        };
        Self::ALL.into_iter().find(|kind| {
            let wanted = kind.stages();
            wanted.len() == stages.len()
                && wanted.iter().zip(&stages).all(|(wanted, found)| agrees(wanted, found))
        })
    }

    /// Every way.
    pub(crate) const ALL: [Self; 4] = [Self::Gpt2, Self::DigitsGpt2, Self::Llama3, Self::Qwen2];

    /// The name that files get.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt-2",
            Self::DigitsGpt2 => "smollm",
            Self::Llama3 => "llama-bpe",
            Self::Qwen2 => "qwen2",
        }
    }

    /// The stages as a `tokenizer.json` spells them, without what changes offsets only.
    pub(crate) fn stages(self) -> Vec<Value> {
        let bytes = |own_pattern: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": own_pattern});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        match self {
            Self::Gpt2 => vec![bytes(true)],
            Self::DigitsGpt2 => {
                vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)]
            }
            Self::Llama3 => vec![split(LLAMA3), bytes(false)],
            Self::Qwen2 => vec![split(QWEN2), bytes(false)],
        }
    }

    /// Whether a piece that is itself a token is taken whole, without merging.
    pub(crate) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    /// Whether text is composed (NFC) first.
    pub(crate) fn composes(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether models of this kind expect BOS when the file does not say.
    pub(crate) fn adds_bos(self) -> bool {
        self == Self::Llama3
    }

    /// The splitting stage.
    pub(crate) fn stage(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        // Offsets are never trimmed: masks need the bytes that a token really stands for.
        let bytes = |own_pattern| ByteLevel::new(false, false, own_pattern);
        Ok(match self {
            Self::Gpt2 => bytes(true).into(),
            Self::DigitsGpt2 => {
                Sequence::new(vec![Digits::new(true).into(), bytes(true).into()]).into()
            }
            Self::Llama3 => Sequence::new(vec![split(LLAMA3)?, bytes(false).into()]).into(),
            Self::Qwen2 => Sequence::new(vec![split(QWEN2)?, bytes(false).into()]).into(),
        })
    }
}

/// Whether a stage has every value that is wanted.
fn agrees(wanted: &Value, found: &Value) -> bool {
    wanted.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| found[key] == *value))
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, TokenizerError> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map(Into::into)
        .map_err(|error| TokenizerError::Build { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_stages_are_those_that_are_built() {
        for kind in PreTokenizer::ALL {
            assert_eq!(PreTokenizer::named(Some(kind.name())).unwrap(), kind);
            let built = serde_json::to_value(kind.stage().unwrap()).unwrap();
            let built = match built["pretokenizers"].as_array() {
                Some(stages) => stages.clone(),
                None => vec![built],
            };
            for (wanted, built) in kind.stages().iter().zip(&built) {
                for (key, value) in wanted.as_object().unwrap() {
                    assert_eq!(&built[key], value, "{kind:?} {key}");
                }
            }
            assert_eq!(kind.stages().len(), built.len());
            let found = serde_json::to_value(kind.stage().unwrap()).unwrap();
            assert_eq!(PreTokenizer::of(&found), Some(kind));
        }
    }

    #[test]
    fn a_pattern_of_another_letter_is_another_way() {
        assert_eq!(PreTokenizer::of(&Value::Null), None);
        let mut qwen2 = serde_json::to_value(PreTokenizer::Qwen2.stage().unwrap()).unwrap();
        let pattern = &mut qwen2["pretokenizers"][0]["pattern"]["Regex"];
        *pattern = json!(format!("{}+", pattern.as_str().unwrap()));
        assert_eq!(PreTokenizer::of(&qwen2), None);
    }
}
