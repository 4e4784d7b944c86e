//! What samebit writes, loaded by the libraries that others use: an adapter by peft, a merged and a fully tuned model by
//! transformers, each with the log-probs that samebit gives.

mod common;

use common::{Bench, ended, joined, numbers, root, samebit, skip};
use serde_json::Value;
use std::process::Command;

/// Token ids that are scored; words of every golden vocabulary.
const IDS: [u32; 20] = [1, 5, 9, 33, 60, 12, 12, 44, 3, 28, 29, 17, 64, 2, 40, 8, 21, 50, 7, 11];

/// Largest difference of a log-prob from the peer's, nats.
const TOLERANCE: f64 = 1e-4;

fn peers(test: &str) -> bool {
    let imports = Command::new("python3").args(["-c", "import peft, transformers, torch"]).output();
    match imports {
        Ok(out) if out.status.success() => true,
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr);
            skip(test, said.trim().lines().last().unwrap_or("python3 cannot import peft"));
            false
        }
        Err(error) => {
            skip(test, &format!("python3 does not run: {error}"));
            false
        }
    }
}

/// Log-probs by one of `scripts/check`.
fn peer(script: &str, paths: &[&str]) -> Vec<f64> {
    let script = root().join("scripts/check").join(script);
    let ids = joined(&IDS);
    let mut command = Command::new("python3");
    command.arg(script).args(paths).args(["--ids", &ids]).env("HF_HUB_OFFLINE", "1");
    let report = ended(&mut command).report();
    numbers(&report["logprobs"]).into_iter().map(Option::unwrap).collect()
}

fn scored(args: &[&str]) -> Vec<f64> {
    let ids = joined(&IDS);
    let all = [&["score"], args, &["--ids", &ids, "--json"]].concat();
    let report = samebit(&all).report();
    let logprobs = numbers(&report["logprobs"]);
    assert_eq!(logprobs[0], None, "the first token is not scored");
    logprobs.into_iter().skip(1).map(Option::unwrap).collect()
}

#[track_caller]
fn assert_close(ours: &[f64], theirs: &[f64], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= TOLERANCE, "{what}: token {}: {a} and {b}", i + 1);
    }
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

/// Trains three steps into `run`, with a rate that moves log-probs well past the tolerance.
fn train(bench: &Bench, lr: &str, more: &[&str]) -> Value {
    bench.write("data.jsonl", common::chats());
    let steps = ["--max-steps", "3", "--micro-tokens", "128", "--accumulation", "2", "--lr", lr];
    let report = bench.train("run", &[&steps[..], more].concat()).report();
    assert_eq!(report["steps"].as_array().unwrap().len(), 3);
    report
}

/// An adapter that samebit trained is peft's, and merging it changes no log-prob.
fn adapter_and_merged(model: &str, more: &[&str]) {
    let bench = Bench::with_model(model);
    let report = train(&bench, "3e-2", more);
    let adapter = report["product"].as_str().unwrap();
    let base = bench.model();
    let ours = scored(&[&base, "--adapter", adapter]);
    let untuned = scored(&[&base]);
    let moved = largest_difference(&ours, &untuned);
    assert!(moved > 100.0 * TOLERANCE, "{model}: training moved log-probs by {moved}");
    assert_close(&ours, &peer("peft_loads.py", &[adapter, &base]), &format!("{model}, peft"));

    let merged = bench.arg("merged");
    let done = samebit(&["merge", &base, adapter, "--out", &merged, "--quiet"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let theirs = peer("transformers_loads.py", &[&merged]);
    assert_close(&ours, &theirs, &format!("{model}, merged, transformers"));
    assert_close(&ours, &scored(&[&merged]), &format!("{model}, merged, samebit"));
}

/// A GGUF file that samebit exported is the model, for transformers too. (5.24 takes every qwen3 GGUF's heads to be 128
/// wide, which the tiny one's are not.)
#[test]
fn exported_models() {
    if !peers("exported_models") {
        return;
    }
    for model in ["llama_tied", "qwen2"] {
        let bench = Bench::with_model(model).with_byte_level_tokenizer();
        let (base, file) = (bench.model(), bench.arg("model.gguf"));
        let done = samebit(&["export", &base, "--gguf", &file, "--type", "f32", "--quiet"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let theirs = peer("transformers_loads.py", &[&file]);
        assert_close(&scored(&[&base]), &theirs, &format!("{model}, exported, transformers"));
    }
}

#[test]
fn qwen3_adapter_of_every_linear() {
    if peers("qwen3_adapter_of_every_linear") {
        adapter_and_merged("qwen3", &["--rank", "4"]);
    }
}

/// Biases, a scale by √rank, and a part of the modules of a part of the layers.
#[test]
fn qwen2_adapter_of_some_modules() {
    if peers("qwen2_adapter_of_some_modules") {
        let targets = "layers.0.self_attn.q_proj,down_proj";
        adapter_and_merged("qwen2", &["--rank", "3", "--rslora", "true", "--targets", targets]);
    }
}

/// A tied output matrix.
#[test]
fn llama_adapter_over_tied_embeddings() {
    if peers("llama_adapter_over_tied_embeddings") {
        adapter_and_merged("llama_tied", &["--rank", "8", "--alpha", "4"]);
    }
}

#[test]
fn fully_tuned_model() {
    if !peers("fully_tuned_model") {
        return;
    }
    let bench = Bench::with_model("llama_tied");
    let report = train(&bench, "1e-2", &["--mode", "full"]);
    let product = report["product"].as_str().unwrap();
    let ours = scored(&[product]);
    let moved = largest_difference(&ours, &scored(&[&bench.model()]));
    assert!(moved > 100.0 * TOLERANCE, "training moved log-probs by {moved}");
    assert_close(&ours, &peer("transformers_loads.py", &[product]), "fully tuned, transformers");
}
