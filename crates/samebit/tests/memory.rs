//! Planned bytes against used ones.

mod common;

use common::{Bench, samebit};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

const HIDDEN: usize = 256;
const FEED_FORWARD: usize = 704;
const LAYERS: usize = 4;
const VOCAB: usize = 6_000;

/// What the process may use beyond its plan: 3%, and what a program with its threads takes.
fn allowance(planned: u64) -> u64 {
    planned + planned * 3 / 100 + (64 << 20)
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 1024,
        "tie_word_embeddings": true, "torch_dtype": "float32",
    })
}

/// Names and shapes of the parameters.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let matrices = [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", HIDDEN / 2, HIDDEN),
            ("self_attn.v_proj", HIDDEN / 2, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", FEED_FORWARD, HIDDEN),
            ("mlp.up_proj", FEED_FORWARD, HIDDEN),
            ("mlp.down_proj", HIDDEN, FEED_FORWARD),
        ];
        for (name, rows, cols) in matrices {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![rows, cols]));
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), vec![HIDDEN]));
        }
    }
    shapes
}

/// A model of about 18 MB, small against the activations of a step.
fn bench() -> Bench {
    let bench = Bench::with_model("llama");
    bench.write_json("model/config.json", &config());
    let values: Vec<Vec<u8>> = shapes()
        .iter()
        .enumerate()
        .map(|(index, (_, shape))| {
            let elements: usize = shape.iter().product();
            let value = |i: usize| {
                let noise = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(index as u32) >> 16;
                (noise as f32 / 65_536.0 - 0.5) * 0.1
            };
            let norm = shape.len() == 1;
            (0..elements).flat_map(|i| if norm { 1f32 } else { value(i) }.to_le_bytes()).collect()
        })
        .collect();
    let shapes = shapes();
    let tensors = shapes.iter().zip(&values).map(|((name, shape), bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(tensors, None, &bench.path("model/model.safetensors")).unwrap();
    bench
}

fn figure(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"))
}

fn bench_train(bench: &Bench, more: &[&str]) -> Value {
    let model = bench.model();
    let fixed = [
        "bench",
        "train",
        &model,
        "--batch",
        "4",
        "--sequence",
        "256",
        "--steps",
        "2",
        "--threads",
        "2",
        "--json",
    ];
    samebit(&[&fixed[..], more].concat()).report()
}

fn plan(bench: &Bench, more: &[&str]) -> Value {
    let model = bench.model();
    let fixed = [
        "plan",
        &model,
        "--micro-batch",
        "4",
        "--sequence",
        "256",
        "--gflops",
        "100",
        "--threads",
        "2",
        "--no-table",
        "--json",
    ];
    samebit(&[&fixed[..], more].concat()).report()
}

/// Two steps of two micro-batches of 1,024 tokens.
fn train(bench: &Bench, more: &[&str]) -> Value {
    bench.write("data.jsonl", common::chats());
    let steps = ["--max-steps", "2", "--micro-tokens", "1024", "--accumulation", "2"];
    bench.train("run", &[&steps[..], &["--threads", "2"], more].concat()).report()
}

const LORA: [&str; 2] = ["--rank", "16"];
const LEASED: [&str; 4] = ["--rank", "16", "--memory", "96MiB"];

/// The lease of [`LEASED`].
const LEASE_BYTES: u64 = 96 << 20;

#[test]
fn training_allocates_what_plan_says_to_the_byte() {
    let bench = bench();
    let cases = [(&LORA[..], &LORA[..]), (&LEASED, &LEASED), (&["--full"], &["--mode", "full"])];
    for (i, (planning, training)) in cases.into_iter().enumerate() {
        let planned = plan(&bench, &[planning, &["--accumulation", "2"]].concat());
        let planned = figure(&planned, "ledger_total_bytes");
        let _ = std::fs::remove_dir_all(bench.path("run"));
        let memory = &train(&bench, training)["memory"];
        assert_eq!(figure(memory, "planned_bytes"), planned, "case {i}");
        assert_eq!(figure(memory, "allocated_bytes"), planned, "case {i}");
        let grown = figure(memory, "peak_resident_bytes")
            .saturating_sub(figure(memory, "resident_before_bytes"));
        assert!(grown <= allowance(planned), "case {i}: {grown} resident, {planned} planned");
    }
}

#[test]
fn a_full_step_stays_within_its_plan() {
    let bench = bench();
    for more in [&LORA[..], &LEASED, &["--full"]] {
        let report = bench_train(&bench, more);
        let planned = figure(&report, "planned_bytes");
        let grown = figure(&report, "resident_growth_bytes");
        assert!(grown <= allowance(planned), "{more:?}: {grown} resident, {planned} planned");
        // The figure is of the step: most of what was planned was touched.
        assert!(grown > planned / 2, "{more:?}: {grown} resident, {planned} planned");
    }
}

#[test]
fn a_lease_is_kept_by_recomputing() {
    let bench = bench();
    let (free, leased) = (plan(&bench, &LORA), plan(&bench, &LEASED));
    assert!(figure(&free, "ledger_total_bytes") > LEASE_BYTES);
    assert!(figure(&leased, "ledger_total_bytes") <= LEASE_BYTES);
    assert_ne!(free["keep"], leased["keep"]);
}
