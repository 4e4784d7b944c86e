//! PEFT adapters: written and read back, and every way in which one can be wrong.

use std::fs;
use std::path::Path;

use formats::FormatError;
use formats::peft::{
    Adapter, AdapterConfig, Error, Factors, ORIGIN_FILE, Origin, TargetModules, write,
};
use formats::safetensors::OutputTensor;
use serde_json::{Value, json};

const Q: &str = "model.layers.0.self_attn.q_proj";
const DOWN: &str = "model.layers.11.mlp.down_proj";

fn config() -> AdapterConfig {
    AdapterConfig {
        r: 2,
        lora_alpha: 4.0,
        lora_dropout: 0.05,
        use_rslora: false,
        target_modules: TargetModules::Names(vec!["q_proj".into(), "down_proj".into()]),
        rank_pattern: vec![("mlp.down_proj".into(), 1)],
        alpha_pattern: vec![(DOWN.into(), 3.0)],
        base_model_name_or_path: Some("owner/name".into()),
    }
}

fn origin() -> Origin {
    Origin { base_weights: "sha256:00".into(), base_model: "owner/name".into() }
}

/// Numbers counting up from `first`.
fn numbers(first: usize, count: usize) -> Vec<f32> {
    (first..first + count).map(|i| i as f32).collect()
}

/// Writes an adapter of two modules to a new folder inside `folder`.
fn write_two(folder: &Path, config: &AdapterConfig) -> Result<(), FormatError> {
    let (a, b) = (numbers(0, 6), numbers(6, 8));
    let (a_down, b_down) = (numbers(20, 5), numbers(25, 3));
    let q = Factors { module: Q, in_features: 3, out_features: 4, a: &a, b: &b };
    let down = Factors { module: DOWN, in_features: 5, out_features: 3, a: &a_down, b: &b_down };
    write(&folder.join("adapter"), config, Some(&origin()), &[q, down])
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), &config()).unwrap();
    let adapter = Adapter::open(&folder.path().join("adapter")).unwrap();
    assert_eq!(adapter.config(), &config());
    assert_eq!(adapter.origin(), Some(&origin()));
    let [q, down] = adapter.modules() else { panic!("{:?}", adapter.modules()) };
    assert_eq!((q.name.as_str(), q.rank, q.in_features, q.out_features), (Q, 2, 3, 4));
    assert_eq!(
        (down.name.as_str(), down.rank, down.in_features, down.out_features),
        (DOWN, 1, 5, 3)
    );
    assert_eq!((q.scale, down.scale), (2.0, 3.0));
    let mut a = vec![0.0; 6];
    adapter.read_a(q, &mut a).unwrap();
    assert_eq!(a, numbers(0, 6));
    let mut b = vec![0.0; 3];
    adapter.read_b(down, &mut b).unwrap();
    assert_eq!(b, numbers(25, 3));
    let error = adapter.read_b(down, &mut [0.0; 4]).unwrap_err();
    assert!(matches!(error, FormatError::Adapter { source: Error::WrongBufferLength { .. }, .. }));
}

#[test]
fn the_files_are_those_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), &config()).unwrap();
    let folder = folder.path().join("adapter");
    let json = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["peft_type"], "LORA");
    assert_eq!(json["task_type"], "CAUSAL_LM");
    assert_eq!(json["lora_alpha"].to_string(), "4", "peft declares alpha as an integer");
    assert_eq!(json["target_modules"], json!(["q_proj", "down_proj"]));
    let bytes = fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let tensors = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = tensors.names();
    names.sort();
    assert_eq!(
        names,
        [
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
            "base_model.model.model.layers.11.mlp.down_proj.lora_A.weight",
            "base_model.model.model.layers.11.mlp.down_proj.lora_B.weight",
        ]
    );
    let a = tensors.tensor(names[0]).unwrap();
    assert_eq!((a.shape(), a.data()), (&[2, 3][..], bytemuck::cast_slice(&numbers(0, 6))));
}

