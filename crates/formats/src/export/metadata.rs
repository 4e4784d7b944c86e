//! The metadata of a model's configuration, the reverse of [`crate::ModelConfig::from_gguf`].
//!
//! Source: `gguf-py/gguf/constants.py` (keys) and `convert_hf_to_gguf.py` (meanings) of llama.cpp.

use super::ExportError;
use crate::config::yarn_mscale;
use crate::gguf::Value;
use crate::{ModelConfig, RopeScaling};

/// The keys of an architecture, in order.
pub(super) fn of_config(config: &ModelConfig) -> Result<Vec<(String, Value)>, ExportError> {
    let prefix = config.architecture.model_type();
    let mut entries = Vec::new();
    let mut put = |key: &str, value: Value| entries.push((format!("{prefix}.{key}"), value));
    // Every size is far under 2^32: `ModelConfig` is checked against its limits.
    let size = |size: usize| Value::U32(size as u32);
    put("vocab_size", size(config.vocab_size));
    put("context_length", size(config.max_position_embeddings));
    put("embedding_length", size(config.hidden_size));
    put("block_count", size(config.num_hidden_layers));
    put("feed_forward_length", size(config.intermediate_size));
    put("rope.dimension_count", size(config.head_dim));
    put("attention.head_count", size(config.num_attention_heads));
    put("attention.head_count_kv", size(config.num_key_value_heads));
    put("attention.key_length", size(config.head_dim));
    put("attention.value_length", size(config.head_dim));
    put("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32));
    put("rope.freq_base", Value::F32(config.rope_theta as f32));
    match config.rope_scaling {
        // Llama 3's scaling is a tensor of divisors.
        RopeScaling::None | RopeScaling::Llama3 { .. } => {}
        RopeScaling::Linear { factor } => {
            put("rope.scaling.type", Value::String("linear".into()));
            put("rope.scaling.factor", Value::F32(factor as f32));
        }
        RopeScaling::Dynamic { .. } => {
            return Err(ExportError::NotComputed {
                feature: "dynamic rope scaling (rope_scaling)",
            });
        }
        RopeScaling::Yarn { truncate: false, .. } => {
            return Err(ExportError::NotComputed {
                feature: "yarn without truncation (rope_scaling.truncate false)",
            });
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate: true,
        } => {
            put("rope.scaling.type", Value::String("yarn".into()));
            put("rope.scaling.factor", Value::F32(factor as f32));
            put("rope.scaling.original_context_length", size(original_max_position_embeddings));
            // llama.cpp multiplies what is given by the factor that it derives.
            let given = (attention_factor / yarn_mscale(factor, 1.0)) as f32;
            if given != 1.0 {
                put("rope.scaling.attn_factor", Value::F32(given));
            }
            put("rope.scaling.yarn_beta_fast", Value::F32(beta_fast as f32));
            put("rope.scaling.yarn_beta_slow", Value::F32(beta_slow as f32));
        }
    }
    Ok(entries)
}

/// The divisors of the rotary frequencies that Llama 3's scaling comes to, `[head_dim / 2]`
/// (`LlamaModel.generate_extra_tensors` of the converter); `None` for every other scaling.
pub(super) fn rope_divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    let RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original,
    } = config.rope_scaling
    else {
        return None;
    };
    let divisor = |at: usize| {
        let exponent = 2.0 * at as f64 / config.head_dim as f64;
        let wavelength = std::f64::consts::TAU * config.rope_theta.powf(exponent);
        let turns = original as f64 / wavelength;
        let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        let smooth = smooth.clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    Some((0..config.head_dim / 2).map(divisor).collect())
}
