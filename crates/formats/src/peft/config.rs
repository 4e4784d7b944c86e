//! `adapter_config.json`.
//!
//! Source: `LoraConfig` of peft 0.21 (`tuners/lora/config.py`).

use serde_json::{Map, Value, json};

use super::{Error, MAX_RANK};

/// The modules that an adapter was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetModules {
    /// Names or ends of names, such as `q_proj`.
    Names(Vec<String>),
    /// A regular expression of peft, or `all-linear`. The modules are those that the weights hold.
    Pattern(String),
}

/// The configuration of a LoRA adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The rank of modules that `rank_pattern` does not name.
    pub r: usize,
    /// The alpha of modules that `alpha_pattern` does not name.
    pub lora_alpha: f64,
    /// The dropout of training.
    pub lora_dropout: f64,
    /// Whether the scale is alpha / sqrt(rank) rather than alpha / rank.
    pub use_rslora: bool,
    /// The modules that the adapter was made for.
    pub target_modules: TargetModules,
    /// Ranks of modules, by full name or its end after a dot; the first that matches counts.
    pub rank_pattern: Vec<(String, usize)>,
    /// Alphas of modules, likewise.
    pub alpha_pattern: Vec<(String, f64)>,
    /// The model that was adapted.
    pub base_model_name_or_path: Option<String>,
}

/// Keys whose value never changes how the finished adapter computes.
const NEUTRAL_KEYS: [&str; 15] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

/// Keys that [`AdapterConfig::from_json`] reads itself.
const READ_KEYS: [&str; 11] = [
    "alpha_pattern",
    "bias",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "use_rslora",
];

impl AdapterConfig {
    /// Takes a parsed `adapter_config.json`. Any option that is unknown, or known and not
    /// supported, is refused unless it is off (`null`, `false`, or empty).
    ///
    /// # Errors
    /// A variant of [`Error`] for each way in which it can be wrong.
    pub fn from_json(object: &Map<String, Value>) -> Result<Self, Error> {
        let keys = Keys(object);
        keys.refuse_unless("peft_type", &[json!("LORA")], true)?;
        keys.refuse_unless("task_type", &[json!("CAUSAL_LM")], false)?;
        keys.refuse_unless("bias", &[json!("none")], false)?;
        // The other ways of initialising change the base weights, or the form of the adapter.
        let initial =
            [json!(true), json!(false), json!("gaussian"), json!("eva"), json!("orthogonal")];
        keys.refuse_unless("init_lora_weights", &initial, false)?;
        for (key, value) in object {
            let known = NEUTRAL_KEYS.contains(&key.as_str()) || READ_KEYS.contains(&key.as_str());
            if !known && !is_off(value) {
                return Err(keys.unsupported(key, value));
            }
        }
        let config = Self {
            r: whole("r", keys.require("r")?)?,
            lora_alpha: number("lora_alpha", keys.require("lora_alpha")?)?,
            lora_dropout: keys
                .get("lora_dropout")
                .map_or(Ok(0.0), |v| number("lora_dropout", v))?,
            use_rslora: keys.bool("use_rslora")?,
            target_modules: keys.target_modules()?,
            rank_pattern: keys.pattern("rank_pattern", whole)?,
            alpha_pattern: keys.pattern("alpha_pattern", number)?,
            base_model_name_or_path: keys
                .get("base_model_name_or_path")
                .map(|value| text("base_model_name_or_path", value))
                .transpose()?,
        };
        config.check()?;
        Ok(config)
    }

    /// Checks ranks, alphas and patterns.
    pub(super) fn check(&self) -> Result<(), Error> {
        let ranks = self.rank_pattern.iter().map(|(module, rank)| (module.as_str(), *rank));
        for (module, found) in std::iter::once(("r", self.r)).chain(ranks) {
            if !(1..=MAX_RANK).contains(&found) {
                return Err(Error::BadRank { module: module.to_owned(), found, limit: MAX_RANK });
            }
        }
        let alphas = self.alpha_pattern.iter().map(|(module, alpha)| (module.as_str(), *alpha));
        for (module, found) in std::iter::once(("lora_alpha", self.lora_alpha)).chain(alphas) {
            if !(found > 0.0 && found.is_finite()) {
                return Err(Error::BadAlpha { module: module.to_owned(), found });
            }
        }
        if !(0.0..1.0).contains(&self.lora_dropout) {
            return Err(Error::WrongType {
                key: "lora_dropout".to_owned(),
                expected: "a number from 0 up to, not including, 1",
                found: self.lora_dropout.to_string(),
            });
        }
        let keys = self.rank_pattern.iter().map(|(pattern, _)| ("rank_pattern", pattern));
        let more = self.alpha_pattern.iter().map(|(pattern, _)| ("alpha_pattern", pattern));
        for (key, pattern) in keys.chain(more) {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            if pattern.is_empty() || !pattern.chars().all(plain) {
                return Err(Error::PatternNotPlain { key, pattern: pattern.clone() });
            }
        }
        Ok(())
    }

