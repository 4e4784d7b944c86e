//! Checkpoints: folders and GGUF files seen in one way, and all that can be wrong between files.

use std::fs;
use std::path::Path;

use formats::config;
use formats::safetensors::{IndexError, OutputTensor, write};
use formats::{Architecture, Checkpoint, Dtype, FormatError, RopeScaling, gguf};
use half::{bf16, f16};
use serde_json::json;

use crate::support::{Gguf, HEAD_DIM, HEADS, HIDDEN, tiny_config, tiny_gguf};

/// A folder with a configuration and one file of three tensors of different types.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), tiny_config("llama").to_string()).unwrap();
    let halves: Vec<f16> = (0..12).map(|i| f16::from_f32(i as f32 / 8.0)).collect();
    let brains: Vec<bf16> = (0..4).map(|i| bf16::from_f32(i as f32)).collect();
    let tensors = vec![
        OutputTensor::f32("single", [3, 2], &[0.1, 1.0, 2.0, 3.0, 4.0, 5.00001]),
        OutputTensor::new("half", Dtype::F16, [2, 2, 3], |w| {
            Ok(w.write_all(bytemuck::cast_slice(&halves))?)
        }),
        OutputTensor::new("brain", Dtype::Bf16, [4], |w| {
            Ok(w.write_all(bytemuck::cast_slice(&brains))?)
        }),
        OutputTensor::new("ids", Dtype::I64, [1], |w| Ok(w.write_all(&[7; 8])?)),
    ];
    write(&folder.path().join("model.safetensors"), &[], tensors).unwrap();
    folder
}

/// Writes a GGUF and opens it.
fn open_gguf(file: &Gguf) -> Result<Checkpoint, FormatError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, file.bytes()).unwrap();
    Checkpoint::open(&path)
}

fn rows(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensor(name).unwrap();
    let mut out = vec![f32::NAN; tensor.elements()];
    checkpoint.read_rows_f32(name, 0..tensor.rows(), &mut out).unwrap();
    out
}

#[test]
fn rows_are_converted_from_every_plain_type() {
    let folder = folder();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(rows(&checkpoint, "single"), [0.1, 1.0, 2.0, 3.0, 4.0, 5.00001]);
    assert_eq!(rows(&checkpoint, "brain"), [0.0, 1.0, 2.0, 3.0]);
    let half = checkpoint.tensor("half").unwrap();
    assert_eq!((half.rows(), half.row_elements(), half.bytes), (4, 3, 24));
    let mut out = [f32::NAN; 6];
    checkpoint.read_rows_f32("half", 2..4, &mut out).unwrap();
    assert_eq!(out, [0.75, 0.875, 1.0, 1.125, 1.25, 1.375]);

    let mut out = [bf16::NAN; 2];
    checkpoint.read_rows_bf16("single", 0..1, &mut out).unwrap();
    assert_eq!(out.map(bf16::to_bits), [0x3dcd, 0x3f80]); // 0.1 lies nearer to 0x3dcd
    checkpoint.read_rows_bf16("single", 2..3, &mut out).unwrap();
    assert_eq!(out.map(bf16::to_f32), [4.0, 5.0]);
    let mut out = [bf16::NAN; 4];
    checkpoint.read_rows_bf16("brain", 0..1, &mut out).unwrap();
    assert_eq!(out.map(bf16::to_f32), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn tensors_longer_than_a_tile_are_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), tiny_config("llama").to_string()).unwrap();
    // 1,001 is prime to every tile's length.
    let (rows, width) = (300usize, 1001usize);
    let numbers: Vec<f16> = (0..rows * width).map(|i| f16::from_bits(i as u16 & 0x7bff)).collect();
    let tensor = OutputTensor::new("long", Dtype::F16, [rows, width], |w| {
        Ok(w.write_all(bytemuck::cast_slice(&numbers))?)
    });
    write(&folder.path().join("model.safetensors"), &[], vec![tensor]).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut out = vec![f32::NAN; 298 * width];
    checkpoint.read_rows_f32("long", 1..299, &mut out).unwrap();
    let expected = numbers[width..299 * width].iter().map(|n| n.to_f32());
    assert!(out.iter().copied().eq(expected));
}

