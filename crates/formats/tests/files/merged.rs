//! Writing weights and whole checkpoints.

use std::fs;

use formats::merged::{self, DEFAULT_MAX_SHARD_BYTES, Description};
use formats::safetensors::{OutputTensor, write};
use formats::{Checkpoint, Dtype, FormatError, ModelConfig};
use serde_json::{Value, json};

use crate::support::tiny_config;

fn model_config() -> ModelConfig {
    match tiny_config("qwen2") {
        Value::Object(object) => ModelConfig::from_json(object).unwrap(),
        other => panic!("{other}"),
    }
}

fn description(config: &ModelConfig) -> Description<'_> {
    Description {
        config,
        dtype: Dtype::F32,
        generation_config: None,
        extra_files: &[],
        max_shard_bytes: DEFAULT_MAX_SHARD_BYTES,
    }
}

const NUMBERS: [f32; 6] = [0.5, 1.0, 2.0, 3.0, 4.0, 5.0];

fn three() -> Vec<OutputTensor<'static>> {
    vec![
        OutputTensor::f32("b", [6], &NUMBERS),
        OutputTensor::f32("a", [2, 2], &NUMBERS[..4]),
        OutputTensor::f32("c", [1], &NUMBERS[..1]),
    ]
}

#[test]
fn a_checkpoint_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("deep/merged");
    let config = model_config();
    let generation = json!({"eos_token_id": [2, 3], "temperature": 0.7});
    let description = Description {
        generation_config: generation.as_object(),
        extra_files: &[("tokenizer.json", b"{}")],
        ..description(&config)
    };
    let files = merged::write(&target, description, three()).unwrap();
    let names: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    assert_eq!(
        names,
        ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json"]
    );
    let checkpoint = Checkpoint::open(&target).unwrap();
    assert_eq!(checkpoint.config().dtype, Dtype::F32);
    assert_eq!(checkpoint.config().eos_token_ids, [2, 3]);
    assert_eq!(checkpoint.generation_config(), generation.as_object());
    let mut out = [0.0; 2];
    checkpoint.read_rows_f32("a", 1..2, &mut out).unwrap();
    assert_eq!(out, [2.0, 3.0]);

    let bytes = fs::read(target.join("model.safetensors")).unwrap();
    let (_, metadata) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let format = metadata.metadata().as_ref().and_then(|pairs| pairs.get("format"));
    assert_eq!(format.map(String::as_str), Some("pt"));
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(header_bytes % 8, 0, "the data is aligned");
    let again = merged::write(&target, description, three()).unwrap_err();
    assert!(matches!(again, FormatError::TargetNotEmpty { .. }));
}

#[test]
fn large_checkpoints_are_sharded_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("merged");
    let config = model_config();
    // b takes 24 bytes (over the limit on its own), a 16 and c 4: b | a c.
    let description = Description { max_shard_bytes: 20, ..description(&config) };
    merged::write(&target, description, three()).unwrap();
    let index = fs::read_to_string(target.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    assert_eq!(
        index,
        json!({"metadata": {"total_size": 44}, "weight_map": {"a": two, "b": one, "c": two}})
    );
    let checkpoint = Checkpoint::open(&target).unwrap();
    let mut out = [0.0; 6];
    checkpoint.read_rows_f32("b", 0..1, &mut out).unwrap();
    assert_eq!(out, NUMBERS);
    assert_eq!(checkpoint.tensors().len(), 3);
}

#[test]
fn files_are_ordinary_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let reference = folder.path().join("reference");
    fs::write(&reference, "").unwrap();
    let path = folder.path().join("t.safetensors");
    write(&path, &[], three()).unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&reference), "the umask decides, as for any file");
}

/// Asserts that nothing is left of a write that failed.
fn refused(tensors: Vec<OutputTensor<'_>>) -> FormatError {
    let folder = tempfile::tempdir().unwrap();
    let error = write(&folder.path().join("t.safetensors"), &[], tensors).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
    let target = folder.path().join("merged");
    assert!(!target.exists());
    error
}

#[test]
fn wrong_tensors_are_refused() {
    let zeros = |count: usize| move |w: &mut dyn std::io::Write| Ok(w.write_all(&vec![0; count])?);
    let tensor = |name: &str, dtype, shape: &[usize], count| {
        OutputTensor::new(name, dtype, shape, zeros(count))
    };
    let quantized = refused(vec![tensor("t", Dtype::Q8_0, &[32], 34)]);
    assert!(matches!(quantized, FormatError::UnwritableTensor { .. }));
    let huge = refused(vec![tensor("t", Dtype::F32, &[usize::MAX, 2], 0)]);
    assert!(matches!(huge, FormatError::UnwritableTensor { .. }));
    let twice = refused(vec![tensor("t", Dtype::U8, &[1], 1), tensor("t", Dtype::U8, &[1], 1)]);
    assert!(matches!(twice, FormatError::UnwritableTensor { .. }));
    let reserved = refused(vec![tensor("__metadata__", Dtype::U8, &[1], 1)]);
    assert!(matches!(reserved, FormatError::UnwritableTensor { .. }));
    let short = refused(vec![tensor("t", Dtype::F32, &[2], 7)]);
    assert!(matches!(short, FormatError::WrongFillLength { needed: 8, found: 7, .. }));
    let long = refused(vec![tensor("t", Dtype::F32, &[2], 9)]);
    assert!(matches!(long, FormatError::WrongFillLength { needed: 8, found: 9, .. }));
    let failing = OutputTensor::new("t", Dtype::F32, [2], |_| Err("no such weight".into()));
    let failing = refused(vec![failing]);
    assert!(matches!(&failing, FormatError::Fill { .. }));
    assert!(failing.to_string().contains("no such weight"), "{failing}");
}

#[test]
fn a_checkpoint_that_fails_half_way_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = model_config();
    let mut tensors = three();
    tensors.push(OutputTensor::new("d", Dtype::F32, [2], |_| Err("stop".into())));
    let description = Description { max_shard_bytes: 20, ..description(&config) };
    let error = merged::write(&folder.path().join("merged"), description, tensors).unwrap_err();
    assert!(matches!(error, FormatError::Fill { .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
