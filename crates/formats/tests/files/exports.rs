//! The GGUF writer: against files of the reference package, read back, and every way in which a model or adapter has no
//! place in one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use formats::export::{ExportError, Model, Written, write_adapter, write_model};
use formats::gguf::{
    Array, File, MAX_PARTS, MAX_WRITTEN_NAME_BYTES, Metadata, Tensor, Value, quantize, write,
};
use formats::merged::Weights;
use formats::peft::{self, Adapter, AdapterConfig, Factors, TargetModules};
use formats::safetensors::OutputTensor;
use formats::{Checkpoint, Dtype, FormatError};
use half::bf16;

use crate::support::{golden, tiny_config, tiny_model};

/// A file's tensors with their bytes.
struct Stored {
    file: File,
    bytes: Vec<u8>,
}

impl Stored {
    fn open(path: &Path) -> Stored {
        Stored { file: File::open(path).unwrap(), bytes: fs::read(path).unwrap() }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.file.tensor(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn of(&self, name: &str) -> &[u8] {
        let tensor = self.tensor(name);
        &self.bytes[tensor.offset as usize..][..tensor.bytes as usize]
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.of(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

#[test]
fn every_type_is_quantized_to_the_reference_bits() {
    let reference = Stored::open(&golden("quants.gguf"));
    let input = reference.f32("input");
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Q8_0, Dtype::Q4_0] {
        let mut found = Vec::new();
        quantize(dtype, &input, &mut found).unwrap();
        let expected = reference.of(&dtype.to_string());
        assert_eq!(found.len(), expected.len());
        let block = dtype.block_bytes();
        for (at, (found, expected)) in found.chunks(block).zip(expected.chunks(block)).enumerate() {
            assert_eq!(found, expected, "{dtype}: block {at}");
        }
    }
}

fn export(model: &str, dtype: Dtype, path: &Path) -> Result<Written, FormatError> {
    let checkpoint = Checkpoint::open(&tiny_model(model)).unwrap();
    let weights = Weights::new(&checkpoint, None).unwrap();
    let vocabulary = Metadata::default();
    write_model(
        path,
        &Model { weights: &weights, name: "tiny", vocabulary: &vocabulary, dtype },
        &|| (),
    )
}

/// `scripts/goldens/tiny_gguf.py` made the files with the reference package from the same weights.
#[test]
fn tensors_are_those_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["llama_tied", "llama_rope_llama3", "qwen3"] {
        for (dtype, name) in [(Dtype::F32, "f32"), (Dtype::Q8_0, "q8_0")] {
            let path = folder.path().join(format!("{model}-{name}.gguf"));
            let written = export(model, dtype, &path).unwrap();
            assert_eq!(written.bytes, fs::metadata(&path).unwrap().len());
            let ours = Stored::open(&path);
            let theirs = Stored::open(&tiny_model(model).join(format!("gguf/{name}.gguf")));
            assert_eq!(ours.file.tensors().len(), theirs.file.tensors().len());
            for tensor in theirs.file.tensors() {
                let found = ours.tensor(&tensor.name);
                assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape));
                assert!(
                    ours.of(&tensor.name) == theirs.of(&tensor.name),
                    "{model} {}",
                    tensor.name
                );
            }
        }
    }
}

const MODELS: [&str; 8] = [
    "llama",
    "llama_bias",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_rope_yarn",
    "llama_tied",
    "qwen2",
    "qwen3",
];

fn read(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut numbers = vec![0.0; tensor.elements()];
    checkpoint.read_rows_f32(name, 0..tensor.rows(), &mut numbers).unwrap();
    numbers
}

/// Weights to the bit, and every key of the configuration that changes the arithmetic.
#[test]
fn a_model_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for model in MODELS {
        let path = folder.path().join(format!("{model}.gguf"));
        export(model, Dtype::F32, &path).unwrap();
        let (before, after) =
            (Checkpoint::open(&tiny_model(model)).unwrap(), Checkpoint::open(&path).unwrap());
        let mut config = before.config().clone();
        // The tokenizer's entries hold these, and there are none here.
        (config.bos_token_id, config.eos_token_ids) = (None, Vec::new());
        assert_eq!(arithmetic(&config), arithmetic(after.config()), "{model}");
        for tensor in before.tensors() {
            assert!(
                read(&before, &tensor.name) == read(&after, &tensor.name),
                "{model} {}",
                tensor.name
            );
        }
        assert_eq!(before.fingerprint(1, &|_| ()).unwrap(), after.fingerprint(2, &|_| ()).unwrap());
    }
}