#[test]
fn nothing_is_read_from_empty_tensors_and_ranges() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), tiny_config("llama").to_string()).unwrap();
    let empty = OutputTensor::new("empty", Dtype::F16, [0, 3], |_| Ok(()));
    let single =
        OutputTensor::new("single", Dtype::F16, [], |w| Ok(w.write_all(&f16::ONE.to_le_bytes())?));
    write(&folder.path().join("model.safetensors"), &[], vec![empty, single]).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.read_rows_f32("empty", 0..0, &mut []).unwrap();
    checkpoint.read_rows_f32("single", 1..1, &mut []).unwrap();
    assert_eq!(rows(&checkpoint, "single"), [1.0]);
}

#[test]
fn wrong_requests_are_refused() {
    let folder = folder();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut out = [0.0; 4];
    let mut read = |name: &str, rows, length: usize| {
        checkpoint.read_rows_f32(name, rows, &mut out[..length]).unwrap_err()
    };
    assert!(matches!(read("none", 0..1, 2), FormatError::MissingTensor { .. }));
    assert!(matches!(read("single", 2..4, 4), FormatError::RowsOutOfRange { rows: 3, .. }));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 2..1;
    assert!(matches!(read("single", backwards, 0), FormatError::RowsOutOfRange { .. }));
    let wrong_length = read("single", 0..2, 3);
    assert!(matches!(wrong_length, FormatError::WrongBufferLength { needed: 4, found: 3, .. }));
    let integers = read("ids", 0..1, 1);
    assert!(matches!(integers, FormatError::UnreadableDtype { dtype: Dtype::I64, .. }));
    let shape = checkpoint.require("single", &[2, 3]).unwrap_err();
    assert!(matches!(shape, FormatError::WrongShape { .. }));
    assert!(matches!(checkpoint.require("none", &[]), Err(FormatError::MissingTensor { .. })));
    assert_eq!(checkpoint.require("single", &[3, 2]).unwrap().dtype, Dtype::F32);
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let folder = folder();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
    let error = checkpoint.read_rows_f32("single", 0..1, &mut [0.0; 2]).unwrap_err();
    assert!(matches!(error, FormatError::Io { action: "read", .. }));
}

#[test]
fn folders_without_weights_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Checkpoint::open(folder.path()).unwrap_err();
    assert!(open().to_string().contains("config.json"));
    fs::write(folder.path().join("config.json"), tiny_config("llama").to_string()).unwrap();
    assert!(matches!(open(), FormatError::NoWeights { pickled: false, .. }));
    fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    let pickled = open();
    assert!(matches!(pickled, FormatError::NoWeights { pickled: true, .. }));
    assert!(pickled.to_string().contains("pickle"));
    fs::write(folder.path().join("model.safetensors"), "short").unwrap();
    assert!(matches!(open(), FormatError::Safetensors { .. }));
    assert!(open().to_string().contains("model.safetensors: truncated"), "{}", open());

    let other = folder.path().join("weights.pt");
    assert!(matches!(Checkpoint::open(&other), Err(FormatError::Io { .. })));
    fs::write(&other, "").unwrap();
    assert!(matches!(Checkpoint::open(&other), Err(FormatError::NotACheckpoint { .. })));
}

