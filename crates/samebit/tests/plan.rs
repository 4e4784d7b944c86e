//! `samebit plan` on a config.json alone, and what a lease refuses.

mod common;

use common::{Bench, samebit};
use serde_json::{Value, json};

fn llama3_8b() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    })
}

fn qwen3_8b() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "max_position_embeddings": 40960, "tie_word_embeddings": false, "attention_bias": false,
        "torch_dtype": "bfloat16",
    })
}

/// The report of a plan of a config.json that lies alone in its folder.
fn plan(config: &Value, more: &[&str]) -> Value {
    let bench = Bench::new();
    bench.write_json("config.json", config);
    let file = bench.arg("config.json");
    let fixed = ["plan", &file, "--gflops", "100", "--json"];
    samebit(&[&fixed[..], more].concat()).report()
}

fn figure(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a figure"))
}

#[test]
fn lora_parameters_are_counted_exactly() {
    let cases = [
        (qwen3_8b(), "16", 43_646_976),
        (qwen3_8b(), "64", 174_587_904),
        (llama3_8b(), "64", 167_772_160),
    ];
    for (config, rank, parameters) in cases {
        let report = plan(&config, &["--rank", rank]);
        assert_eq!(figure(&report["trainable"]), parameters, "{} r{rank}", config["model_type"]);
    }
}

#[test]
fn every_parameter_is_counted() {
    for (config, parameters) in [(qwen3_8b(), 8_190_735_360), (llama3_8b(), 8_030_261_248)] {
        let report = plan(&config, &["--no-table", "--full"]);
        assert_eq!(figure(&report["parameters_total"]), parameters);
        assert_eq!(figure(&report["trainable"]), parameters);
        let kinds = report["parameters"].as_object().unwrap().values().map(figure).sum::<u64>();
        assert_eq!(kinds, parameters, "kinds add up");
    }
}

#[test]
fn the_ledger_adds_up_and_a_pattern_says_what_it_lacks() {
    let report = plan(&qwen3_8b(), &["--targets", "layers.3*.q_proj,down_proj", "--no-table"]);
    let rows = report["ledger"].as_object().unwrap().values().map(figure).sum::<u64>();
    assert_eq!(rows, figure(&report["ledger_total_bytes"]));
    let layers = |i: usize| report["patterns"][i]["layers_without"].as_array().unwrap().len();
    // Layers 3 and 30 to 35 have it.
    assert_eq!((layers(0), layers(1)), (36 - 7, 0));
    assert_eq!(figure(&report["patterns"][0]["modules"]), 7);
}

/// The golden qwen3's configuration, whose context is 128.
fn tiny(bench: &Bench) -> String {
    std::fs::copy(common::golden("qwen3").join("config.json"), bench.path("config.json")).unwrap();
    bench.arg("config.json")
}

fn tiny_plan(file: &str, micro_batch: u64, memory: Option<u64>) -> common::Ended {
    let micro_batch = micro_batch.to_string();
    let mut args = vec![
        "plan",
        file,
        "--rank",
        "4",
        "--sequence",
        "128",
        "--micro-batch",
        &micro_batch,
        "--gflops",
        "100",
        "--threads",
        "2",
        "--no-table",
        "--json",
    ];
    let memory = memory.map(|bytes| format!("{bytes}B"));
    if let Some(memory) = &memory {
        args.extend(["--memory", memory]);
    }
    samebit(&args)
}

/// The number that follows `before` in a message.
fn named(message: &str, before: &str) -> u64 {
    let (_, after) = message.split_once(before).unwrap_or_else(|| panic!("{before}: {message}"));
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|e| panic!("{e}: {message}"))
}

#[test]
fn a_lease_too_small_is_refused_with_the_most_that_fits() {
    let bench = Bench::new();
    let file = tiny(&bench);
    let lease = figure(&tiny_plan(&file, 8, None).report()["ledger_total_bytes"]);
    let refused = tiny_plan(&file, 512, Some(lease));
    refused.refused(&["512 × 128 tokens does not fit", "MiB", "weights", "graph", "What fits"]);
    let most = named(&refused.stderr, "What fits: micro-batch ");
    assert!(most >= 8, "what was planned fits: {most}");
    let fits = tiny_plan(&file, most, Some(lease)).report();
    assert!(figure(&fits["ledger_total_bytes"]) <= lease);
    tiny_plan(&file, most + 1, Some(lease)).refused(&["does not fit"]);
}

#[test]
fn a_lease_smaller_than_the_weights_is_refused() {
    let bench = Bench::new();
    let file = tiny(&bench);
    tiny_plan(&file, 1, Some(100_000)).refused(&["97.66 KiB", "weights", "raise --memory"]);
}

#[test]
fn a_rate_is_a_positive_number() {
    let bench = Bench::new();
    let file = tiny(&bench);
    let plan = |gflops: &str| {
        samebit(&["plan", &file, "--sequence", "64", "--no-table", "--json", "--gflops", gflops])
    };
    for gflops in ["0", "-1", "nan", "inf"] {
        plan(gflops).refused(&["--gflops", "must be a positive number"]);
    }
    plan("0.5").report();
}

#[test]
fn training_is_refused_by_the_same_lease_before_anything_is_written() {
    let bench = Bench::trainable("qwen3");
    let model = bench.model();
    let train = |micro_tokens: u64, memory: u64| {
        let (tokens, memory) = (micro_tokens.to_string(), format!("{memory}B"));
        let fixed = ["--rank", "4", "--max-steps", "1", "--max-length", "64", "--threads", "2"];
        let given = ["--micro-tokens", &tokens, "--memory", &memory];
        bench.train("run", &[&fixed[..], &given].concat())
    };
    let lease = figure(&tiny_plan(&model, 1, None).report()["ledger_total_bytes"]);
    let before = bench.files();
    let refused = train(65_536, lease);
    refused.refused(&["65,536 tokens do not fit", "lease", "MiB", "the most that fits"]);
    assert!(bench.files() == before, "nothing is written");
    train(128, 100_000).refused(&["no number of tokens fits", "raise memory", "bf16"]);
    let most = named(&refused.stderr, "micro_tokens = ");
    let report = train(most, lease).report();
    let planned = figure(&report["memory"]["planned_bytes"]);
    assert!(planned <= lease, "{planned} planned within {lease}");
    assert_eq!(figure(&report["memory"]["allocated_bytes"]), planned);
}
