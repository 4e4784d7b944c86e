//! SmolLM2-135M-Instruct on its real weights, against transformers: a page of text, a chat sample, greedy completions.
//! Skipped where the model cannot be fetched, unless everything must run.

mod common;

use arena::Executor;
use common::{Bench, Ended, SMOLLM2, joined, numbers, samebit_with_cache, skip};
use engine::{Advance, Blueprint, Engine, GenerateShape, Job, Sampler, Sampling};
use families::BuildOptions;
use formats::Checkpoint;
use program::{Op, Program, Rank, Topology};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// Largest relative error of a page's perplexity.
const PERPLEXITY_ERROR: f64 = 1e-3;

/// Largest error of one log-prob, nats.
const LOGPROB_ERROR: f64 = 1e-3;

/// Tokens of a greedy completion, as many as the golden file holds.
const NEW_TOKENS: usize = 64;

/// The model's file in the user's cache, fetched if need be.
fn model(test: &str) -> Option<PathBuf> {
    let resolved = hub::Options::from_env().and_then(|options| hub::resolve(SMOLLM2, &options));
    match resolved {
        Ok(resolved) => Some(resolved.path),
        Err(error) => {
            skip(test, &format!("{SMOLLM2} cannot be had: {error}"));
            None
        }
    }
}

fn golden() -> Value {
    let path = common::golden("smollm2/golden.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn score(input: &[&str]) -> Value {
    let ended: Ended = samebit_with_cache(&[&["score", SMOLLM2], input, &["--json"]].concat());
    ended.report()
}

/// Compares log-probs of the tokens that are scored; the golden ones begin with the second token.
fn assert_logprobs(report: &Value, golden: &Value, scored: impl Fn(usize) -> bool) {
    let (ours, theirs) = (numbers(&report["logprobs"]), numbers(&golden["logprobs"]));
    assert_eq!(ours.len(), theirs.len() + 1);
    for (i, ours) in ours.iter().enumerate() {
        let theirs = (i > 0 && scored(i)).then(|| theirs[i - 1].unwrap());
        match (ours, theirs) {
            (None, None) => {}
            (Some(a), Some(b)) => assert!((a - b).abs() < LOGPROB_ERROR, "token {i}: {a} and {b}"),
            _ => panic!("token {i}: {ours:?} where {theirs:?} is expected"),
        }
    }
}

#[test]
fn page_of_text() {
    if model("page_of_text").is_none() {
        return;
    }
    let golden = &golden()["page"];
    let bench = Bench::new();
    bench.write("page.txt", golden["text"].as_str().unwrap());
    let report = score(&["--text", &bench.arg("page.txt")]);
    assert_eq!(report["ids"], golden["ids"]);
    assert_logprobs(&report, golden, |_| true);
    let (ours, theirs) =
        (report["perplexity"].as_f64().unwrap(), golden["perplexity"].as_f64().unwrap());
    assert!((ours / theirs - 1.0).abs() < PERPLEXITY_ERROR, "perplexity {ours} and {theirs}");
}

#[test]
fn chat_sample_and_the_same_ids() {
    if model("chat_sample_and_the_same_ids").is_none() {
        return;
    }
    let golden = &golden()["chat"];
    let bench = Bench::new();
    bench.write_json("chat.json", &serde_json::json!({"messages": golden["messages"]}));
    let chat = score(&["--chat", &bench.arg("chat.json")]);
    assert_eq!(chat["ids"], golden["ids"]);
    let supervised = golden["supervised"].as_array().unwrap();
    assert_logprobs(&chat, golden, |i| supervised[i].as_bool().unwrap());
    let (ours, theirs) =
        (chat["mean_logprob"].as_f64().unwrap(), golden["supervised_mean_nll"].as_f64().unwrap());
    assert!((ours + theirs).abs() < LOGPROB_ERROR, "mean {ours} and {theirs}");

    let given = score(&["--ids", &joined(&ids(&golden["ids"]))]);
    assert_logprobs(&given, golden, |_| true);
    let chat = numbers(&chat["logprobs"]);
    for (i, logprob) in numbers(&given["logprobs"]).into_iter().enumerate() {
        assert!(chat[i].is_none() || chat[i] == logprob, "token {i} has one log-prob");
    }
}

/// What the command says up to the end marker, on a prompt that reaches it and one that does not.
#[test]
fn greedy_completions_by_the_command() {
    if model("greedy_completions_by_the_command").is_none() {
        return;
    }
    let golden = golden();
    for index in [0, 2, 9] {
        let golden = &golden["greedy"][index];
        let prompt = golden["prompt"].as_str().unwrap();
        let new_tokens = NEW_TOKENS.to_string();
        let args = ["generate", SMOLLM2, prompt, "--max-tokens", &new_tokens, "--json"];
        let report = samebit_with_cache(&args).report();
        assert_eq!(report["prompt_ids"], golden["prompt_ids"], "{prompt}");
        let end = golden["eos_at"].as_u64().map(|at| at as usize + 1);
        let tokens = ids(&golden["tokens"]);
        assert_eq!(ids(&report["ids"]), tokens[..end.unwrap_or(NEW_TOKENS)], "{prompt}");
        let ending = if end.is_some() { "end_token" } else { "length" };
        assert_eq!(report["ending"], ending, "{prompt}");
        let said = golden["text"].as_str().unwrap().split("<|im_end|>").next();
        assert_eq!(report["text"].as_str(), said, "{prompt}");
    }
}

fn engine(path: &std::path::Path, generate: GenerateShape) -> Engine<'static> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let graph = families::build(checkpoint.config(), &BuildOptions::default()).unwrap().graph;
    let settings = cpu::Settings { threads: 2, precision: cpu::Precision::F32, isa: None };
    let executor = cpu::Cpu::new(settings).unwrap();
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    let job = Job { generate: Some(generate), ..Job::default() };
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    let mut engine = Engine::new(graph, blueprint, Box::new(executor)).unwrap();
    engine.load(&checkpoint, &mut |_| ()).unwrap();
    engine
}