#[test]
fn the_generation_configuration_adds_ends() {
    let folder = folder();
    let path = folder.path().join("generation_config.json");
    fs::write(&path, r#"{"eos_token_id": [5, 2]}"#).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config().eos_token_ids, [2, 5]);
    assert!(checkpoint.generation_config().is_some());
    fs::write(&path, r#"{"eos_token_id": "x"}"#).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("generation_config.json"), "{error}");
}

fn write_shard(folder: &Path, file: &str, names: &[&str]) {
    let tensors = names.iter().map(|name| OutputTensor::f32(*name, [1], &[1.5])).collect();
    write(&folder.join(file), &[], tensors).unwrap();
}

#[test]
fn shards_must_agree_with_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("config.json"), tiny_config("llama").to_string()).unwrap();
    write_shard(path, "one.safetensors", &["a", "b"]);
    write_shard(path, "two.safetensors", &["c"]);
    let open = |map: serde_json::Value| {
        let index = json!({ "weight_map": map }).to_string();
        fs::write(path.join("model.safetensors.index.json"), index).unwrap();
        Checkpoint::open(path)
    };
    let index_error = |map| match open(map) {
        Err(FormatError::Index { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    let (one, two) = ("one.safetensors", "two.safetensors");
    let right = open(json!({"a": one, "b": one, "c": two})).unwrap();
    assert_eq!(right.tensors().len(), 3);
    assert_eq!(rows(&right, "c"), [1.5]);
    let missing = index_error(json!({"a": one, "b": one, "c": "three.safetensors"}));
    assert!(matches!(missing, IndexError::MissingShard { shard } if shard == "three.safetensors"));
    let lacking = index_error(json!({"a": one, "b": one, "c": two, "d": two}));
    assert!(matches!(lacking, IndexError::NotInShard { name, .. } if name == "d"));
    let unlisted = index_error(json!({"a": one, "c": two}));
    assert!(matches!(unlisted, IndexError::NotInIndex { name, .. } if name == "b"));
    write_shard(path, two, &["b", "c"]);
    let twice = index_error(json!({"a": one, "b": one, "c": two}));
    assert!(matches!(twice, IndexError::NotInIndex { name, shard } if name == "b" && shard == two));
    let outside = index_error(json!({"a": "../one.safetensors"}));
    assert!(matches!(outside, IndexError::BadShardName { .. }));
    let index = fs::File::create(path.join("model.safetensors.index.json")).unwrap();
    index.set_len(formats::safetensors::MAX_INDEX_BYTES + 1).unwrap();
    let too_large = Checkpoint::open(path).unwrap_err();
    assert!(matches!(too_large, FormatError::Index { source: IndexError::TooLarge { .. }, .. }));
}

#[test]
fn a_gguf_looks_like_a_folder() {
    let checkpoint = open_gguf(&tiny_gguf("llama")).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!((config.vocab_size, config.hidden_size, config.head_dim), (10, 8, 4));
    assert_eq!((config.num_attention_heads, config.num_key_value_heads), (2, 1));
    assert_eq!((config.rms_norm_eps, config.rope_theta), (1e-5, 1e4));
    assert!(config.tie_word_embeddings && !config.attention_bias && !config.mlp_bias);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(1), &[2][..]));
    assert!(checkpoint.gguf_metadata().is_some());
    let gate = checkpoint.require("model.layers.0.mlp.gate_proj.weight", &[12, 8]).unwrap();
    assert_eq!(gate.bytes, 384);
    assert_eq!(rows(&checkpoint, "model.norm.weight"), [0., 1., 2., 3., 4., 5., 6., 7.]);

    // A configuration made from metadata says the same when it is read again.
    let again = formats::ModelConfig::from_json(config.to_json(Dtype::F32)).unwrap();
    assert_eq!(again.architecture, config.architecture);
    assert_eq!(
        (again.vocab_size, again.intermediate_size, again.num_key_value_heads),
        (config.vocab_size, config.intermediate_size, config.num_key_value_heads)
    );
    assert_eq!(again.eos_token_ids, config.eos_token_ids);
    assert_eq!((again.rms_norm_eps, again.head_dim), (config.rms_norm_eps, config.head_dim));
    assert!(again.tie_word_embeddings);
}

#[test]
fn rotary_rows_are_restored_for_llama_only() {
    let q = "model.layers.0.self_attn.q_proj.weight";
    let first_column = |checkpoint: &Checkpoint, name: &str| -> Vec<f32> {
        rows(checkpoint, name).iter().step_by(HIDDEN as usize).map(|n| n / HIDDEN as f32).collect()
    };
    let llama = open_gguf(&tiny_gguf("llama")).unwrap();
    assert_eq!(first_column(&llama, q), [0., 2., 1., 3., 4., 6., 5., 7.]);
    let k = "model.layers.0.self_attn.k_proj.weight";
    assert_eq!(first_column(&llama, k), [0., 2., 1., 3.]);
    let v = "model.layers.0.self_attn.v_proj.weight";
    assert_eq!(first_column(&llama, v), [0., 1., 2., 3.]);
    // A part of the rows is that part of the whole.
    let mut out = vec![0.0; 3 * HIDDEN as usize];
    llama.read_rows_f32(q, 1..4, &mut out).unwrap();
    assert_eq!(out, rows(&llama, q)[8..32]);
    let qwen = open_gguf(&tiny_gguf("qwen3")).unwrap();
    assert_eq!(first_column(&qwen, q), [0., 1., 2., 3., 4., 5., 6., 7.]);
}

#[test]
fn biases_and_head_norms_are_found() {
    let numbers: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let biased = |architecture| {
        tiny_gguf(architecture)
            .tensor_f32("blk.0.attn_q.bias", &[HEADS * HEAD_DIM], &numbers)
            .tensor_f32("blk.0.attn_q_norm.weight", &[HEAD_DIM], &numbers[..4])
            .tensor_f32("output.weight", &[8, 10], &[0.5; 80])
    };
    let bias = "model.layers.0.self_attn.q_proj.bias";
    let llama = open_gguf(&biased("llama")).unwrap();
    assert!(llama.config().attention_bias && !llama.config().attention_output_bias);
    assert!(!llama.config().tie_word_embeddings);
    assert_eq!(rows(&llama, bias), [0., 2., 1., 3., 4., 6., 5., 7.]);
    let qwen = open_gguf(&biased("qwen2")).unwrap();
    assert_eq!(rows(&qwen, bias), numbers);
    assert_eq!(rows(&qwen, "model.layers.0.self_attn.q_norm.weight"), [0., 1., 2., 3.]);
    assert!(qwen.tensor("lm_head.weight").is_some());
}

/// The divisors that llama.cpp's converter writes for Llama 3
/// (`LlamaModel.generate_extra_tensors`).
fn llama_3_divisors(theta: f64, head_dim: usize, factor: f64) -> Vec<f32> {
    let (low, high, original) = (1.0, 4.0, 8192.0);
    (0..head_dim / 2)
        .map(|i| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / head_dim as f64);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

/// A llama GGUF with heads of 64, so that the divisors take all three forms.
fn wide_heads() -> Gguf {
    Gguf::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 131072)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 8)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 5e5)
        .tensor_f32("token_embd.weight", &[64, 2], &[0.0; 128])
}

