//! Exported GGUF files: read back with the scores of what they were made from, and refused where they would be wrong.

mod common;

use common::{Bench, golden, samebit};
use serde_json::{Value, json};
use std::fs;

const IDS: &str = "1,5,9,33,60,12,44,3,28,29,17,64,2,40";

fn exportable(model: &str) -> Bench {
    Bench::with_model(model).with_byte_level_tokenizer()
}

fn logprobs(args: &[&str]) -> Value {
    samebit(&[&["score"], args, &["--ids", IDS, "--json"]].concat()).report()["logprobs"].clone()
}

fn export(bench: &Bench, args: &[&str]) -> Value {
    let model = bench.model();
    samebit(&[&["export", &model], args, &["--json"]].concat()).report()
}

#[test]
fn scores_are_those_of_the_model() {
    for model in [
        "llama",
        "llama_bias",
        "llama_rope_llama3",
        "llama_rope_yarn",
        "llama_tied",
        "qwen2",
        "qwen3",
    ] {
        let bench = exportable(model);
        let (exact, rounded) = (bench.arg("f32.gguf"), bench.arg("bf16.gguf"));
        let report = export(&bench, &["--gguf", &exact, "--type", "f32"]);
        assert_eq!(report["bytes"], fs::metadata(&exact).unwrap().len());
        assert_eq!(report["base"], Value::Null);
        assert_eq!(logprobs(&[&exact]), logprobs(&[&bench.model()]), "{model}");
        export(&bench, &["--gguf", &rounded]);
        let expected = logprobs(&[&bench.model(), "--weights", "bf16"]);
        assert_eq!(logprobs(&[&rounded]), expected, "{model}: bf16 is the default");
    }
}

#[test]
fn quantized_scores_are_those_of_the_reference_file() {
    for model in ["llama_tied", "qwen3"] {
        let bench = exportable(model);
        let file = bench.arg("q8_0.gguf");
        export(&bench, &["--gguf", &file, "--type", "q8_0"]);
        let reference = golden(model).join("gguf/q8_0.gguf");
        assert_eq!(logprobs(&[&file]), logprobs(&[reference.to_str().unwrap()]), "{model}");
    }
}

/// Tokenizer, template and stops: a chat has the same ids, and a completion the same end.
#[test]
fn a_chat_is_the_same() {
    let bench = exportable("qwen3");
    let file = bench.arg("model.gguf");
    export(&bench, &["--gguf", &file, "--type", "f32"]);
    bench.write_json(
        "chat.json",
        &json!({"messages": [{"role": "user", "content": "cab"}, {"role": "assistant", "content": "bac"}]}),
    );
    let chat = bench.arg("chat.json");
    let scored = |model: &str| {
        let report = samebit(&["score", model, "--chat", &chat, "--json"]).report();
        (report["ids"].clone(), report["logprobs"].clone())
    };
    assert_eq!(scored(&file), scored(&bench.model()));
    let said = |model: &str| {
        let args = ["generate", model, "fade", "--max-tokens", "12", "--json"];
        let report = samebit(&args).report();
        (report["ids"].clone(), report["ending"].clone())
    };
    assert_eq!(said(&file), said(&bench.model()));
}

#[test]
fn an_adapter_is_merged_or_written_alone() {
    let bench = exportable("llama");
    let adapter = golden("llama/adapter");
    let adapter = adapter.to_str().unwrap();
    let (file, alone, merged) =
        (bench.arg("tuned.gguf"), bench.arg("lora.gguf"), bench.arg("merged"));
    let report = export(&bench, &["--adapter", adapter, "--gguf", &file, "--type", "f32"]);
    assert!(report["modules"].as_u64().unwrap() > 0);
    assert!(report["base"]["note"].as_str().unwrap().contains("does not say which base"));
    let done =
        samebit(&["merge", &bench.model(), adapter, "--out", &merged, "--dtype", "f32", "--quiet"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(logprobs(&[&file]), logprobs(&[&merged]), "one way of merging");
    assert_ne!(logprobs(&[&file]), logprobs(&[&bench.model()]));
    let report = export(&bench, &["--adapter", adapter, "--lora-gguf", &alone]);
    assert_eq!(report["tensors"]["F32"].as_u64(), report["modules"].as_u64().map(|n| 2 * n));
    let file = formats::gguf::File::open(&bench.path("lora.gguf")).unwrap();
    assert_eq!(file.metadata().str("adapter.type").unwrap(), Some("lora"));
}

#[track_caller]
fn refused(bench: &Bench, args: &[&str], words: &[&str]) {
    let before = bench.files();
    let model = bench.model();
    samebit(&[&["export", &model], args].concat()).refused(words);
    assert!(bench.files() == before, "nothing is written, changed or removed");
}

#[test]
fn what_would_be_wrong_is_refused() {
    let file = |bench: &Bench| bench.arg("model.gguf");
    let bench = exportable("llama");
    let path = file(&bench);
    refused(
        &bench,
        &["--gguf", &path, "--type", "q8_0"],
        &["48 numbers", "multiple of the 32", "bf16 or f16"],
    );
    bench.write("there.gguf", "mine");
    refused(
        &bench,
        &["--gguf", &bench.arg("there.gguf")],
        &["there.gguf exists", "choose another"],
    );
    let other = golden("qwen3/adapter");
    let other = other.to_str().unwrap();
    let words = ["this model", "made for another model"];
    refused(&bench, &["--gguf", &path, "--adapter", other], &words);
    refused(&bench, &["--lora-gguf", &path, "--adapter", other], &words);

    let bench = Bench::with_model("llama");
    let words = ["tokenizer cannot be written", "known are gpt-2", "convert_hf_to_gguf.py"];
    refused(&bench, &["--gguf", &file(&bench)], &words);
    let bench = exportable("llama_rope_dynamic");
    refused(&bench, &["--gguf", &file(&bench)], &["dynamic rope scaling", "llama.cpp has nothing"]);
}

#[test]
fn wrong_usage() {
    let bench = exportable("llama");
    let (model, file) = (bench.model(), bench.arg("model.gguf"));
    samebit(&["export", &model]).ended_with(2, &["--gguf", "--lora-gguf"]);
    samebit(&["export", &model, "--lora-gguf", &file]).ended_with(2, &["--adapter"]);
    samebit(&["export", &model, "--gguf", &file, "--type", "q4_1"])
        .ended_with(2, &["q4_0", "q8_0"]);
    assert!(!bench.path("model.gguf").exists());
}
