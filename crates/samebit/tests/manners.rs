//! How commands speak: plain words, the real error, the next thing to do, a report for programs.

mod common;

use common::{Bench, Ended, samebit};
use std::io::Write;
use std::process::{Command, Stdio};

fn trainable() -> Bench {
    Bench::trainable("qwen3")
}

fn train(bench: &Bench, more: &[&str]) -> Ended {
    bench.train("run", &[&["--micro-tokens", "128"], more].concat())
}

#[test]
fn a_size_without_a_unit_is_asked_about() {
    let bench = trainable();
    let model = bench.model();
    samebit(&["plan", &model, "--memory", "6"]).ended_with(2, &["--memory", "6GiB?"]);
    train(&bench, &["--memory", "6"]).ended_with(2, &["6GiB?"]);
    samebit(&["plan", &model, "--sequence", "64", "--memory", "6GiB", "--json"]).report();
}

#[test]
fn a_negative_number_gets_the_real_error() {
    let bench = trainable();
    let model = bench.model();
    train(&bench, &["--alpha", "-1"]).refused(&["`alpha` is -1", "a positive number"]);
    train(&bench, &["--lr", "-0.001"]).refused(&["`lr` is -0.001", "a positive number"]);
    train(&bench, &["--lr", "-1e-3"]).refused(&["`lr` is -0.001", "a positive number"]);
    train(&bench, &["--lr", "1e-3x"]).ended_with(2, &["1e-3x", "--lr"]);
    samebit(&["plan", &model, "--sequence", "64", "--alpha", "-1"])
        .refused(&["--alpha -1", "a positive number"]);
    samebit(&["generate", &model, "cab", "--temperature", "-1"]).refused(&["-1"]);
    // A flag that there is not stays one.
    samebit(&["plan", &model, "-x"]).ended_with(2, &["-x"]);
}

#[test]
fn settings_errors_use_plain_words() {
    let bench = trainable();
    bench.write("run.toml", "rank = \"eight\"\n");
    let config = bench.arg("run.toml");
    let ended = train(&bench, &["--config", &config]);
    ended.refused(&["run.toml", "line 1", "a whole number"]);
    assert!(!ended.stderr.contains("usize"), "{}", ended.stderr);
}

#[test]
fn a_warm_up_ends_within_the_run() {
    let bench = trainable();
    let words = ["`warmup_steps` is 5", "at most max_steps, 2"];
    train(&bench, &["--max-steps", "2", "--warmup-steps", "5"]).refused(&words);
    let words = ["`warmup_steps` is 500", "never reach its peak", "warmup_ratio"];
    train(&bench, &["--epochs", "1", "--warmup-steps", "500"]).refused(&words);
    train(&bench, &["--max-steps", "2", "--warmup-steps", "2", "--rank", "2"]).report();
}

