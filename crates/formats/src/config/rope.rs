//! Scalings of the rotary frequencies.
//!
//! Source: `modeling_rope_utils.py` of transformers 5.24, whose parameter names these are.

use serde_json::{Map, Value, json};

use super::Error;
use super::check::positive;
use super::keys::Keys;

/// How the rotary frequencies `theta^(-2i / head_dim)` are changed for long contexts.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the length of the sequence once that exceeds `max_position_embeddings`
    /// (NTK).
    Dynamic {
        /// How strongly.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a linear blend between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths over `original_max_position_embeddings / low_freq_factor` are low
        /// frequencies.
        low_freq_factor: f64,
        /// Wavelengths under `original_max_position_embeddings / high_freq_factor` are high
        /// frequencies.
        high_freq_factor: f64,
        /// The context length of pre-training, tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN: a blend by rotations within the original context, and scaled attention.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// The context length of pre-training, tokens.
        original_max_position_embeddings: usize,
        /// What cos and sin are multiplied by: as given, or as transformers derives it.
        attention_factor: f64,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is divided.
        beta_slow: f64,
        /// Whether the bounds of the blend are rounded to whole dimensions.
        truncate: bool,
    },
}

/// The attention factor that YaRN derives from its scaling factor (`get_mscale` in transformers).
pub(crate) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// Reads `rope_scaling` or `rope_parameters`. `outer_original` is the configuration's own
    /// `original_max_position_embeddings`, which wins over the one inside, as in transformers.
    pub(super) fn from_keys(
        keys: Keys<'_>,
        max_position_embeddings: usize,
        outer_original: Option<usize>,
    ) -> Result<Self, Error> {
        let original = match outer_original {
            Some(original) => original,
            None => {
                keys.usize("original_max_position_embeddings")?.unwrap_or(max_position_embeddings)
            }
        };
        for (key, value) in keys.iter() {
            if value.is_object() {
                return Err(keys.unsupported(
                    key,
                    value,
                    "one set of rope parameters for all layers",
                ));
            }
        }
        if let Some(partial) = keys.f64("partial_rotary_factor")?
            && partial != 1.0
        {
            return Err(keys.unsupported("partial_rotary_factor", &json!(partial), "1"));
        }
        let kind = match keys.str("rope_type")? {
            Some(kind) => kind,
            None => keys.str("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor: keys.require_f64("factor")? }),
            "dynamic" => Ok(Self::Dynamic { factor: keys.require_f64("factor")? }),
            "llama3" => Ok(Self::Llama3 {
                factor: keys.require_f64("factor")?,
                low_freq_factor: keys.require_f64("low_freq_factor")?,
                high_freq_factor: keys.require_f64("high_freq_factor")?,
                original_max_position_embeddings: original,
            }),
            "yarn" => Self::yarn(keys, max_position_embeddings, original),
            other => Err(keys.unsupported(
                "rope_type",
                &json!(other),
                "default, linear, dynamic, llama3 or yarn",
            )),
        }
    }

    fn yarn(
        keys: Keys<'_>,
        max_position_embeddings: usize,
        original: usize,
    ) -> Result<Self, Error> {
        let factor = match keys.f64("factor")? {
            Some(factor) => factor,
            None => max_position_embeddings as f64 / original as f64,
        };
        let attention_factor = match keys.f64("attention_factor")? {
            Some(given) => given,
            None => {
                // transformers takes a zero for absent here, and in the betas.
                let mscale = keys.f64("mscale")?.filter(|&m| m != 0.0);
                let all_dim = keys.f64("mscale_all_dim")?.filter(|&m| m != 0.0);
                match (mscale, all_dim) {
                    (Some(mscale), Some(all_dim)) => {
                        yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
                    }
                    _ => yarn_mscale(factor, 1.0),
                }
            }
        };
        Ok(Self::Yarn {
            factor,
            original_max_position_embeddings: original,
            attention_factor,
            beta_fast: keys.f64("beta_fast")?.filter(|&beta| beta != 0.0).unwrap_or(32.0),
            beta_slow: keys.f64("beta_slow")?.filter(|&beta| beta != 0.0).unwrap_or(1.0),
            truncate: keys.bool("truncate")?.unwrap_or(true),
        })
    }

    /// Checks the numbers against their limits.
    pub(super) fn check(&self) -> Result<(), Error> {
        const MOST: f64 = 1e6;
        match *self {
            Self::None => Ok(()),
            Self::Linear { factor } | Self::Dynamic { factor } => {
                positive("rope_scaling.factor", factor, MOST)
            }
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            } => {
                positive("rope_scaling.factor", factor, MOST)?;
                positive("rope_scaling.low_freq_factor", low_freq_factor, MOST)?;
                positive("rope_scaling.high_freq_factor", high_freq_factor, MOST)?;
                positive("rope_scaling.original_max_position_embeddings", original as f64, 1e9)?;
                if low_freq_factor >= high_freq_factor {
                    return Err(Error::OutOfRange {
                        key: "rope_scaling.low_freq_factor".to_owned(),
                        found: low_freq_factor.to_string(),
                        least: "above 0".to_owned(),
                        most: format!("below high_freq_factor, {high_freq_factor}"),
                    });
                }
                Ok(())
            }
            Self::Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor,
                beta_fast,
                beta_slow,
                ..
            } => {
                positive("rope_scaling.factor", factor, MOST)?;
                positive("rope_scaling.attention_factor", attention_factor, MOST)?;
                positive("rope_scaling.beta_fast", beta_fast, MOST)?;
                positive("rope_scaling.beta_slow", beta_slow, MOST)?;
                positive("rope_scaling.original_max_position_embeddings", original as f64, 1e9)
            }
        }
    }

    /// The `rope_scaling` object of `config.json`, or `None` where nothing is scaled.
    pub(super) fn to_json(&self) -> Option<Map<String, Value>> {
        let object = match *self {
            Self::None => return None,
            Self::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            Self::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
            Self::Yarn {
                factor,
                original_max_position_embeddings,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate,
            } => json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original_max_position_embeddings,
                "attention_factor": attention_factor,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "truncate": truncate,
            }),
        };
        match object {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }
}