#[test]
fn llama_3_scaling_is_recovered_from_its_divisors() {
    let divisors = llama_3_divisors(5e5, 64, 8.0);
    let between = divisors.iter().filter(|d| **d > 1.0 && **d < 8.0).count();
    assert!(between > 0 && divisors[0] == 1.0 && divisors[31] == 8.0);
    let file = wide_heads().tensor_f32("rope_freqs.weight", &[32], &divisors);
    let checkpoint = open_gguf(&file).unwrap();
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    assert_eq!(checkpoint.config().rope_scaling, expected);
    assert_eq!(checkpoint.tensors().len(), 1, "the divisors are configuration, not weights");

    let mut changed = divisors.clone();
    changed[20] *= 1.01;
    let file = wide_heads().tensor_f32("rope_freqs.weight", &[32], &changed);
    match open_gguf(&file) {
        Err(FormatError::Config {
            source: config::Error::UnknownRopeFreqs { at: 20, .. }, ..
        }) => {}
        other => panic!("{other:?}"),
    }
    changed[20] = f32::NAN;
    let file = wide_heads().tensor_f32("rope_freqs.weight", &[32], &changed);
    assert!(matches!(open_gguf(&file), Err(FormatError::Config { .. })));
    let file = wide_heads().tensor_f32("rope_freqs.weight", &[16], &divisors[..16]);
    assert!(matches!(open_gguf(&file), Err(FormatError::Config { .. })));
    let file = wide_heads().tensor_f32("rope_freqs.weight", &[20_000], &[1.0; 20_000]);
    assert!(matches!(
        open_gguf(&file),
        Err(FormatError::Gguf { source: gguf::Error::OverLimit { .. }, .. })
    ));
}