#[test]
fn kernels_are_in_the_report() {
    let bench = trainable();
    let model = bench.model();
    let fixed = [
        "bench",
        "train",
        &model,
        "--batch",
        "1",
        "--sequence",
        "32",
        "--steps",
        "1",
        "--rank",
        "2",
        "--json",
    ];
    let report = samebit(&[&fixed[..], &["--kernels"]].concat()).report();
    let kernels = report["kernels"].as_array().unwrap();
    assert!(kernels.len() > 5);
    let share: f64 = kernels.iter().map(|k| k["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    assert!(kernels.iter().all(|k| k["operation"].is_string() && k["times"].as_u64() > Some(0)));
    assert!(samebit(&fixed).report()["kernels"].is_null());
}

#[test]
fn a_missing_template_says_what_can_be_done() {
    let bench = trainable();
    std::fs::remove_file(bench.path("model/chat_template.jinja")).unwrap();
    let words = ["no chat template", "chat_template.jinja", "--raw", "`text`"];
    samebit(&["generate", &bench.model(), "cab"]).refused(&words);
    samebit(&["generate", &bench.model(), "cab", "--raw", "--max-tokens", "1", "--json"]).report();
}

#[test]
fn a_missing_tokenizer_says_where_it_belongs() {
    let bench = trainable();
    let ids = ["score", &bench.model(), "--ids", "1,2,3", "--json"];
    std::fs::remove_file(bench.path("model/tokenizer.json")).unwrap();
    let words = [&bench.model(), "no tokenizer.json there", "beside its weights"];
    samebit(&["generate", &bench.model(), "cab"]).refused(&words);
    train(&bench, &[]).refused(&words);
    samebit(&ids).report();
}

#[test]
fn a_missing_model_says_how_to_give_one() {
    let bench = trainable();
    let (data, out) = (bench.arg("data.jsonl"), bench.arg("run"));
    let words = ["no model: give --model", "settings file"];
    samebit(&["train", "--data", &data, "--out", &out]).refused(&words);
    samebit(&["data", "--data", &data]).refused(&words);
    assert!(!bench.path("run").exists());
}

#[test]
fn threads_are_at_least_one_and_not_without_end() {
    let bench = trainable();
    let model = bench.model();
    let score =
        |threads| samebit(&["score", &model, "--ids", "1,2,3", "--threads", threads, "--json"]);
    score("0").refused(&["--threads 0", "at least one"]);
    score("257").refused(&["--threads 257", "the most is 256"]);
    let (one, most) = (score("1").report(), score("256").report());
    assert_eq!(one["logprobs"], most["logprobs"]);
}

/// Talks to a model over a pipe.
fn chat(bench: &Bench, more: &[&str], lines: &str) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_samebit"))
        .args(["chat", &bench.model(), "--max-tokens", "4"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

#[test]
fn an_empty_line_does_not_end_a_chat() {
    let bench = trainable();
    let bench = bench.with_byte_level_tokenizer();
    let said = |lines: &str| {
        let ended = chat(&bench, &[], lines);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    assert_eq!(said("\n\ncab\n \n"), said("cab\n"));
    assert_ne!(said("cab\n"), "");
}

#[test]
fn a_message_over_the_context_does_not_end_a_chat() {
    let bench = trainable();
    let bench = bench.with_byte_level_tokenizer();
    let long = "a".repeat(100);
    let ended = chat(&bench, &["--context", "64"], &format!("{long}\ncab\n"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("shorten it") && ended.stderr.contains("room for 64"),
        "{}",
        ended.stderr
    );
    let alone = chat(&bench, &["--context", "64"], "cab\n");
    assert_eq!(ended.stdout, alone.stdout, "as if the long one had not been said");
}

/// One file describes a run to `plan` and to `train`, and both come to the same bytes.
#[test]
fn a_settings_file_is_planned_as_it_is_trained() {
    let bench = trainable();
    let (model, data, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("run"));
    bench.write(
        "run.toml",
        format!(
            "model = {model:?}\ndata = [{data:?}]\nout = {out:?}\nrank = 3\nmicro_tokens = 96\nmicro_sequences = 5\n\
             accumulation = 2\nmax_length = 64\nmax_steps = 1\nmemory = \"1GiB\"\n"
        ),
    );
    let config = bench.arg("run.toml");
    let plan = samebit(&["plan", "--config", &config, "--json", "--serve-with", "vllm"]).report();
    assert_eq!((&plan["micro_tokens"], &plan["accumulation"]), (&96.into(), &2.into()));
    assert_eq!(plan["serving"]["form"], "adapter");
    let trained = samebit(&["train", "--config", &config, "--json"]).report();
    assert_eq!(plan["ledger_total_bytes"], trained["memory"]["planned_bytes"]);
    // Ranks, and a held-out part that is scored in larger memory than a step.
    let more = "tp = 2\neval_fraction = 0.3\neval_every = 1\n";
    let text = std::fs::read_to_string(&config).unwrap().replace("\nrank", "\nthreads = 2\nrank");
    bench.write("ranks.toml", text.replace(&out, &bench.arg("ranks")) + more);
    let ranks = bench.arg("ranks.toml");
    let plan = samebit(&["plan", "--config", &ranks, "--json"]).report();
    assert_eq!(plan["topology"], serde_json::json!([2, 1, 1]));
    let planned: u64 = plan["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["ranks"].as_array().unwrap().len() as u64 * r["total_bytes"].as_u64().unwrap())
        .sum();
    assert!(plan["ledger"]["exchange"].as_u64().unwrap() > 0, "what ranks publish is planned");
    let trained = samebit(&["train", "--config", &ranks, "--json"]).report();
    assert_eq!(trained["memory"]["planned_bytes"], planned);
    assert_eq!(trained["memory"]["allocated_bytes"], planned);
    samebit(&["plan", "--config", &ranks, "--tp", "1"]).ended_with(2, &["--config", "--tp"]);
    let both = ["plan", "--config", &config, "--rank", "4"];
    samebit(&both).ended_with(2, &["--config", "--rank"]);
    samebit(&["plan"]).ended_with(2, &["MODEL"]);
    bench.write("run.toml", "rnk = 3\n");
    samebit(&["plan", "--config", &config]).refused(&["run.toml", "unknown key `rnk`", "`rank`"]);
    bench.write("run.toml", "rank = 3\n");
    samebit(&["plan", "--config", &config]).refused(&["run.toml", "no model"]);
}