/// The arithmetic of a configuration, whatever file it came from.
fn arithmetic(config: &formats::ModelConfig) -> serde_json::Value {
    let c = config;
    serde_json::json!([
        c.architecture.model_type(),
        c.vocab_size,
        c.hidden_size,
        c.intermediate_size,
        c.num_hidden_layers,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.head_dim,
        c.rms_norm_eps,
        c.rope_theta,
        format!("{:?}", c.rope_scaling),
        c.max_position_embeddings,
        c.tie_word_embeddings,
        c.attention_bias,
        c.attention_output_bias,
        c.mlp_bias,
        c.bos_token_id,
        c.eos_token_ids,
    ])
}

#[test]
fn smaller_types_round_once_and_spare_what_reaches_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let before = Checkpoint::open(&tiny_model("qwen3")).unwrap();
    const GATE: &str = "model.layers.0.mlp.gate_proj.weight";
    export("qwen3", Dtype::Bf16, &path).unwrap();
    let after = Checkpoint::open(&path).unwrap();
    let rounded: Vec<f32> =
        read(&before, GATE).iter().map(|&n| bf16::from_f32(n).to_f32()).collect();
    assert_eq!(read(&after, GATE), rounded);
    let types = |dtype| {
        export("qwen3", dtype, &path).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        ["model.embed_tokens.weight", GATE, "model.norm.weight"]
            .map(|name| checkpoint.tensor(name).unwrap().dtype)
    };
    assert_eq!(types(Dtype::Q4_0), [Dtype::Q8_0, Dtype::Q4_0, Dtype::F32]);
    assert_eq!(types(Dtype::F16), [Dtype::F16, Dtype::F16, Dtype::F32]);
}

#[track_caller]
fn refusal(result: Result<impl std::fmt::Debug, FormatError>) -> ExportError {
    match result.unwrap_err() {
        FormatError::Export { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let error = refusal(export("llama_rope_dynamic", Dtype::F32, &path));
    assert!(matches!(error, ExportError::NotComputed { .. }), "{error}");
    let error = refusal(export("qwen3", Dtype::Q6K, &path));
    assert_eq!(error, ExportError::NotWritable { dtype: Dtype::Q6K });
    // The feed-forward of this one is 48 wide.
    let error = refusal(export("llama", Dtype::Q8_0, &path));
    assert!(matches!(error, ExportError::PartialBlock { row: 48, block: 32, .. }), "{error}");
    assert!(!path.exists());
}

/// A folder with a config.json and tensors of zeros.
fn model(folder: &Path, tensors: &[(&str, &[usize])]) -> Checkpoint {
    fs::write(folder.join("config.json"), tiny_config("llama").to_string()).unwrap();
    let zeros = vec![0.0; 4096];
    let tensors = tensors
        .iter()
        .map(|(name, shape)| OutputTensor::f32(*name, *shape, &zeros[..shape.iter().product()]))
        .collect();
    formats::safetensors::write(&folder.join("model.safetensors"), &[], tensors).unwrap();
    Checkpoint::open(folder).unwrap()
}

#[test]
fn tensors_without_a_place_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let export = |checkpoint: &Checkpoint| {
        let weights = Weights::new(checkpoint, None).unwrap();
        let vocabulary = Metadata::default();
        let model =
            Model { weights: &weights, name: "", vocabulary: &vocabulary, dtype: Dtype::F32 };
        write_model(&folder.path().join("model.gguf"), &model, &|| ())
    };
    let error = refusal(export(&model(folder.path(), &[("vision.weight", &[2, 2])])));
    assert!(matches!(error, ExportError::NoPlace { .. }), "{error}");
    for rows in [1, 7, 9] {
        let q = ("model.layers.0.self_attn.q_proj.weight", &[rows, 8][..]);
        let error = refusal(export(&model(folder.path(), &[q])));
        assert!(matches!(error, ExportError::WrongRows { expected: 8, .. }), "{error}");
    }
    let q = ("model.layers.0.self_attn.q_proj.weight", &[8, 8][..]);
    export(&model(folder.path(), &[q])).unwrap();
}

#[test]
fn numbers_that_no_block_holds_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), tiny_config("qwen2").to_string()).unwrap();
    let numbers = [1.0, f32::INFINITY];
    let tensor = OutputTensor::f32("model.norm.weight", [2], &numbers);
    formats::safetensors::write(&folder.path().join("model.safetensors"), &[], vec![tensor])
        .unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let weights = Weights::new(&checkpoint, None).unwrap();
    let (path, vocabulary) = (folder.path().join("model.gguf"), Metadata::default());
    let model = Model { weights: &weights, name: "", vocabulary: &vocabulary, dtype: Dtype::F32 };
    let error = write_model(&path, &model, &|| ()).unwrap_err();
    assert!(error.to_string().contains("number 1 is inf"), "{error}");
    assert!(!path.exists());
}

