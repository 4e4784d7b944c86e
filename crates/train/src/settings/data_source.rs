//! Data sources as people write them.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A source of samples: in a settings file a path, or `{path = "a.jsonl", weight = 0.5, name = "chats"}`; as a flag
/// `PATH` or `PATH@WEIGHT`.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSource {
    /// A JSON Lines or Parquet file.
    pub path: PathBuf,
    /// How often each of its samples comes in an epoch: 2 for twice, 0.5 for a random half, another in every epoch.
    pub weight: f64,
    /// What reports call it; its path otherwise.
    pub name: Option<String>,
}

/// The longer way to write it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    path: PathBuf,
    #[serde(default = "once")]
    weight: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

fn once() -> f64 {
    1.0
}

impl From<PathBuf> for DataSource {
    fn from(path: PathBuf) -> DataSource {
        DataSource { path, weight: once(), name: None }
    }
}

impl From<&DataSource> for data::Source {
    fn from(source: &DataSource) -> data::Source {
        let plain = data::Source::new(&source.path);
        let name = source.name.clone().unwrap_or(plain.name);
        data::Source { name, weight: source.weight, ..plain }
    }
}

impl FromStr for DataSource {
    type Err = String;

    /// What follows the last `@` is a weight only where it is a number; other paths may have an `@`.
    fn from_str(text: &str) -> Result<DataSource, String> {
        let weighted = text.rsplit_once('@').and_then(|(path, weight)| {
            let weight = weight.parse().ok()?;
            Some(DataSource { path: path.into(), weight, name: None })
        });
        let source = weighted.unwrap_or_else(|| PathBuf::from(text).into());
        match source.path.as_os_str().is_empty() {
            true => Err("a path is needed".to_owned()),
            false => Ok(source),
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.weight == once() { Ok(()) } else { write!(f, "@{}", self.weight) }
    }
}

impl Serialize for DataSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let DataSource { path, weight, name } = self.clone();
        if weight == once() && name.is_none() {
            return path.serialize(serializer);
        }
        Written { path, weight, name }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DataSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = DataSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a table with `path` and perhaps `weight` and `name`")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<DataSource, E> {
                Ok(PathBuf::from(path).into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataSource, A::Error> {
                let Written { path, weight, name } =
                    Written::deserialize(MapAccessDeserializer::new(map))?;
                Ok(DataSource { path, weight, name })
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for DataSource {
    fn schema_name() -> Cow<'static, str> {
        "DataSource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string"},
                        "weight": {
                            "type": "number",
                            "exclusiveMinimum": 0,
                            "maximum": data::WEIGHT_LIMIT,
                        },
                        "name": {"type": "string"},
                    },
                    "required": ["path"],
                    "additionalProperties": false,
                },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        data: Vec<DataSource>,
    }

    fn source(path: &str, weight: f64, name: Option<&str>) -> DataSource {
        DataSource { path: path.into(), weight, name: name.map(str::to_owned) }
    }

    #[test]
    fn a_settings_file_names_paths_or_tables() {
        let text = r#"data = ["a.jsonl", {path = "b", weight = 0.5}, {path = "c", name = "n"}, {path = "d", weight = 2}]"#;
        let file: File = toml::from_str(text).unwrap();
        let expected = [
            source("a.jsonl", 1.0, None),
            source("b", 0.5, None),
            source("c", 1.0, Some("n")),
            source("d", 2.0, None),
        ];
        assert_eq!(file.data, expected);
        assert_eq!(toml::from_str::<File>(&toml::to_string(&file).unwrap()).unwrap(), file);
        let json = serde_json::to_string(&file).unwrap();
        assert!(json.starts_with(r#"{"data":["a.jsonl",{"path":"b","weight":0.5}"#), "{json}");
        assert_eq!(serde_json::from_str::<File>(&json).unwrap(), file);
        for wrong in
            ["data = [1]", "data = [{weight = 1.0}]", "data = [{path = \"a\", wieght = 1}]"]
        {
            assert!(toml::from_str::<File>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_flag_is_a_path_with_its_weight() {
        for (text, expected) in [
            ("a.jsonl", source("a.jsonl", 1.0, None)),
            ("a.jsonl@0.5", source("a.jsonl", 0.5, None)),
            ("me@home/a.jsonl", source("me@home/a.jsonl", 1.0, None)),
            ("a@b@2", source("a@b", 2.0, None)),
        ] {
            let found: DataSource = text.parse().unwrap();
            assert_eq!(found, expected);
            assert_eq!(found.to_string(), text);
        }
        assert!("a@nan".parse::<DataSource>().unwrap().weight.is_nan());
        assert!("".parse::<DataSource>().is_err() && "@2".parse::<DataSource>().is_err());
    }

    #[test]
    fn a_name_is_the_path_unless_it_is_given() {
        let name = |source: &DataSource| data::Source::from(source).name;
        assert_eq!(name(&source("a/b", 2.0, None)), "a/b");
        assert_eq!(name(&source("a/b", 2.0, Some("n"))), "n");
    }
}