#[test]
fn scales_follow_rank_alpha_and_rslora() {
    let rslora = AdapterConfig { use_rslora: true, r: 16, ..config() };
    assert_eq!(rslora.scale_of(Q), 1.0);
    assert_eq!(rslora.scale_of(DOWN), 3.0);
    assert_eq!(config().rank_of("model.layers.3.mlp.down_proj"), 1);
    // A pattern matches only whole names: `(.*\.)?(pattern)$`.
    assert_eq!(config().rank_of("model.layers.3.xmlp.down_proj"), 2);
    assert_eq!(config().rank_of("mlp.down_proj"), 1);
}

#[test]
fn an_origin_may_be_absent_but_not_wrong() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), &config()).unwrap();
    let adapter = folder.path().join("adapter");
    for wrong in ["{}", "[]", "{\"base_weights\": 1, \"base_model\": \"x\"}", "not JSON"] {
        fs::write(adapter.join(ORIGIN_FILE), wrong).unwrap();
        let error = Adapter::open(&adapter).unwrap_err().to_string();
        assert!(error.contains(ORIGIN_FILE), "{wrong}: {error}");
    }
    fs::remove_file(adapter.join(ORIGIN_FILE)).unwrap();
    assert_eq!(Adapter::open(&adapter).unwrap().origin(), None);
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), &config()).unwrap();
    let again = write_two(folder.path(), &config()).unwrap_err();
    assert!(matches!(again, FormatError::TargetNotEmpty { .. }));
}

#[test]
fn wrong_factors_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("adapter");
    let refused = |config: &AdapterConfig, modules: &[Factors<'_>]| {
        let error = write(&target, config, None, modules).unwrap_err();
        assert!(!target.exists());
        match error {
            FormatError::Adapter { source, .. } => source,
            other => panic!("{other:?}"),
        }
    };
    let (a, b) = (numbers(0, 6), numbers(6, 8));
    let q = Factors { module: Q, in_features: 3, out_features: 4, a: &a, b: &b };
    assert!(matches!(refused(&config(), &[]), Error::Empty));
    assert!(matches!(refused(&config(), &[q, q]), Error::DuplicateModule { .. }));
    let short = Factors { b: &b[..7], ..q };
    assert!(matches!(
        refused(&config(), &[short]),
        Error::WrongBufferLength { needed: 8, found: 7, .. }
    ));
    let no_rank = AdapterConfig { r: 0, ..config() };
    assert!(matches!(refused(&no_rank, &[q]), Error::BadRank { found: 0, .. }));
    let no_alpha = AdapterConfig { lora_alpha: f64::NAN, ..config() };
    assert!(matches!(refused(&no_alpha, &[q]), Error::BadAlpha { .. }));
}

fn read_config(changes: Value) -> Result<AdapterConfig, Error> {
    let mut object = config().to_json();
    for (key, value) in changes.as_object().unwrap() {
        object.insert(key.clone(), value.clone());
    }
    AdapterConfig::from_json(&object)
}

#[test]
fn a_configuration_of_peft_0_21_is_read() {
    // As LoraConfig(r=8, target_modules="all-linear").save_pretrained writes it.
    let changes = json!({
        "alora_invocation_tokens": null, "arrow_config": null, "auto_mapping": null,
        "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
        "exclude_modules": null, "inference_mode": true, "init_lora_weights": true,
        "kasa_config": null, "layer_replication": null, "layers_pattern": null,
        "layers_to_transform": null, "loftq_config": {}, "lora_bias": false,
        "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core",
        "modules_to_save": null, "monteclora_config": null, "peft_version": "0.21.0",
        "qalora_group_size": 16, "revision": null, "target_modules": "all-linear",
        "target_parameters": null, "trainable_token_indices": null, "use_bdlora": null,
        "use_dora": false, "use_qalora": false, "velora_config": null});
    let read = read_config(changes).unwrap();
    assert_eq!(read.target_modules, TargetModules::Pattern("all-linear".into()));
    assert_eq!(read.rank_pattern, config().rank_pattern);
}

