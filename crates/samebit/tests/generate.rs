//! `samebit generate` over many prompts: JSON Lines, samples, and a cache in which they give way to each other.

mod common;

use common::{Bench, samebit};
use serde_json::Value;

const PROMPTS: &str = r#"{"prompt": "turn cab"}
{"messages": [{"role": "user", "content": "cab turn cab turn cab"}]}
"#;

/// Arguments on a tiny model.
fn args(bench: &Bench, more: &[&str]) -> Vec<String> {
    let all = ["generate", &bench.arg("model"), "--prompts", &bench.arg("asks.jsonl"), "--json"];
    all.iter().chain(more).map(|arg| (*arg).to_string()).collect()
}

/// The completions by sample number, without what depends on the company that they had.
fn lines(stdout: &str) -> Vec<Value> {
    let mut lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["sample"].as_u64());
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        for company in ["shared_tokens", "evictions"] {
            line.remove(company).unwrap();
        }
    }
    lines
}

#[test]
fn samples_are_the_same_alone_and_together() {
    let bench = Bench::with_model("qwen3").with_byte_level_tokenizer();
    bench.write("asks.jsonl", PROMPTS);
    let sampled = ["--samples", "3", "--temperature", "1", "--max-tokens", "12", "--seed", "5"];
    let run = |more: &[&str]| {
        let ended = samebit(&args(&bench, &[&sampled[..], more].concat()));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        lines(&ended.stdout)
    };
    let together = run(&[]);
    assert_eq!(together.len(), 6);
    let prompts: Vec<u64> = together.iter().map(|l| l["prompt"].as_u64().unwrap()).collect();
    assert_eq!(prompts, [0, 0, 0, 1, 1, 1]);
    for line in &together {
        let (ids, logprobs) =
            (line["ids"].as_array().unwrap(), line["logprobs"].as_array().unwrap());
        assert!(ids.len() == logprobs.len() && !ids.is_empty());
        assert!(logprobs.iter().all(|p| p.as_f64().unwrap() < 0.0));
    }
    assert!(together[..3].iter().any(|l| l["ids"] != together[0]["ids"]), "samples differ");
    assert_eq!(run(&["--sequences", "1"]), together);
    assert_eq!(run(&["--cache-tokens", "64", "--threads", "1"]), together);
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let bench = Bench::with_model("qwen3");
    let refused = |more: &[&str], words: &[&str]| samebit(&args(&bench, more)).refused(words);
    refused(&[], &["asks.jsonl", "No such file"]);
    for (prompts, words) in [
        ("\n", ["asks.jsonl", "no samples"]),
        ("{\"prompt\": \"cab\"}\n{\"prompt\": 3}\n", ["asks.jsonl:2", "`prompt` is a number"]),
        ("{\"prompt\": \"cab\"}\nnonsense\n", ["asks.jsonl:2", "not JSON"]),
        ("{\"prompt\": \"cab\"}\n\n{\"prompt\": \"cab\"}\n", ["asks.jsonl:2", "blank"]),
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            ["asks.jsonl:1", "the last message is the assistant's"],
        ),
    ] {
        bench.write("asks.jsonl", prompts);
        refused(&[], &words);
    }
    bench.write("asks.jsonl", PROMPTS);
    refused(&["--raw"], &["asks.jsonl:2", "`messages` need the chat template"]);
    refused(&["--samples", "2"], &["--samples 2", "give --temperature"]);
    refused(&["--samples", "0"], &["--samples 0"]);
    refused(&["--cache-tokens", "63"], &["--cache-tokens 63", "a page has 64 tokens"]);
    let words = ["needs 2 pages of 64 tokens and the cache has 1"];
    refused(&["--cache-tokens", "64", "--max-tokens", "100"], &words);
}