/// All 640 tokens, past end markers too, all prompts decoded side by side.
#[test]
fn greedy_tokens_of_ten_prompts() {
    let Some(path) = model("greedy_tokens_of_ten_prompts") else { return };
    let golden = golden();
    let cases = golden["greedy"].as_array().unwrap();
    assert_eq!(cases.len(), 10);
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| ids(&case["prompt_ids"])).collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap();
    let shape = GenerateShape::full(cases.len(), longest + NEW_TOKENS, longest);
    let pages: Vec<Vec<u32>> = (0..cases.len()).map(|slot| shape.slot(slot)).collect();
    let mut engine = engine(&path, shape);
    let mut sampler = Sampler::new(Sampling::default(), 0).unwrap();
    let work: Vec<Advance<'_>> = prompts
        .iter()
        .zip(&pages)
        .map(|(ids, pages)| Advance { pages, past: 0, ids, logits: true })
        .collect();
    let mut rows = engine.advance(&work).unwrap();
    for step in 0..NEW_TOKENS {
        let chosen: Vec<u32> =
            rows.iter().map(|row| sampler.choose(row, step as u64).unwrap()).collect();
        for (case, &chosen) in cases.iter().zip(&chosen) {
            assert_eq!(
                u64::from(chosen),
                case["tokens"][step].as_u64().unwrap(),
                "{}: token {step}; the runner-up is {}, {} below",
                case["prompt"],
                case["runner_up"][step],
                case["logit_gap"][step]
            );
        }
        let work: Vec<Advance<'_>> = chosen
            .iter()
            .enumerate()
            .map(|(slot, id)| Advance {
                pages: &pages[slot],
                past: prompts[slot].len() + step,
                ids: std::slice::from_ref(id),
                logits: true,
            })
            .collect();
        rows = engine.advance(&work).unwrap();
    }
}
