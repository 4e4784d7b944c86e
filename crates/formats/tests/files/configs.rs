//! `config.json` in its forms, and every way in which it can be wrong.

use formats::config::Error;
use formats::{Architecture, Dtype, ModelConfig, RopeScaling};
use serde_json::{Value, json};

use crate::support::tiny_config;

fn read(value: Value) -> Result<ModelConfig, Error> {
    match value {
        Value::Object(object) => ModelConfig::from_json(object),
        other => panic!("a configuration is an object, not {other}"),
    }
}

/// The tiny configuration of a family with some keys set (or removed, with null).
fn with(model_type: &str, changes: Value) -> Result<ModelConfig, Error> {
    let mut config = tiny_config(model_type);
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    read(config)
}

/// `config.json` of Qwen3-8B as published.
fn qwen3_8b() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
        "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
    })
}

/// The rope parts of `config.json` of Llama-3.1-8B as published.
fn llama_3_1_rope() -> Value {
    json!({"rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}})
}

const LLAMA_3_1: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192,
};

#[test]
fn a_published_configuration_is_read() {
    let config = read(qwen3_8b()).unwrap();
    assert_eq!(config.architecture, Architecture::Qwen3);
    assert_eq!((config.hidden_size, config.intermediate_size), (4096, 12288));
    assert_eq!((config.query_size(), config.key_value_size()), (4096, 1024));
    assert_eq!((config.rope_theta, config.rms_norm_eps), (1e6, 1e-6));
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(151643), &[151645][..]));
    assert!(!config.tie_word_embeddings && !config.attention_bias);
    assert_eq!(config.dtype, Dtype::Bf16);
}

#[test]
fn families_differ_in_their_biases_and_defaults() {
    let bias = json!({"attention_bias": true, "mlp_bias": true});
    let llama = with("llama", bias.clone()).unwrap();
    assert!(llama.attention_bias && llama.attention_output_bias && llama.mlp_bias);
    let qwen2 = with("qwen2", json!({})).unwrap();
    assert!(qwen2.attention_bias && !qwen2.attention_output_bias && !qwen2.mlp_bias);
    let qwen3 = with("qwen3", bias).unwrap();
    assert!(qwen3.attention_bias && qwen3.attention_output_bias && !qwen3.mlp_bias);

    let without = json!({"head_dim": null, "num_key_value_heads": null, "rope_theta": null,
        "tie_word_embeddings": null, "torch_dtype": null, "bos_token_id": null, "eos_token_id": null});
    let llama = with("llama", without.clone()).unwrap();
    assert_eq!((llama.head_dim, llama.num_key_value_heads, llama.rope_theta), (4, 2, 1e4));
    assert_eq!((llama.dtype, llama.bos_token_id), (Dtype::F32, None));
    assert!(!llama.tie_word_embeddings && llama.eos_token_ids.is_empty());
    assert_eq!(with("qwen3", without).unwrap().head_dim, 128);
}

