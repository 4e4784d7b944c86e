//! Typed reads of a JSON object's keys. `null` counts as absent, as it does in transformers.

use serde_json::{Map, Value};

use super::Error;

/// A JSON object, and where it stands in the file for messages.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    object: &'a Map<String, Value>,
    within: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Self { object, within: "" }
    }

    fn name(&self, key: &str) -> String {
        if self.within.is_empty() { key.to_owned() } else { format!("{}.{key}", self.within) }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn wrong(&self, key: &str, expected: &'static str, found: &Value) -> Error {
        Error::WrongType { key: self.name(key), expected, found: shortened(found) }
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::MissingKey { key: self.name(key) }
    }

    pub(super) fn unsupported(&self, key: &str, found: &Value, supported: &'static str) -> Error {
        Error::Unsupported { key: self.name(key), found: shortened(found), supported }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match pick(value) {
                Some(picked) => Ok(Some(picked)),
                None => Err(self.wrong(key, expected, value)),
            },
        }
    }

    pub(super) fn str(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(super) fn usize(&self, key: &str) -> Result<Option<usize>, Error> {
        self.typed(key, "a whole number, not negative", |value| {
            // transformers writes some sizes as floats (rope's original_max_position_embeddings).
            let whole = value.as_u64().or_else(|| {
                value
                    .as_f64()
                    .filter(|f| f.fract() == 0.0 && (0.0..1e15).contains(f))
                    .map(|f| f as u64)
            })?;
            usize::try_from(whole).ok()
        })
    }

    pub(super) fn array(&self, key: &str) -> Result<Option<&'a Vec<Value>>, Error> {
        self.typed(key, "a list", Value::as_array)
    }

    pub(super) fn object(&self, key: &'a str) -> Result<Option<Keys<'a>>, Error> {
        let object = self.typed(key, "an object", Value::as_object)?;
        Ok(object.map(|object| Keys { object, within: key }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }

    pub(super) fn require_f64(&self, key: &str) -> Result<f64, Error> {
        self.f64(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn require_usize(&self, key: &str) -> Result<usize, Error> {
        self.usize(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn require_str(&self, key: &str) -> Result<&'a str, Error> {
        self.str(key)?.ok_or_else(|| self.missing(key))
    }
}

/// A value as JSON, cut where it is long.
fn shortened(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST).chain("…".chars()).collect()
}
