//! What samebit exports, loaded by llama.cpp: SmolLM2-135M-Instruct in every storage, and an adapter beside it, each with
//! the greedy tokens and the encoding of text that samebit has.

mod common;

use common::{Bench, SMOLLM2, ended, joined, numbers, root, samebit_with_cache, skip};
use formats::Checkpoint;
use formats::peft::{self, AdapterConfig, Factors, TargetModules};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder whose node_modules has node-llama-cpp (`scripts/check/llama_cpp.mjs` says how to fill it).
const FOLDER: &str = "SAMEBIT_NODE_LLAMA_CPP";

/// Greedy tokens that are compared.
const TOKENS: usize = 16;

const TEXT: &str = "In 1987, Zoë's  cat—№ 3—paid $1,024.50!\n\n\tfn main() { 你好 }";

/// What is needed: llama.cpp, and the model's file in the user's cache, fetched if need be.
fn tools(test: &str) -> Option<PathBuf> {
    if std::env::var_os(FOLDER).is_none() {
        skip(test, &format!("{FOLDER} names no folder with node-llama-cpp"));
        return None;
    }
    match hub::Options::from_env().and_then(|options| hub::resolve(SMOLLM2, &options)) {
        Ok(resolved) => Some(resolved.path),
        Err(error) => {
            skip(test, &format!("{SMOLLM2} cannot be had: {error}"));
            None
        }
    }
}

fn llama_cpp(model: &str, adapter: &str, prompt: &[u32]) -> Value {
    let script = root().join("scripts/check/llama_cpp.mjs");
    let count = TOKENS.to_string();
    let mut command = Command::new("node");
    ended(command.arg(script).args([model, adapter, &joined(prompt), &count, TEXT])).report()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A prompt's ids and what samebit says after it.
fn samebit(args: &[&str]) -> (Vec<u32>, Vec<u32>) {
    let count = TOKENS.to_string();
    let prompt = ["What is the capital of France, and what is it known for?"];
    let args = [&["generate"], args, &prompt, &["--max-tokens", &count, "--json"]].concat();
    let report = samebit_with_cache(&args).report();
    assert_eq!(ids(&report["ids"]).len(), TOKENS, "no end within the tokens that are compared");
    (ids(&report["prompt_ids"]), ids(&report["ids"]))
}

/// llama.cpp rounds activations too (to 8 bits beside quantized weights), so its choice may differ where samebit itself
/// has the two tokens within `tie` nats of each other; then what follows is of another text.
#[track_caller]
fn assert_same(model: &[&str], prompt: &[u32], ours: &[u32], theirs: &[u32], tie: f64) {
    let Some(at) = ours.iter().zip(theirs).position(|(a, b)| a != b) else { return };
    let logprob = |token: u32| {
        let ids = joined(&[prompt, &ours[..at], &[token]].concat());
        let args = [&["score"], model, &["--ids", &ids, "--json"]].concat();
        numbers(&samebit_with_cache(&args).report()["logprobs"]).pop().unwrap().unwrap()
    };
    let gap = logprob(ours[at]) - logprob(theirs[at]);
    assert!(
        gap < tie,
        "{model:?}: token {at} is {} and {}, {gap} nats below",
        ours[at],
        theirs[at]
    );
    println!("{model:?}: token {at} is a near tie ({gap:.3} nats)");
}

fn export(args: &[&str]) {
    let done = samebit_with_cache(&[&["export", SMOLLM2], args, &["--quiet"]].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[test]
fn every_storage_is_read_alike() {
    if tools("every_storage_is_read_alike").is_none() {
        return;
    }
    let bench = Bench::new();
    bench.write("page.txt", TEXT);
    let scored = ["score", SMOLLM2, "--text", &bench.arg("page.txt"), "--json"];
    let encoded = samebit_with_cache(&scored).report();
    for (kind, tie) in [("f32", 1e-3), ("f16", 0.05), ("bf16", 0.05), ("q8_0", 0.3), ("q4_0", 0.3)]
    {
        let file = bench.arg(&format!("{kind}.gguf"));
        export(&["--gguf", &file, "--type", kind]);
        let (prompt, ours) = samebit(&[&file]);
        let theirs = llama_cpp(&file, "-", &prompt);
        assert_same(&[&file], &prompt, &ours, &ids(&theirs["tokens"]), tie);
        assert_eq!(theirs["encoded"], encoded["ids"], "{kind}: the same text has the same ids");
        fs::remove_file(file).unwrap();
    }
}

/// An adapter over rotary, other and feed-forward matrices of every layer, with numbers of a fixed generator.
fn adapter(model: &Path, folder: &Path) {
    let checkpoint = Checkpoint::open(model).unwrap();
    let rank = 4;
    let mut state = 1u64;
    let mut uniform = |count: usize, bound: f32| -> Vec<f32> {
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0) * bound
        };
        (0..count).map(|_| next()).collect()
    };
    let kinds = ["q_proj", "k_proj", "o_proj", "down_proj"];
    // Module, width of its input and of its output, A, B.
    type Module = (String, usize, usize, Vec<f32>, Vec<f32>);
    let modules: Vec<Module> = checkpoint
        .tensors()
        .iter()
        .filter_map(|tensor| {
            let module = tensor.name.strip_suffix(".weight")?;
            kinds.iter().any(|kind| module.ends_with(kind)).then(|| {
                let (out, width) = (tensor.shape[0], tensor.shape[1]);
                let (a, b) = (uniform(rank * width, 0.05), uniform(out * rank, 0.05));
                (module.to_owned(), width, out, a, b)
            })
        })
        .collect();
    let factors: Vec<Factors<'_>> = modules
        .iter()
        .map(|(module, in_features, out_features, a, b)| Factors {
            module,
            in_features: *in_features,
            out_features: *out_features,
            a,
            b,
        })
        .collect();
    let config = AdapterConfig {
        r: rank,
        lora_alpha: 8.0,
        lora_dropout: 0.0,
        use_rslora: true,
        target_modules: TargetModules::Names(kinds.map(String::from).into()),
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        base_model_name_or_path: None,
    };
    peft::write(folder, &config, None, &factors).unwrap();
}

#[test]
fn an_adapter_is_read_alike() {
    let Some(model) = tools("an_adapter_is_read_alike") else { return };
    let bench = Bench::new();
    adapter(&model, &bench.path("adapter"));
    let (folder, base, lora, merged) = (
        bench.arg("adapter"),
        bench.arg("base.gguf"),
        bench.arg("lora.gguf"),
        bench.arg("merged.gguf"),
    );
    export(&["--gguf", &base, "--type", "f32"]);
    export(&["--adapter", &folder, "--lora-gguf", &lora]);
    export(&["--adapter", &folder, "--gguf", &merged, "--type", "f32"]);
    let (prompt, plain) = samebit(&[&base]);
    let (_, ours) = samebit(&[&base, "--adapter", &folder]);
    assert_ne!(plain, ours, "the adapter changes what is said");
    let tie = 1e-3;
    let scored = [base.as_str(), "--adapter", &folder];
    let beside = llama_cpp(&base, &lora, &prompt);
    assert_same(&scored, &prompt, &ours, &ids(&beside["tokens"]), tie);
    let inside = llama_cpp(&merged, "-", &prompt);
    assert_same(&scored, &prompt, &ours, &ids(&inside["tokens"]), tie);
}