/// An adapter of one module, with numbers counting up.
fn adapter(folder: &Path, module: &str, in_features: usize, out_features: usize) -> Adapter {
    let config = AdapterConfig {
        r: 2,
        lora_alpha: 8.0,
        lora_dropout: 0.0,
        use_rslora: false,
        target_modules: TargetModules::Names(vec![module.into()]),
        rank_pattern: Vec::new(),
        alpha_pattern: vec![("v_proj".into(), 2.0)],
        base_model_name_or_path: None,
    };
    let count = |n: usize| (0..n).map(|i| i as f32).collect::<Vec<f32>>();
    let (a, b) = (count(2 * in_features), count(out_features * 2));
    let (v_a, v_b) = (count(2 * 8), count(4 * 2));
    let v = "model.layers.0.self_attn.v_proj";
    let modules = [
        Factors { module, in_features, out_features, a: &a, b: &b },
        Factors { module: v, in_features: 8, out_features: 4, a: &v_a, b: &v_b },
    ];
    let place: PathBuf = folder.join(format!("adapter-{module}"));
    peft::write(&place, &config, None, &modules).unwrap();
    Adapter::open(&place).unwrap()
}

#[test]
fn an_adapter_is_written_in_the_order_of_its_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let config =
        formats::ModelConfig::from_json(tiny_config("llama").as_object().unwrap().clone()).unwrap();
    let adapter = adapter(folder.path(), "model.layers.0.self_attn.q_proj", 8, 8);
    let bytes = write_adapter(&path, &adapter, &config).unwrap();
    assert_eq!(bytes, fs::metadata(&path).unwrap().len());
    let stored = Stored::open(&path);
    let metadata = stored.file.metadata();
    assert_eq!(metadata.str("general.type").unwrap(), Some("adapter"));
    assert_eq!(metadata.str("adapter.type").unwrap(), Some("lora"));
    assert_eq!(metadata.get("adapter.lora.alpha"), Some(&Value::F32(8.0)));
    assert_eq!(stored.tensor("blk.0.attn_q.weight.lora_a").shape, [2, 8]);
    assert_eq!(stored.tensor("blk.0.attn_q.weight.lora_b").shape, [8, 2]);
    // Rows 0 1 2 3 of each head of 4 become 0 2 1 3.
    let rows = [0, 2, 1, 3, 4, 6, 5, 7];
    let expected: Vec<f32> =
        rows.iter().flat_map(|r| [2 * r, 2 * r + 1]).map(|i| i as f32).collect();
    assert_eq!(stored.f32("blk.0.attn_q.weight.lora_b"), expected);
    // Its own alpha is a quarter of the file's, and v is not rotated.
    let quarter: Vec<f32> = (0..8).map(|i| i as f32 / 4.0).collect();
    assert_eq!(stored.f32("blk.0.attn_v.weight.lora_b"), quarter);
}

#[test]
fn modules_without_a_place_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let config =
        formats::ModelConfig::from_json(tiny_config("llama").as_object().unwrap().clone()).unwrap();
    let refused = |module: &str, out| {
        refusal(write_adapter(&path, &adapter(folder.path(), module, 8, out), &config))
    };
    assert_eq!(refused("lm_head", 10), ExportError::TiedHead);
    assert!(matches!(refused("vision.q", 8), ExportError::NoPlace { .. }));
    let wrong = refused("model.layers.0.self_attn.k_proj", 8);
    assert!(matches!(wrong, ExportError::WrongRows { rows: 8, expected: 4, .. }), "{wrong}");
    assert!(!path.exists());
}

