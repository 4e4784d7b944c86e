//! Small models of the real families.

use families::{BuildOptions, LoraSpec, Train, build};
use formats::ModelConfig;
use program::Graph;
use serde_json::{Value, json};

/// What is trained.
#[derive(Clone, Copy)]
pub(crate) enum Training {
    Full,
    Lora,
}

fn graph(config: Value, training: Training) -> Graph {
    let Value::Object(config) = config else { panic!("a configuration is an object") };
    let config = ModelConfig::from_json(config).unwrap();
    let train = match training {
        Training::Full => Train::Full,
        Training::Lora => Train::Lora(LoraSpec {
            r: 3,
            alpha: 6.0,
            rslora: false,
            targets: vec!["all-linear".into()],
        }),
    };
    build(&config, &BuildOptions { train, ..BuildOptions::default() }).unwrap().graph
}

/// Eight key/value heads, two query heads each; head norms; untied words.
pub(crate) fn qwen3(training: Training) -> Graph {
    let config = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 67,
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
        "tie_word_embeddings": false, "attention_bias": false, "hidden_act": "silu"
    });
    graph(config, training)
}

/// Three key/value heads, a feed-forward of 13, biases, tied words.
pub(crate) fn uneven(training: Training) -> Graph {
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 67,
        "hidden_size": 18, "intermediate_size": 13, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
        "tie_word_embeddings": true, "attention_bias": true, "mlp_bias": true, "hidden_act": "silu"
    });
    graph(config, training)
}
