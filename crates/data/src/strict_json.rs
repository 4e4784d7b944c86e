//! JSON in which a key that comes twice in an object is an error: parsers keep the last one, and its owner meant both.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// The value of a text.
pub(crate) fn value(text: &str) -> Result<Value, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
            match object.entry(key) {
                Entry::Vacant(place) => place.insert(value),
                Entry::Occupied(place) => {
                    return Err(A::Error::custom(format_args!(
                        "the key `{}` comes twice",
                        place.key()
                    )));
                }
            };
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_no_key_twice_reads_as_it_does_elsewhere() {
        for text in [
            r#"{"a": [1, -2, 3.5, 1e300, "x\u00e9\n", true, false, null, {}], "b": {"a": {"a": []}}}"#,
            "18446744073709551615",
            "-9223372036854775808",
            "\"\"",
        ] {
            assert_eq!(value(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for wrong in ["", "{", "[1,]", "{\"a\" 1}", "1 2", "nul"] {
            let (ours, theirs) = (value(wrong), serde_json::from_str::<Value>(wrong));
            assert_eq!(ours.unwrap_err().to_string(), theirs.unwrap_err().to_string());
        }
        let deep = "[".repeat(200);
        assert!(value(&deep).unwrap_err().to_string().contains("recursion limit"));
    }

    #[test]
    fn a_key_that_comes_twice_is_named_at_any_depth() {
        for text in [r#"{"k": 1, "k": 1}"#, r#"[{"a": {"k": 1, "b": 2, "k": 3}}]"#] {
            let said = value(text).unwrap_err().to_string();
            assert!(said.starts_with("the key `k` comes twice at line 1"), "{said}");
        }
    }
}