#[test]
fn other_kinds_of_adapter_are_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("task_type", json!("SEQ_CLS")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("lora_bias", json!(true)),
        ("use_qalora", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("layer_replication", json!([[0, 4]])),
        ("trainable_token_indices", json!([1])),
        ("an_option_of_the_future", json!({"x": 1})),
    ] {
        match read_config(json!({ key: value })) {
            Err(Error::Unsupported { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn wrong_configurations_are_refused() {
    for key in ["peft_type", "r", "lora_alpha", "target_modules"] {
        match read_config(json!({ key: null })) {
            Err(Error::MissingKey { key: found }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    for (key, value) in [
        ("r", json!(-1)),
        ("lora_alpha", json!("16")),
        ("lora_dropout", json!(1.0)),
        ("use_rslora", json!(1)),
        ("target_modules", json!(7)),
        ("target_modules", json!([7])),
        ("rank_pattern", json!([])),
        ("rank_pattern", json!({"q_proj": 1.5})),
        ("base_model_name_or_path", json!(1)),
    ] {
        match read_config(json!({ key: value })) {
            Err(Error::WrongType { key: found, .. }) => assert_eq!(found, key),
            other => panic!("{key}: {other:?}"),
        }
    }
    assert!(matches!(read_config(json!({"r": 0})), Err(Error::BadRank { .. })));
    assert!(matches!(read_config(json!({"r": 1 << 20})), Err(Error::BadRank { .. })));
    assert!(matches!(read_config(json!({"lora_alpha": 0})), Err(Error::BadAlpha { .. })));
    let pattern = read_config(json!({"alpha_pattern": {"layers.[0-3].*": 2}}));
    assert!(matches!(pattern, Err(Error::PatternNotPlain { key: "alpha_pattern", .. })));
}

#[test]
fn wrong_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_two(folder.path(), &config()).unwrap();
    let folder = folder.path().join("adapter");
    let refused = |tensors: &[(&str, [usize; 2])]| {
        let zeros = [0.0; 64];
        let tensors = tensors
            .iter()
            .map(|(name, shape)| {
                let name = format!("base_model.model.{Q}.{name}");
                OutputTensor::f32(name, *shape, &zeros[..shape[0] * shape[1]])
            })
            .collect();
        let path = folder.join("adapter_model.safetensors");
        formats::safetensors::write(&path, &[], tensors).unwrap();
        match Adapter::open(&folder) {
            Err(FormatError::Adapter { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused(&[]), Error::Empty));
    let half = refused(&[("lora_A.weight", [2, 3])]);
    assert!(matches!(half, Error::HalfModule { missing: "lora_B", .. }));
    let half = refused(&[("lora_B.weight", [4, 2])]);
    assert!(matches!(half, Error::HalfModule { missing: "lora_A", .. }));
    let rank = refused(&[("lora_A.weight", [3, 3]), ("lora_B.weight", [4, 3])]);
    assert!(matches!(rank, Error::WrongShape { rank: 2, .. }));
    for name in ["lora_magnitude_vector", "lora_embedding_A", "lora_A.bias", "weight"] {
        let stranger = refused(&[(name, [1, 1])]);
        assert!(matches!(stranger, Error::UnknownTensor { .. }), "{stranger:?}");
    }
    let integers = OutputTensor::new(
        format!("base_model.model.{Q}.lora_A.weight"),
        formats::Dtype::I8,
        [2, 3],
        |w| Ok(w.write_all(&[0; 6])?),
    );
    let path = folder.join("adapter_model.safetensors");
    formats::safetensors::write(&path, &[], vec![integers]).unwrap();
    let error = Adapter::open(&folder).unwrap_err();
    assert!(matches!(error, FormatError::Adapter { source: Error::UnreadableDtype { .. }, .. }));
    fs::write(&path, "short").unwrap();
    assert!(matches!(Adapter::open(&folder), Err(FormatError::Safetensors { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(Adapter::open(&folder), Err(FormatError::Io { .. })));
}
