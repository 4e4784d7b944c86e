//! The special tokens that a model's files name, as templates see them.

use std::path::Path;

use serde_json::{Map, Value};

/// Named special tokens (`bos_token`, `eos_token`, `unk_token`, `pad_token`, …) by their text.
///
/// Templates read them as variables of the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    entries: Vec<(String, String)>,
}

/// The names that transformers passes to templates when they are set.
const NAMES: &[&str] =
    &["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl SpecialTokens {
    /// Sets one token; the last value of a name wins.
    pub fn set(&mut self, name: &str, text: &str) {
        self.entries.retain(|(known, _)| known != name);
        self.entries.push((name.to_owned(), text.to_owned()));
    }

    /// The text of the token `name`, such as `eos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|e| e.1)
    }

    /// All names and texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|(n, t)| (n.as_str(), t.as_str()))
    }

    /// Reads the tokens of a parsed `tokenizer_config.json`, in either of their two forms: the text, or an object
    /// with `content`. An error says which key is neither.
    pub(crate) fn from_config(config: &Map<String, Value>) -> Result<Self, String> {
        let mut tokens = Self::default();
        for name in NAMES {
            let text = match config.get(*name) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text,
                Some(Value::Object(token)) => match token.get("content") {
                    Some(Value::String(text)) => text,
                    _ => return Err(format!("`{name}` is an object without a `content` string")),
                },
                Some(_) => return Err(format!("`{name}` must be a string or an object")),
            };
            tokens.set(name, text);
        }
        Ok(tokens)
    }
}

/// The parsed `tokenizer_config.json`, or `None` where there is none.
pub(crate) fn read_config(path: &Path) -> Result<Option<Map<String, Value>>, ReadConfig> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ReadConfig::Read(error)),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(config)) => Ok(Some(config)),
        Ok(_) => Err(ReadConfig::Shape("is not a JSON object".to_owned())),
        Err(error) => Err(ReadConfig::Shape(format!("is not JSON: {error}"))),
    }
}

/// Why `tokenizer_config.json` could not be read; each user adds the path in its own error.
pub(crate) enum ReadConfig {
    /// The file system said no.
    Read(std::io::Error),
    /// It is not a JSON object.
    Shape(String),
}
