//! Merging: the base by its hash, the check of logits, and what is refused.

mod common;

use common::{Bench, chats, golden, samebit};
use formats::peft::{self, AdapterConfig, Factors, TargetModules};
use formats::{Checkpoint, Dtype};
use serde_json::Value;
use std::fs;

const IDS: &str = "1,5,9,33,60,12,44";

/// An adapter that samebit trained a few steps on the bench's model.
fn trained(bench: &Bench) -> String {
    bench.write("data.jsonl", chats());
    let (model, data, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("run"));
    let fixed = ["train", "--model", &model, "--data", &data, "--out", &out, "--json"];
    let more = ["--max-steps", "2", "--micro-tokens", "128", "--rank", "4", "--lr", "3e-2"];
    samebit(&[fixed, more].concat()).report()["product"].as_str().unwrap().to_owned()
}

fn merge(bench: &Bench, adapter: &str, out: &str, more: &[&str]) -> Value {
    let (model, out) = (bench.model(), bench.arg(out));
    samebit(&[&["merge", &model, adapter, "--out", &out, "--json"], more].concat()).report()
}

#[track_caller]
fn refused(bench: &Bench, adapter: &str, more: &[&str], words: &[&str]) {
    let before = bench.files();
    let (model, out) = (bench.model(), bench.arg("refused"));
    samebit(&[&["merge", &model, adapter, "--out", &out], more].concat()).refused(words);
    assert!(bench.files() == before, "nothing is written, changed or removed");
}