#[test]
fn rope_is_read_in_both_forms() {
    let old = with("llama", llama_3_1_rope()).unwrap();
    assert_eq!((old.rope_theta, &old.rope_scaling), (5e5, &LLAMA_3_1));

    let mut parameters = llama_3_1_rope()["rope_scaling"].clone();
    parameters["rope_theta"] = json!(500000.0);
    let new = json!({"rope_theta": null, "rope_parameters": parameters, "dtype": "float16"});
    let new = with("llama", new).unwrap();
    assert_eq!((new.rope_theta, &new.rope_scaling), (5e5, &LLAMA_3_1));
    assert_eq!(new.dtype, Dtype::F16, "dtype is newer than torch_dtype");

    let mut outer = llama_3_1_rope();
    outer["original_max_position_embeddings"] = json!(4096);
    match with("llama", outer).unwrap().rope_scaling {
        RopeScaling::Llama3 { original_max_position_embeddings: original, .. } => {
            assert_eq!(original, 4096, "the outer key wins")
        }
        other => panic!("{other:?}"),
    }

    let scaled =
        |scaling: Value| with("llama", json!({ "rope_scaling": scaling })).unwrap().rope_scaling;
    assert_eq!(scaled(json!({"type": "linear", "factor": 2})), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(
        scaled(json!({"rope_type": "dynamic", "factor": 4.0})),
        RopeScaling::Dynamic { factor: 4.0 }
    );
    assert_eq!(scaled(json!({"rope_type": "default"})), RopeScaling::None);
    assert_eq!(scaled(json!({})), RopeScaling::None);
}

#[test]
fn yarn_derives_its_attention_factor_as_transformers_does() {
    let attention_factor = |scaling: Value| match with("qwen3", json!({ "rope_scaling": scaling }))
        .unwrap()
        .rope_scaling
    {
        RopeScaling::Yarn { attention_factor, original_max_position_embeddings, .. } => {
            assert_eq!(original_max_position_embeddings, 64);
            attention_factor
        }
        other => panic!("{other:?}"),
    };
    // 0.1 · ln 4 + 1, and the ratio of two of its kind.
    let plain = attention_factor(json!({"rope_type": "yarn", "factor": 4.0}));
    assert_eq!(plain, 0.1 * 4f64.ln() + 1.0);
    let given = json!({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5});
    assert_eq!(attention_factor(given), 0.5);
    let ratio = json!({"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0});
    assert_eq!(attention_factor(ratio), (0.2 * 4f64.ln() + 1.0) / (0.1 * 4f64.ln() + 1.0));
    let small = json!({"rope_type": "yarn", "factor": 0.5, "beta_fast": 0});
    assert_eq!(attention_factor(small), 1.0);
}

#[test]
fn unsupported_features_name_their_key() {
    for (model_type, changes, key) in [
        ("llama", json!({"hidden_act": "gelu"}), "hidden_act"),
        ("llama", json!({"quantization_config": {"bits": 4}}), "quantization_config"),
        ("llama", json!({"attention_dropout": 0.1}), "attention_dropout"),
        ("llama", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        ("llama", json!({"sliding_window": 4096}), "sliding_window"),
        (
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0}),
            "sliding_window",
        ),
        ("qwen3", json!({"layer_types": ["sliding_attention"]}), "layer_types"),
        ("llama", json!({"torch_dtype": "int8"}), "torch_dtype"),
        ("llama", json!({"head_dim": 5}), "head_dim"),
        ("llama", json!({"rope_scaling": {"rope_type": "longrope"}}), "rope_scaling.rope_type"),
        (
            "llama",
            json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
            "rope_parameters.full_attention",
        ),
    ] {
        match with(model_type, changes) {
            Err(Error::Unsupported { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    let unused = json!({"use_sliding_window": false, "sliding_window": 8, "max_window_layers": 0});
    assert!(with("qwen2", unused).is_ok());
    let beyond = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1});
    assert!(with("qwen2", beyond).is_ok());
}

#[test]
fn unknown_architectures_are_refused() {
    for (changes, key) in [
        (json!({"model_type": "gpt2"}), "model_type"),
        (json!({"architectures": ["LlamaForSequenceClassification"]}), "architectures"),
    ] {
        match with("llama", changes) {
            Err(Error::UnknownArchitecture { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn keys_are_required_and_typed() {
    for key in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ] {
        match with("llama", json!({ key: null })) {
            Err(Error::MissingKey { key: found }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
        match with("llama", json!({ key: [] })) {
            Err(Error::WrongType { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    for changes in [
        json!({"eos_token_id": "2"}),
        json!({"eos_token_id": [2, -1]}),
        json!({"bos_token_id": 1u64 << 32}),
        json!({"hidden_size": -8}),
        json!({"hidden_size": 8.5}),
        json!({"rope_scaling": 2}),
    ] {
        assert!(
            matches!(with("llama", changes.clone()), Err(Error::WrongType { .. })),
            "{changes}"
        );
    }
    let missing = with("llama", json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}));
    assert!(
        matches!(missing, Err(Error::MissingKey { key }) if key == "rope_scaling.low_freq_factor")
    );
}

#[test]
fn impossible_sizes_are_refused() {
    for key in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ] {
        for absurd in [0u64, 1 << 40] {
            match with("llama", json!({ key: absurd })) {
                Err(Error::OutOfRange { key: found, .. }) => assert_eq!(found, key),
                other => panic!("{key}: {other:?}"),
            }
        }
    }
    for changes in [
        json!({"rms_norm_eps": 0.0}),
        json!({"rms_norm_eps": 2.0}),
        json!({"rope_theta": -1.0}),
        json!({"rope_scaling": {"type": "linear", "factor": 0.0}}),
        json!({"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}),
        json!({"rope_scaling": {"type": "yarn", "factor": 8.0, "beta_fast": -1.0}}),
    ] {
        assert!(
            matches!(with("llama", changes.clone()), Err(Error::OutOfRange { .. })),
            "{changes}"
        );
    }
    let uneven = with("llama", json!({"num_attention_heads": 3, "num_key_value_heads": 2}));
    assert!(matches!(uneven, Err(Error::NotAMultiple { key: "num_attention_heads", .. })));
    let uneven = with("llama", json!({"head_dim": null, "num_attention_heads": 3}));
    assert!(matches!(uneven, Err(Error::NotAMultiple { key: "hidden_size", .. })));
}

#[test]
fn written_configurations_keep_unknown_keys_and_say_their_type() {
    let mut raw = qwen3_8b();
    raw["dtype"] = json!("float32");
    let config = read(raw).unwrap();
    let written = config.to_json(Dtype::Bf16);
    assert_eq!(written["initializer_range"], json!(0.02));
    assert_eq!(written["torch_dtype"], json!("bfloat16"));
    assert!(!written.contains_key("dtype"));
    let again = ModelConfig::from_json(written).unwrap();
    assert_eq!((again.dtype, again.rope_theta), (Dtype::Bf16, 1e6));
}

#[test]
fn files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let absent = ModelConfig::from_json_file(&path).unwrap_err();
    assert!(matches!(absent, formats::FormatError::Io { .. }));
    std::fs::write(&path, "[1]").unwrap();
    let wrong = ModelConfig::from_json_file(&path).unwrap_err();
    assert!(matches!(wrong, formats::FormatError::Config { source: Error::NotJson(_), .. }));
    assert!(wrong.to_string().contains("config.json"));
    let huge = std::fs::File::create(&path).unwrap();
    huge.set_len(formats::config::MAX_CONFIG_BYTES + 1).unwrap();
    let wrong = ModelConfig::from_json_file(&path).unwrap_err();
    assert!(matches!(wrong, formats::FormatError::Config { source: Error::TooLarge { .. }, .. }));
    std::fs::write(&path, qwen3_8b().to_string()).unwrap();
    assert!(ModelConfig::from_json_file(&path).is_ok());
    let folder = ModelConfig::from_json_file(folder.path()).unwrap_err();
    assert!(matches!(folder, formats::FormatError::NotAFile { .. }));
}