#[test]
fn rope_metadata_is_read() {
    let scaling = |file: Gguf| open_gguf(&file).unwrap().config().rope_scaling.clone();
    assert_eq!(scaling(wide_heads()), RopeScaling::None);
    let linear = wide_heads().string("llama.rope.scaling.type", "linear");
    assert_eq!(
        scaling(linear.clone().f32("llama.rope.scaling.factor", 2.0)),
        RopeScaling::Linear { factor: 2.0 }
    );
    let old = wide_heads().f32("llama.rope.scale_linear", 4.0);
    assert_eq!(scaling(old), RopeScaling::Linear { factor: 4.0 });
    let yarn = wide_heads()
        .string("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 32768);
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 32768,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
    };
    assert_eq!(scaling(yarn.clone()), expected);

    let refused = |file: &Gguf| match open_gguf(file) {
        Err(FormatError::Config { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(&linear), config::Error::Gguf(gguf::Error::MissingKey { .. })));
    let longrope = wide_heads().string("llama.rope.scaling.type", "longrope");
    assert!(matches!(refused(&longrope), config::Error::Unsupported { .. }));
    let log_scaled = yarn.f32("llama.rope.scaling.yarn_log_multiplier", 0.1);
    assert!(matches!(refused(&log_scaled), config::Error::Unsupported { .. }));
    let both = linear.tensor_f32("rope_freqs.weight", &[32], &[1.0; 32]);
    assert!(matches!(refused(&both), config::Error::Unsupported { .. }));
}

#[test]
fn wrong_ggufs_are_refused() {
    let refused = |file: Gguf| match open_gguf(&file) {
        Err(FormatError::Config { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    let unknown = Gguf::new().string("general.architecture", "gemma3");
    assert!(matches!(
        refused(unknown),
        config::Error::UnknownArchitecture { key: "general.architecture", .. }
    ));
    assert!(matches!(refused(Gguf::new()), config::Error::Gguf(gguf::Error::MissingKey { .. })));
    for key in [
        "expert_count",
        "attention.sliding_window",
        "rope.dimension_count",
        "attention.value_length",
    ] {
        let key = format!("llama.{key}");
        match refused(tiny_gguf("llama").u32(&key, 2)) {
            config::Error::Unsupported { key: found, .. } => assert_eq!(found, key),
            other => panic!("{other:?}"),
        }
    }
    let uneven = Gguf::new()
        .string("general.architecture", "llama")
        .u32("llama.embedding_length", 8)
        .u32("llama.attention.head_count", 3);
    assert!(matches!(refused(uneven), config::Error::NotAMultiple { .. }));

    let stranger = tiny_gguf("llama").tensor_f32("blk.0.ffn_gate_inp.weight", &[1], &[0.0]);
    let error = open_gguf(&stranger).unwrap_err();
    assert!(
        matches!(&error, FormatError::UnknownTensor { name, .. } if name == "blk.0.ffn_gate_inp.weight")
    );
    let wrong_rows = tiny_gguf("llama").tensor_f32("blk.1.attn_q.weight", &[8, 6], &[0.0; 48]);
    assert!(matches!(open_gguf(&wrong_rows), Err(FormatError::WrongShape { .. })));
    let mut cut = tiny_gguf("llama").bytes();
    cut.truncate(cut.len() - 64);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    fs::write(&path, cut).unwrap();
    let error = Checkpoint::open(&path).unwrap_err();
    assert!(error.to_string().contains("cut.gguf: tensor"), "{error}");
}