/// Changes one number of the model's weights.
fn touch(bench: &Bench) {
    let path = bench.path("model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    // The top byte of the last number: its exponent's lowest bits stay, its sign changes.
    bytes[last] ^= 0x80;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_base_is_known_by_its_hash() {
    let bench = Bench::with_model("qwen3");
    let adapter = trained(&bench);
    let weights = Checkpoint::open(&bench.path("model")).unwrap().fingerprint(1, &|_| ()).unwrap();
    let report = merge(&bench, &adapter, "merged", &[]);
    assert_eq!(report["base"]["weights"], weights.as_str());
    assert_eq!(report["base"]["trained_on"], weights.as_str());
    assert_eq!(report["base"]["note"], Value::Null);
    let origin: Value =
        serde_json::from_slice(&fs::read(bench.path("merged/samebit.json")).unwrap()).unwrap();
    assert_eq!(origin["base_weights"], weights.as_str());

    touch(&bench);
    let changed = Checkpoint::open(&bench.path("model")).unwrap().fingerprint(1, &|_| ()).unwrap();
    assert_ne!(changed, weights);
    refused(&bench, &adapter, &[], &[&weights, &changed, "--allow-other-base"]);
    let report = merge(&bench, &adapter, "other", &["--allow-other-base"]);
    let note = report["base"]["note"].as_str().unwrap();
    assert!(note.contains(&weights) && note.contains(&changed), "{note}");

    // So it is where an adapter is only run.
    let model = bench.model();
    let score = ["score", &model, "--ids", IDS, "--adapter", &adapter];
    samebit(&score).refused(&[&weights, &changed, "--allow-other-base"]);
    samebit(&["generate", &model, "fade", "--adapter", &adapter]).refused(&[&weights, &changed]);
    let scored = samebit(&[&score[..], &["--allow-other-base", "--json"]].concat()).report();
    assert_eq!(scored["base"], report["base"]);
}

#[test]
fn the_adapter_of_a_sealed_run_must_be_as_it_was_sealed() {
    let bench = Bench::with_model("qwen3");
    let adapter = trained(&bench);
    merge(&bench, &adapter, "merged", &[]);
    let run = bench.arg("run");
    refused(&bench, &run, &[], &["is a run", &adapter]);
    let file = bench.path("run/adapter/adapter_model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, &bytes).unwrap();
    let words = ["BROKEN", "adapter/adapter_model.safetensors was changed"];
    refused(&bench, &adapter, &[], &words);
    let (model, gguf) = (bench.model(), bench.arg("lora.gguf"));
    samebit(&["export", &model, "--adapter", &adapter, "--lora-gguf", &gguf]).refused(&words);
    samebit(&["score", &model, "--ids", IDS, "--adapter", &adapter]).refused(&words);
    // Its own folder is nobody's seal.
    let copy = bench.path("copy");
    fs::create_dir(&copy).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors", "samebit.json"] {
        fs::copy(bench.path("run/adapter").join(name), copy.join(name)).unwrap();
    }
    merge(&bench, copy.to_str().unwrap(), "again", &[]);
}

#[test]
fn an_adapter_that_is_not_finite_is_refused_wherever_it_goes() {
    let bench = Bench::with_model("qwen3");
    let module = "model.layers.0.mlp.down_proj";
    let checkpoint = Checkpoint::open(&bench.path("model")).unwrap();
    let shape = &checkpoint.tensor(&format!("{module}.weight")).unwrap().shape;
    let adapter = adapter_of(&bench, "nan", module, [shape[0], shape[1]], f32::NAN);
    let words = ["lora_B", "NaN", "damaged"];
    refused(&bench, &adapter, &[], &words);
    let (model, gguf) = (bench.model(), bench.arg("lora.gguf"));
    samebit(&["export", &model, "--adapter", &adapter, "--lora-gguf", &gguf]).refused(&words);
    samebit(&["score", &model, "--ids", IDS, "--adapter", &adapter]).refused(&words);
}

#[test]
fn the_type_is_that_of_the_tensors_whatever_the_configuration_says() {
    let bench = Bench::with_model("qwen3");
    let file = bench.path("model/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for key in ["dtype", "torch_dtype"] {
        if config.get(key).is_some() {
            config[key] = "bfloat16".into();
        }
    }
    fs::write(&file, config.to_string()).unwrap();
    assert_eq!(Checkpoint::open(&bench.path("model")).unwrap().config().dtype, Dtype::Bf16);
    assert_eq!(merge(&bench, &trained(&bench), "merged", &[])["dtype"], "float32");
}

#[test]
fn an_adapter_of_peft_is_taken_with_a_note() {
    let bench = Bench::with_model("qwen2");
    let adapter = golden("qwen2/adapter");
    let (model, out) = (bench.model(), bench.arg("merged"));
    let done = samebit(&["merge", &model, adapter.to_str().unwrap(), "--out", &out]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stderr.contains("note: the adapter does not say which base"), "{}", done.stderr);
    assert!(done.stdout.contains("logits differ from base + adapter by"), "{}", done.stdout);
}

fn logprobs(args: &[&str]) -> Vec<Option<f64>> {
    let report = samebit(&[&["score"], args, &["--ids", IDS, "--json"]].concat()).report();
    common::numbers(&report["logprobs"])
}

#[test]
fn the_merged_model_says_what_base_and_adapter_say() {
    for model in ["llama_tied", "qwen3"] {
        let bench = Bench::with_model(model);
        let adapter = trained(&bench);
        let report = merge(&bench, &adapter, "merged", &[]);
        let check = &report["check"];
        let figure = |name: &str| check[name].as_f64().unwrap();
        assert!(figure("error") <= figure("bound") && figure("bound") == 1e-4, "{check}");
        assert!(figure("change") > 100.0 * figure("error"), "{check}");
        let merged = logprobs(&[&bench.arg("merged")]);
        let (tuned, base) =
            (logprobs(&[&bench.model(), "--adapter", &adapter]), logprobs(&[&bench.model()]));
        for ((m, t), b) in merged.iter().zip(&tuned).zip(&base).skip(1) {
            let (m, t, b) = (m.unwrap(), t.unwrap(), b.unwrap());
            assert!((m - t).abs() < 1e-4 && (t - b).abs() > 1e-4, "{model}: {m} {t} {b}");
        }
        let rounded = merge(&bench, &adapter, "rounded", &["--dtype", "bf16"]);
        assert_eq!(rounded["dtype"], "bfloat16");
        assert!(rounded["check"]["error"].as_f64().unwrap() > figure("error"));
    }
}

/// Of adapters of rank 1.
fn config(modules: &[&str]) -> AdapterConfig {
    AdapterConfig {
        r: 1,
        lora_alpha: 1.0,
        lora_dropout: 0.0,
        use_rslora: false,
        target_modules: TargetModules::Names(modules.iter().copied().map(String::from).collect()),
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        base_model_name_or_path: None,
    }
}

/// An adapter of one matrix, all of whose B have one value.
fn adapter_of(bench: &Bench, name: &str, module: &str, shape: [usize; 2], b: f32) -> String {
    let config = config(&[module]);
    let [out_features, in_features] = shape;
    let (a, b) = (vec![0.1; in_features], vec![b; out_features]);
    let factors = Factors { module, in_features, out_features, a: &a, b: &b };
    peft::write(&bench.path(name), &config, None, &[factors]).unwrap();
    bench.arg(name)
}

#[test]
fn a_merge_that_loses_the_adapter_is_refused() {
    let bench = Bench::with_model("qwen3");
    let down = "model.layers.0.mlp.down_proj";
    let checkpoint = Checkpoint::open(&bench.path("model")).unwrap();
    let shape = &checkpoint.tensor(&format!("{down}.weight")).unwrap().shape;
    let shape = [shape[0], shape[1]];
    let untrained = adapter_of(&bench, "zero", down, shape, 0.0);
    refused(&bench, &untrained, &[], &["its B are zero", "--no-check"]);
    for kind in ["--gguf", "--lora-gguf"] {
        let (model, file) = (bench.model(), bench.arg("untrained.gguf"));
        samebit(&["export", &model, "--adapter", &untrained, kind, &file])
            .refused(&["its B are zero", "was it trained?"]);
        assert!(!bench.path("untrained.gguf").exists());
    }
    let report = merge(&bench, &untrained, "unchecked", &["--no-check"]);
    assert_eq!(report["check"], Value::Null);
    let faint = adapter_of(&bench, "faint", down, shape, 1e-4);
    refused(&bench, &faint, &["--dtype", "bf16"], &["lose what was learnt", "--dtype f32"]);
    assert!(merge(&bench, &faint, "kept", &["--dtype", "f32"])["check"].is_object());
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let bench = Bench::with_model("llama_tied");
    let checkpoint = Checkpoint::open(&bench.path("model")).unwrap();
    let hidden = checkpoint.config().hidden_size;
    let vocab = checkpoint.config().vocab_size;
    let head = adapter_of(&bench, "head", "lm_head", [vocab, hidden], 0.1);
    refused(&bench, &head, &[], &["lm_head", "ties", "untie"]);
    let wide =
        adapter_of(&bench, "wide", "model.layers.0.self_attn.o_proj", [hidden, hidden + 1], 0.1);
    let words = ["model.layers.0.self_attn.o_proj", "made for another model"];
    refused(&bench, &wide, &[], &words);
    // Scoring says the same.
    let (model, before) = (bench.model(), bench.files());
    samebit(&["score", &model, "--ids", IDS, "--adapter", &wide]).refused(&words);
    samebit(&["score", &model, "--ids", IDS, "--adapter", &head]).refused(&["lm_head", "ties"]);
    assert!(bench.files() == before);
}

/// Merging takes each module with its own rank and scale; a model that runs takes one of each.
#[test]
fn an_adapter_of_several_ranks_or_scales_is_merged_and_not_run() {
    let bench = Bench::with_model("qwen3");
    let checkpoint = Checkpoint::open(&bench.path("model")).unwrap();
    let [down, up] = ["down_proj", "up_proj"].map(|kind| format!("model.layers.0.mlp.{kind}"));
    let shape = |module: &str| {
        let shape = &checkpoint.tensor(&format!("{module}.weight")).unwrap().shape;
        [shape[0], shape[1]]
    };
    let adapter = |name: &str, ranks: [usize; 2], config: AdapterConfig| {
        let matrices = [(&down, ranks[0]), (&up, ranks[1])].map(|(module, rank)| {
            let [out, width] = shape(module);
            (module, out, width, vec![0.1; rank * width], vec![0.1; out * rank])
        });
        let factors = matrices.each_ref().map(|(module, out_features, in_features, a, b)| {
            Factors { module, in_features: *in_features, out_features: *out_features, a, b }
        });
        peft::write(&bench.path(name), &config, None, &factors).unwrap();
        bench.arg(name)
    };
    let both = || config(&[&down, &up]);
    let plain = adapter("plain", [1, 1], both());
    let ranks = AdapterConfig { rank_pattern: vec![(up.clone(), 2)], ..both() };
    let ranks = adapter("ranks", [1, 2], ranks);
    let scales = AdapterConfig { alpha_pattern: vec![(up.clone(), 3.0)], ..both() };
    let scales = adapter("scales", [1, 1], scales);
    let model = bench.model();
    let score =
        |adapter: &str| samebit(&["score", &model, "--ids", IDS, "--adapter", adapter, "--json"]);
    score(&plain).report();
    score(&ranks).refused(&[&up, "rank 2 and scale 0.5", "others rank 1 and scale 1"]);
    score(&scales).refused(&[&up, "rank 1 and scale 3", "others rank 1 and scale 1"]);
}