    /// The rank of a module (its full name in the model).
    pub fn rank_of(&self, module: &str) -> usize {
        matching(&self.rank_pattern, module).copied().unwrap_or(self.r)
    }

    /// What the product B·A of a module is multiplied by.
    pub fn scale_of(&self, module: &str) -> f64 {
        let alpha = matching(&self.alpha_pattern, module).copied().unwrap_or(self.lora_alpha);
        let rank = self.rank_of(module) as f64;
        if self.use_rslora { alpha / rank.sqrt() } else { alpha / rank }
    }

    /// The object that `peft` reads.
    pub fn to_json(&self) -> Map<String, Value> {
        let targets = match &self.target_modules {
            TargetModules::Names(names) => json!(names),
            TargetModules::Pattern(pattern) => json!(pattern),
        };
        let ranks: Map<String, Value> =
            self.rank_pattern.iter().map(|(key, rank)| (key.clone(), json!(rank))).collect();
        let alphas: Map<String, Value> =
            self.alpha_pattern.iter().map(|(key, alpha)| (key.clone(), compact(*alpha))).collect();
        let mut object = Map::new();
        for (key, value) in [
            ("alpha_pattern", Value::Object(alphas)),
            ("base_model_name_or_path", json!(self.base_model_name_or_path)),
            ("bias", json!("none")),
            ("fan_in_fan_out", json!(false)),
            ("inference_mode", json!(true)),
            ("init_lora_weights", json!(true)),
            ("lora_alpha", compact(self.lora_alpha)),
            ("lora_dropout", json!(self.lora_dropout)),
            ("modules_to_save", Value::Null),
            ("peft_type", json!("LORA")),
            ("r", json!(self.r)),
            ("rank_pattern", Value::Object(ranks)),
            ("target_modules", targets),
            ("task_type", json!("CAUSAL_LM")),
            ("use_dora", json!(false)),
            ("use_rslora", json!(self.use_rslora)),
        ] {
            object.insert(key.to_owned(), value);
        }
        object
    }
}

/// The value of the first pattern that is a module's name or its end after a dot, which is what
/// peft's `(.*\.)?(pattern)$` comes to for plain names.
fn matching<'a, T>(patterns: &'a [(String, T)], module: &str) -> Option<&'a T> {
    let matches = |pattern: &str| {
        module.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    patterns.iter().find(|(pattern, _)| matches(pattern)).map(|(_, value)| value)
}

/// A whole number without a decimal point: peft declares alpha as an integer.
fn compact(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// Whether an option is switched off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn wrong(key: &str, expected: &'static str, found: &Value) -> Error {
    Error::WrongType { key: key.to_owned(), expected, found: found.to_string() }
}

fn whole(key: &str, value: &Value) -> Result<usize, Error> {
    let number = value.as_u64().and_then(|wide| usize::try_from(wide).ok());
    number.ok_or_else(|| wrong(key, "a whole number, not negative", value))
}

fn number(key: &str, value: &Value) -> Result<f64, Error> {
    value.as_f64().ok_or_else(|| wrong(key, "a number", value))
}

fn text(key: &str, value: &Value) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "a string", value))
}

/// The object's keys; `null` counts as absent.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn require(&self, key: &'static str) -> Result<&'a Value, Error> {
        self.get(key).ok_or(Error::MissingKey { key })
    }

    fn unsupported(&self, key: &str, value: &Value) -> Error {
        Error::Unsupported { key: key.to_owned(), found: value.to_string() }
    }

    fn refuse_unless(
        &self,
        key: &'static str,
        supported: &[Value],
        required: bool,
    ) -> Result<(), Error> {
        match self.get(key) {
            Some(value) if supported.contains(value) => Ok(()),
            Some(value) => Err(self.unsupported(key, value)),
            None if required => Err(Error::MissingKey { key }),
            None => Ok(()),
        }
    }

    fn bool(&self, key: &'static str) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| wrong(key, "true or false", value)),
        }
    }

    fn target_modules(&self) -> Result<TargetModules, Error> {
        const KEY: &str = "target_modules";
        let value = self.require(KEY)?;
        match value {
            Value::String(pattern) => Ok(TargetModules::Pattern(pattern.clone())),
            Value::Array(names) => {
                let names = names.iter().map(|name| text(KEY, name)).collect::<Result<_, _>>()?;
                Ok(TargetModules::Names(names))
            }
            _ => Err(wrong(KEY, "a list of module names or a pattern", value)),
        }
    }

    fn pattern<T>(
        &self,
        key: &'static str,
        read: fn(&str, &Value) -> Result<T, Error>,
    ) -> Result<Vec<(String, T)>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let Some(object) = value.as_object() else {
            return Err(wrong(key, "an object", value));
        };
        let read = |(name, value): (&String, &Value)| Ok((name.clone(), read(key, value)?));
        object.iter().map(read).collect()
    }
}
