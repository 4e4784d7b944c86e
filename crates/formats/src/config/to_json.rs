//! `config.json` for a checkpoint that is written.

use serde_json::{Map, Value, json};

use super::ModelConfig;
use crate::Dtype;

pub(super) fn to_json(config: &ModelConfig, dtype: Dtype) -> Map<String, Value> {
    let mut object = match &config.raw {
        Some(raw) => raw.clone(),
        None => synthesize(config),
    };
    // Both spellings must not disagree; the older one is read by every version.
    object.shift_remove("dtype");
    object.insert("torch_dtype".to_owned(), json!(dtype.torch_name()));
    object
}

/// A configuration in the form of transformers 4, which version 5 reads too.
fn synthesize(config: &ModelConfig) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    put("architectures", json!([config.architecture.class_name()]));
    put("model_type", json!(config.architecture.model_type()));
    put("vocab_size", json!(config.vocab_size));
    put("hidden_size", json!(config.hidden_size));
    put("intermediate_size", json!(config.intermediate_size));
    put("num_hidden_layers", json!(config.num_hidden_layers));
    put("num_attention_heads", json!(config.num_attention_heads));
    put("num_key_value_heads", json!(config.num_key_value_heads));
    put("head_dim", json!(config.head_dim));
    put("hidden_act", json!("silu"));
    put("rms_norm_eps", json!(config.rms_norm_eps));
    put("rope_theta", json!(config.rope_theta));
    put("rope_scaling", json!(config.rope_scaling.to_json()));
    put("max_position_embeddings", json!(config.max_position_embeddings));
    put("tie_word_embeddings", json!(config.tie_word_embeddings));
    put("attention_bias", json!(config.attention_bias));
    put("attention_dropout", json!(0.0));
    put("mlp_bias", json!(config.mlp_bias));
    put("bos_token_id", json!(config.bos_token_id));
    let eos = match config.eos_token_ids.as_slice() {
        [] => Value::Null,
        [one] => json!(one),
        many => json!(many),
    };
    put("eos_token_id", eos);
    object
}
