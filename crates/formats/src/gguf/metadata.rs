//! The key-value metadata of a GGUF file.

use std::collections::HashMap;

use super::Error;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The variants are GGUF's own value types.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array of metadata values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The variants are GGUF's own value types.
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// The value's type in words, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "a u8",
            Self::I8(_) => "an i8",
            Self::U16(_) => "a u16",
            Self::I16(_) => "an i16",
            Self::U32(_) => "a u32",
            Self::I32(_) => "an i32",
            Self::U64(_) => "a u64",
            Self::I64(_) => "an i64",
            Self::F32(_) => "an f32",
            Self::F64(_) => "an f64",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(Array::F32(_) | Array::F64(_)) => "an array of floats",
            Self::Array(Array::String(_)) => "an array of strings",
            Self::Array(Array::Bool(_)) => "an array of booleans",
            Self::Array(_) => "an array of integers",
        }
    }
}

/// The metadata of a GGUF file: keys such as `llama.block_count` in the file's order.
///
/// The typed getters give `Ok(None)` where the key is absent and [`Error::WrongValueType`] where it
/// holds a value of another type.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Appends an entry.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] where the key is already there.
    pub fn insert(&mut self, key: String, value: Value) -> Result<(), Error> {
        if self.index.contains_key(&key) {
            return Err(Error::DuplicateKey { key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match pick(value) {
            Some(picked) => Ok(Some(picked)),
            None => Err(Error::WrongValueType {
                key: key.to_owned(),
                expected,
                found: value.type_name(),
            }),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An integer of any width that is not negative.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "an integer, not negative", |value| match *value {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        })
    }

    /// An integer of any width in the range of u32 (token ids).
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        match self.u64(key)? {
            None => Ok(None),
            Some(wide) => match u32::try_from(wide) {
                Ok(narrow) => Ok(Some(narrow)),
                Err(_) => Err(Error::OverLimit {
                    what: "an integer of the metadata",
                    found: wide,
                    limit: u32::MAX.into(),
                }),
            },
        }
    }

    /// A float of either width, as f64. An f32 is widened through its shortest decimal form, so
    /// that 1e-5 stays 1e-5; rounding the result to f32 gives the stored number back.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(v) => Some(widen(v)),
            Value::F64(v) => Some(v),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of f32.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width, each in the range of i64.
    ///
    /// # Errors
    /// [`Error::WrongValueType`].
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        fn wide<T: Copy + Into<i64>>(items: &[T]) -> Option<Vec<i64>> {
            Some(items.iter().map(|&item| item.into()).collect())
        }
        self.typed(key, "an array of integers", |value| match value {
            Value::Array(Array::U8(v)) => wide(v),
            Value::Array(Array::I8(v)) => wide(v),
            Value::Array(Array::U16(v)) => wide(v),
            Value::Array(Array::I16(v)) => wide(v),
            Value::Array(Array::U32(v)) => wide(v),
            Value::Array(Array::I32(v)) => wide(v),
            Value::Array(Array::I64(v)) => Some(v.clone()),
            Value::Array(Array::U64(v)) => v.iter().map(|&item| i64::try_from(item).ok()).collect(),
            _ => None,
        })
    }
}

/// Entries of distinct keys, in order; of a key that comes twice the first counts.
impl FromIterator<(String, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        let mut metadata = Self::default();
        for (key, value) in entries {
            if metadata.get(&key).is_none() {
                metadata.index.insert(key.clone(), metadata.entries.len());
                metadata.entries.push((key, value));
            }
        }
        metadata
    }
}

/// Widens through the shortest decimal that names this f32.
fn widen(narrow: f32) -> f64 {
    // `{:e}` always prints a number that `f64` parses; the fallback is the plain widening.
    format!("{narrow:e}").parse().unwrap_or(f64::from(narrow))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::default();
        for (key, value) in [
            ("eps", Value::F32(1e-5)),
            ("wide", Value::U64(1 << 40)),
            ("minus", Value::I32(-1)),
            ("name", Value::String("x".into())),
            ("types", Value::Array(Array::I32(vec![3, -1]))),
        ] {
            metadata.insert(key.into(), value).unwrap();
        }
        metadata
    }

    #[test]
    fn getters_convert_between_widths() {
        let metadata = sample();
        assert_eq!(metadata.f64("eps").unwrap(), Some(1e-5));
        assert_eq!(metadata.u64("wide").unwrap(), Some(1 << 40));
        assert_eq!(metadata.integers("types").unwrap(), Some(vec![3, -1]));
        assert_eq!(metadata.str("absent").unwrap(), None);
        assert!(widen(f32::INFINITY).is_infinite() && widen(f32::NAN).is_nan());
    }

    #[test]
    fn wrong_types_are_named() {
        let metadata = sample();
        let error = metadata.bool("name").unwrap_err().to_string();
        assert_eq!(error, "metadata key \"name\" holds a string where a boolean is expected");
        assert!(matches!(metadata.u64("minus"), Err(Error::WrongValueType { .. })));
        assert!(matches!(metadata.u32("wide"), Err(Error::OverLimit { .. })));
    }

    #[test]
    fn a_key_cannot_appear_twice() {
        let error = sample().insert("eps".into(), Value::Bool(true)).unwrap_err();
        assert!(matches!(error, Error::DuplicateKey { key } if key == "eps"));
    }
}