#[test]
fn tensors_that_gguf_cannot_hold_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.gguf");
    let none = Metadata::default;
    let tensor =
        |name: &str, dtype, shape: &[usize]| OutputTensor::new(name, dtype, shape, |_| Ok(()));
    let long = "x".repeat(MAX_WRITTEN_NAME_BYTES + 1);
    for (wrong, word) in [
        (tensor("a", Dtype::Bool, &[1]), "no such type"),
        (tensor("a", Dtype::F32, &[]), "1 to 4 axes"),
        (tensor("a", Dtype::F32, &[1; 5]), "1 to 4 axes"),
        (tensor("a", Dtype::F32, &[2, 0]), "no numbers"),
        (tensor(&long, Dtype::F32, &[1]), "63 bytes"),
        (tensor("a", Dtype::Q8_0, &[32, 33]), "whole number of blocks"),
        (tensor("a", Dtype::F32, &[usize::MAX, 2]), "overflows"),
    ] {
        let error = write(&path, &none(), vec![wrong]).unwrap_err();
        assert!(matches!(error, FormatError::UnwritableTensor { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let one = || OutputTensor::f32("a", [1], &[1.0]);
    assert!(write(&path, &none(), vec![one(), one()]).unwrap_err().to_string().contains("taken"));
    let short = write(&path, &none(), vec![tensor("a", Dtype::F32, &[1])]).unwrap_err();
    assert!(matches!(short, FormatError::WrongFillLength { needed: 4, found: 0, .. }), "{short}");
    assert!(!path.exists());
}

#[test]
fn every_value_type_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.gguf");
    let reference = File::open(&golden("dequant.gguf")).unwrap();
    let arrays = [
        Array::U8(vec![1, 255]),
        Array::I8(vec![-1]),
        Array::U16(vec![60000]),
        Array::I16(vec![-30000]),
        Array::U32(vec![1 << 31]),
        Array::U64(vec![1 << 63]),
        Array::I64(vec![-1]),
        Array::F64(vec![0.1]),
        Array::String(Vec::new()),
    ];
    let arrays =
        arrays.into_iter().enumerate().map(|(i, a)| (format!("array.{i}"), Value::Array(a)));
    let metadata: Metadata =
        reference.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).chain(arrays).collect();
    write(&path, &metadata, vec![OutputTensor::f32("a", [3], &[1.0, 2.0, 3.0])]).unwrap();
    let found = File::open(&path).unwrap();
    let entries = |metadata: &Metadata| -> BTreeMap<String, Value> {
        metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect()
    };
    assert_eq!(entries(found.metadata()), entries(&metadata));
    assert!(metadata.len() > 20);
}

/// Writes a model in parts of a few tensors, as `llama-gguf-split` does.
fn split(whole: &Path, folder: &Path, parts: u64) {
    let stored = Stored::open(whole);
    let tensors = stored.file.tensors();
    let each = tensors.len().div_ceil(parts as usize);
    for (number, part) in tensors.chunks(each).enumerate() {
        let of_split = [("split.no", number as u64), ("split.count", parts)]
            .map(|(key, value)| (key.to_owned(), Value::U16(value as u16)));
        let first = stored.file.metadata().iter().filter(|_| number == 0);
        let metadata: Metadata =
            first.map(|(k, v)| (k.to_owned(), v.clone())).chain(of_split).collect();
        let outputs = part
            .iter()
            .map(|tensor| {
                let bytes = stored.of(&tensor.name);
                OutputTensor::new(
                    &*tensor.name,
                    tensor.dtype,
                    tensor.shape.clone(),
                    move |writer| Ok(writer.write_all(bytes)?),
                )
            })
            .collect();
        let name = format!("model-{:05}-of-{parts:05}.gguf", number + 1);
        write(&folder.join(name), &metadata, outputs).unwrap();
    }
}

#[test]
fn a_split_model_is_read_from_its_first_part() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for model in ["llama_rope_llama3", "qwen3"] {
        export(model, Dtype::Q8_0, &at("whole.gguf")).unwrap();
        split(&at("whole.gguf"), folder.path(), 3);
        let whole = Checkpoint::open(&at("whole.gguf")).unwrap();
        let parts = Checkpoint::open(&at("model-00001-of-00003.gguf")).unwrap();
        assert_eq!(parts.config(), whole.config());
        assert_eq!(parts.tensors(), whole.tensors());
        assert_eq!(parts.fingerprint(2, &|_| ()).unwrap(), whole.fingerprint(2, &|_| ()).unwrap());
    }
    let refused = |name: &str| Checkpoint::open(&at(name)).unwrap_err().to_string();
    let second = refused("model-00002-of-00003.gguf");
    assert!(second.contains("-00001-of-00003.gguf"), "{second}");
    fs::copy(at("model-00002-of-00003.gguf"), at("model-00003-of-00003.gguf")).unwrap();
    let wrong = refused("model-00001-of-00003.gguf");
    assert!(wrong.contains("part 2 of 3 where part 3 of 3 is expected"), "{wrong}");
    fs::remove_file(at("model-00003-of-00003.gguf")).unwrap();
    let missing = refused("model-00001-of-00003.gguf");
    assert!(missing.contains("model-00003-of-00003.gguf"), "{missing}");

    let third = |tensor: &str| {
        let of_split = [("split.no", 2u16), ("split.count", 3)]
            .map(|(key, value)| (key.to_owned(), Value::U16(value)));
        let one = OutputTensor::f32(tensor, [1], &[1.0]);
        write(&at("model-00003-of-00003.gguf"), &of_split.into_iter().collect(), vec![one])
            .unwrap();
        refused("model-00001-of-00003.gguf")
    };
    let first = &Stored::open(&at("model-00001-of-00003.gguf")).file.tensors()[0].name.clone();
    let twice = third(first);
    assert!(twice.contains(first.as_str()) && twice.contains("twice"), "{twice}");
    let other = third("vision.weight");
    assert!(other.contains("vision.weight") && other.contains("not part of"), "{other}");

    let many = MAX_PARTS as u32 + 1;
    fs::write(at("many.gguf"), crate::support::tiny_gguf("llama").u32("split.count", many).bytes())
        .unwrap();
    assert!(refused("many.gguf").contains("over the limit"), "{}", refused("many.gguf"));
}
