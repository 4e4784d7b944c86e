//! An adapter added to its base, read row by row; what does not fit; what a checkpoint's weights are.

use std::fs;
use std::path::Path;

use formats::merged::{MergeError, Weights};
use formats::peft::{self, Adapter, AdapterConfig, Factors, TargetModules};
use formats::safetensors::OutputTensor;
use formats::{Checkpoint, Dtype, FormatError};

use crate::support::{tiny_config, tiny_model};

const Q: &str = "model.layers.0.self_attn.q_proj";

/// A model with one projection (ones) and a head that a tied model ignores.
fn base(folder: &Path, tied: bool, tensors: &[(&str, [usize; 2])], number: f32) -> Checkpoint {
    fs::create_dir_all(folder).unwrap();
    let mut config = tiny_config("qwen2");
    config["tie_word_embeddings"] = tied.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let numbers = vec![number; 4096];
    let tensors = tensors
        .iter()
        .map(|(name, shape)| OutputTensor::f32(*name, *shape, &numbers[..shape[0] * shape[1]]))
        .collect();
    formats::safetensors::write(&folder.join("model.safetensors"), &[], tensors).unwrap();
    Checkpoint::open(folder).unwrap()
}

fn adapter(folder: &Path, module: &str, out_features: usize) -> Adapter {
    let config = AdapterConfig {
        r: 2,
        lora_alpha: 1.0,
        lora_dropout: 0.0,
        use_rslora: false,
        target_modules: TargetModules::Names(vec![module.into()]),
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        base_model_name_or_path: None,
    };
    let (a, b) = (vec![2.0; 2 * 3], (0..out_features * 2).map(|i| i as f32).collect::<Vec<_>>());
    let factors = Factors { module, in_features: 3, out_features, a: &a, b: &b };
    peft::write(folder, &config, None, &[factors]).unwrap();
    Adapter::open(folder).unwrap()
}

const Q_WEIGHT: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn the_product_is_added_where_the_adapter_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [(Q_WEIGHT, [4, 3]), ("lm_head.weight", [4, 3])];
    let checkpoint = base(&folder.path().join("base"), true, &tensors, 1.0);
    let adapter = adapter(&folder.path().join("adapter"), Q, 4);
    let weights = Weights::new(&checkpoint, Some(&adapter)).unwrap();
    let names: Vec<&str> = weights.tensors().map(|t| t.name.as_str()).collect();
    assert_eq!(names, [Q_WEIGHT], "a tied model has no head of its own");
    let tensor = weights.tensor(checkpoint.tensor(Q_WEIGHT).unwrap()).unwrap();
    let mut rows = [0.0; 6];
    tensor.read_rows(2..4, &mut rows).unwrap();
    // 1 + 0.5 · (b0 · 2 + b1 · 2), where b is 4, 5 and then 6, 7.
    assert_eq!(rows, [10.0, 10.0, 10.0, 14.0, 14.0, 14.0]);
    let plain = Weights::new(&checkpoint, None).unwrap();
    let tensor = plain.tensor(checkpoint.tensor(Q_WEIGHT).unwrap()).unwrap();
    tensor.read_rows(2..4, &mut rows).unwrap();
    assert_eq!(rows, [1.0; 6]);
}

#[test]
fn modules_that_the_base_lacks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |tied, tensors: &[(&str, [usize; 2])], module: &str, out| {
        let checkpoint = base(&folder.path().join("base"), tied, tensors, 1.0);
        let place = tempfile::tempdir_in(folder.path()).unwrap();
        let adapter = adapter(&place.path().join("a"), module, out);
        match Weights::new(&checkpoint, Some(&adapter)) {
            Err(FormatError::Merge { source, .. }) => Some(source),
            Err(other) => panic!("{other:?}"),
            Ok(_) => None,
        }
    };
    let tensors = [(Q_WEIGHT, [4, 3]), ("lm_head.weight", [4, 3])];
    assert!(matches!(
        refused(true, &tensors, "model.layers.1.self_attn.q_proj", 4),
        Some(MergeError::NoSuchModule { .. })
    ));
    assert!(matches!(refused(true, &tensors, Q, 5), Some(MergeError::WrongShape { .. })));
    assert_eq!(refused(true, &tensors, "lm_head", 4), Some(MergeError::TiedHead));
    assert_eq!(refused(false, &tensors, "lm_head", 4), None, "an untied head is a matrix");
}

#[test]
fn a_fingerprint_is_of_numbers_and_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let of = |checkpoint: &Checkpoint| checkpoint.fingerprint(2, &|_| ()).unwrap();
    let one = [(Q_WEIGHT, [4, 3])];
    let first = of(&base(&at("a"), true, &one, 1.0));
    assert!(first.starts_with("sha256:") && first.len() == 7 + 64);
    assert_eq!(of(&base(&at("b"), true, &one, 1.0)), first);
    let tied_head = [(Q_WEIGHT, [4, 3]), ("lm_head.weight", [4, 3])];
    assert_eq!(of(&base(&at("c"), true, &tied_head, 1.0)), first);
    for (name, other) in [
        ("number", base(&at("d"), true, &one, 1.0 + f32::EPSILON)),
        ("shape", base(&at("e"), true, &[(Q_WEIGHT, [3, 4])], 1.0)),
        ("name", base(&at("f"), true, &[("model.layers.1.self_attn.q_proj.weight", [4, 3])], 1.0)),
        ("head", base(&at("g"), false, &tied_head, 1.0)),
    ] {
        assert_ne!(of(&other), first, "{name}");
    }
    let qwen3 = Checkpoint::open(&tiny_model("qwen3")).unwrap();
    assert_eq!(
        qwen3.fingerprint(1, &|_| ()).unwrap(),
        qwen3.fingerprint(5, &|_| ()).unwrap(),
        "threads change nothing"
    );
    let gguf = Checkpoint::open(&tiny_model("llama_tied").join("gguf/f32.gguf")).unwrap();
    let folder = Checkpoint::open(&tiny_model("llama_tied")).unwrap();
    assert_eq!(of(&gguf), of(&folder), "storage changes nothing");
    assert_eq!(gguf.tensors()[0].dtype, Dtype::F32);
}

#[test]
fn progress_is_told() {
    let checkpoint = Checkpoint::open(&tiny_model("qwen3")).unwrap();
    let most = std::sync::atomic::AtomicUsize::new(0);
    checkpoint
        .fingerprint(2, &|done| {
            most.fetch_max(done, std::sync::atomic::Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(most.into_inner(), checkpoint.tensors().len());
}
