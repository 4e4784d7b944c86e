//! `samebit rl` and `samebit replay` as a user runs them: learning, exact resume, topologies, replays, bad graders.

mod common;

use common::{Bench, Ended, files, samebit};
use serde_json::{Map, Value, json};
use std::fs;

/// A golden model whose every word is one character, and prompts.
fn bench() -> Bench {
    let bench = Bench::with_model("qwen3");
    let config: Value =
        serde_json::from_slice(&fs::read(bench.path("model/config.json")).unwrap()).unwrap();
    let words = config["vocab_size"].as_u64().unwrap() as usize;
    let special = ["<|unk|>", "<|im_start|>", "<|im_end|>"].map(String::from);
    let letters = ('a'..='z').chain([' ', '\n']).chain('\u{4e00}'..).map(String::from);
    let vocabulary: Map<String, Value> = special
        .iter()
        .cloned()
        .chain(letters)
        .take(words)
        .enumerate()
        .map(|(i, t)| (t, json!(i)))
        .collect();
    let mut tokenizer: Value =
        serde_json::from_slice(&fs::read(bench.path("model/tokenizer.json")).unwrap()).unwrap();
    tokenizer["model"]["vocab"] = Value::Object(vocabulary);
    bench.write("model/tokenizer.json", tokenizer.to_string());
    let prompt = |word: &str| json!({"prompt": word, "answer": 7, "note": "kept"}).to_string();
    let prompts = ["cab", "fade", "bead", "decade", "face", "beef"].map(prompt);
    bench.write("prompts.jsonl", prompts.join("\n"));
    bench
}

/// Settings of a run into `out`, with `more` TOML.
fn settings(bench: &Bench, out: &str, more: &str) -> String {
    let toml = format!(
        "model = {:?}\nout = {:?}\nraw = true\nmax_steps = 4\nsave_every = 2\nmicro_tokens = 64\n\
         max_length = 24\nrank = 4\nlr = 1e-2\nseed = 5\nweights = \"f32\"\nthreads = 2\n{more}",
        bench.model(),
        bench.arg(out)
    );
    let name = format!("{out}.toml");
    bench.write(&name, toml);
    bench.arg(&name)
}

/// Groups of 4 completions of up to 6 words, graded by whether a letter of `[a-j]` is in them.
fn grpo(bench: &Bench, out: &str, more: &str) -> String {
    let prompts = bench.arg("prompts.jsonl");
    let reward = if more.contains("reward =") {
        ""
    } else {
        "reward = \"regex\"\nreward_pattern = \"[a-j]\"\n"
    };
    let base = format!(
        "data = [{prompts:?}]\nprompts = 3\ngroup = 4\nmax_tokens = 6\nkeep_checkpoints = 9\n{reward}{more}"
    );
    settings(bench, out, &base)
}

fn run(config: &str, more: &[&str]) -> Ended {
    samebit(&[&["rl", "--json", "--config", config], more].concat())
}

/// The lines of a run's log without what a repeated run has otherwise.
fn steps(bench: &Bench, out: &str) -> Vec<Value> {
    let text = fs::read_to_string(bench.path(out).join("steps.jsonl")).unwrap();
    let line = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        event.as_object_mut().unwrap().remove("seconds");
        event
    };
    text.lines().map(line).collect()
}

/// Everything that a loss may have, under a truncated policy.
const EVERYTHING: &str = "kl_coef = 0.05\nentropy_coef = 0.01\ntop_p = 0.9\ntemperature = 0.8\n";

#[test]
fn log_probs_never_differ_and_every_step_replays() {
    let bench = bench();
    let report = run(&grpo(&bench, "run", EVERYTHING), &[]).report();
    let events = steps(&bench, "run");
    assert_eq!(events.len(), 4);
    for event in &events {
        assert_eq!(event["differing_bytes"], 0);
        assert!(event["compared"].as_u64().unwrap() > 12, "{event}");
        assert_eq!(event["updates"], 1, "{event}");
        assert!(event["entropy"].as_f64().unwrap() > 0.0);
    }
    assert!(bench.path("run/adapter/adapter_config.json").exists());
    let html = fs::read_to_string(bench.path("run/report.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("Reward"), "{html}");
    assert_eq!(report["steps"].as_array().unwrap().len(), 4);
    for step in 1..=4 {
        let replayed =
            samebit(&["replay", "--json", &bench.arg("run"), &step.to_string()]).report();
        assert_eq!(replayed["differing_coefficient_bytes"], 0);
        assert_eq!(replayed["differing_advantages"], 0);
        // Weights are at hand before the first step and after each checkpoint.
        let has = [true, false, true, false][step - 1];
        assert_eq!(replayed["log_probs"].is_object(), has, "step {step}: {replayed}");
        if has {
            assert_eq!(replayed["log_probs"]["differing_bytes"], 0);
        }
    }
    // One stored number otherwise, and the replay says so.
    let path = bench.path("run/rollouts/step-000003.json");
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    stored["samples"][0]["advantage"] = json!(0.125);
    fs::write(&path, stored.to_string()).unwrap();
    let broken = samebit(&["replay", &bench.arg("run"), "3", "--no-model"]);
    assert_eq!(broken.code, Some(1));
    assert!(broken.stderr.contains("did not come out as it was stored"), "{}", broken.stderr);
    samebit(&["replay", &bench.arg("run"), "5"]).refused(&["step 5 is not stored"]);
}

#[test]
fn the_first_update_of_a_step_has_ratio_one() {
    for more in ["", "top_k = 9\ntemperature = 1.3\n", "top_p = 0.7\n"] {
        let bench = bench();
        run(&grpo(&bench, "run", more), &[]).report();
        for event in steps(&bench, "run") {
            if event["updates"] == 1 {
                for key in ["ratio_min", "ratio_mean", "ratio_max"] {
                    assert_eq!(event["measured"][key], 1.0, "{more}: {event}");
                }
            }
        }
    }
}

#[test]
fn later_updates_of_a_step_have_other_ratios() {
    let bench = bench();
    let more = "updates = 3\nkl_coef = 0.05\nkl_in = \"reward\"\nkl_estimator = \"k1\"\nentropy_coef = 0.01\n";
    run(&grpo(&bench, "run", more), &[]).report();
    for event in steps(&bench, "run") {
        assert_eq!(event["updates"], 3, "{event}");
        assert!(event["measured"]["ratio_max"].as_f64().unwrap() > 1.0, "{event}");
        assert!(event["reward_kl"].is_number(), "{event}");
    }
    let last = samebit(&["replay", "--json", &bench.arg("run"), "4"]).report();
    assert_eq!((&last["updates"], &last["differing_coefficient_bytes"]), (&json!(3), &json!(0)));
    let truncated = grpo(&bench, "no", "updates = 2\ntop_k = 5\n");
    run(&truncated, &[]).refused(&["`updates` is 2", "top_k"]);
}

#[test]
fn a_resumed_run_gives_the_bytes_of_an_unbroken_one() {
    let bench = bench();
    run(&grpo(&bench, "run", EVERYTHING), &[]).report();
    let whole = files(&bench.path("run"));
    // As if it had been stopped in step 4, while a line was written.
    let config = grpo(&bench, "again", EVERYTHING);
    for (name, bytes) in &whole {
        let text = name.to_str().unwrap();
        if text.starts_with("adapter") || text.contains("step-4") || text.contains("000004") {
            continue;
        }
        let to = bench.path("again").join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    let log = bench.path("again/steps.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 20]).unwrap();
    run(&config, &["--resume"]).report();
    assert_eq!(steps(&bench, "run"), steps(&bench, "again"));
    let again = files(&bench.path("again"));
    for (name, bytes) in &whole {
        let text = name.to_str().unwrap();
        if text != "steps.jsonl" && text != "rl.json" {
            assert!(again.get(name) == Some(bytes), "{text}");
        }
    }
    run(&config, &["--resume"]).refused(&["the run is finished"]);
    run(&config, &[]).refused(&["the folder is not empty"]);
}

#[test]
fn another_setting_is_not_resumed() {
    let bench = bench();
    run(&grpo(&bench, "run", ""), &[]).report();
    fs::remove_dir_all(bench.path("run/adapter")).unwrap();
    let other = grpo(&bench, "run", "clip_low = 0.3\n");
    run(&other, &["--resume"]).refused(&["cannot be resumed", "clip_low"]);
}

#[test]
fn every_topology_gives_the_steps_of_one_rank() {
    let bench = bench();
    run(&grpo(&bench, "one", EVERYTHING), &[]).report();
    for (name, more) in [
        ("a", "rollout_tp = 2\nrollout_cp = 2\n"),
        ("b", "tp = 2\n"),
        ("c", "cp = 2\ndp = 2\nrollout_cp = 1\n"),
    ] {
        run(&grpo(&bench, name, &format!("{EVERYTHING}{more}")), &[]).report();
        assert_eq!(steps(&bench, "one"), steps(&bench, name), "{more}");
        let stored =
            |out: &str| fs::read(bench.path(out).join("rollouts/step-000004.json")).unwrap();
        assert!(stored("one") == stored(name), "{more}");
    }
}

/// Training on one rank against rollout on TP 2 × CP 2, for a hundred steps.
#[test]
fn a_hundred_steps_have_no_differing_byte() {
    let bench = bench();
    let config = grpo(&bench, "run", &format!("{EVERYTHING}rollout_tp = 2\nrollout_cp = 2\n"));
    run(&config, &["--max-steps", "100", "--prompts", "1", "--save-every", "100"]).report();
    let events = steps(&bench, "run");
    assert_eq!(events.len(), 100);
    for event in &events {
        assert_eq!(event["differing_bytes"], 0);
        assert!(event["compared"].as_u64().unwrap() > 0, "{event}");
    }
}

#[test]
fn groups_of_equal_rewards_teach_nothing_and_are_counted() {
    let bench = bench();
    // No completion is the number 7.
    run(&grpo(&bench, "run", "reward = \"numeric\"\n"), &[]).report();
    for event in steps(&bench, "run") {
        assert_eq!((&event["uniform"], &event["groups"]), (&json!(3), &json!(3)));
        assert_eq!((&event["updates"], &event["reward"]), (&json!(0), &json!(0.0)));
        assert_eq!(event["weights"], steps(&bench, "run")[0]["weights"]);
    }
}

#[test]
fn a_grader_that_fails_ends_the_run_or_drops_the_sample() {
    let bench = bench();
    let script = "while read -r line; do case \"$line\" in *'\"sample\":2,'*) echo oops;; *'\"sample\":5,'*) \
                  echo 1;; *) echo 0.25;; esac; done";
    let program = format!("reward = \"program\"\nreward_program = [\"sh\", \"-c\", {script:?}]\n");
    let failed = run(&grpo(&bench, "fail", &program), &[]);
    failed.refused(&["step 1, sample 2", "prompts.jsonl:", "not JSON", "reward_failure"]);
    let config = grpo(&bench, "drop", &format!("{program}reward_failure = \"drop\"\n"));
    run(&config, &[]).report();
    for event in steps(&bench, "drop") {
        assert_eq!((&event["dropped"], &event["uniform"]), (&json!(1), &json!(2)), "{event}");
        assert_eq!(event["updates"], 1);
    }
    // Found before anything is loaded or written: the program, one that cannot begin, one that says too much.
    for (program, words) in [
        (r#"["/nowhere/grade"]"#, ["/nowhere/grade", "No such file"]),
        (r#"["sh", "-c", "echo broken >&2; exit 3"]"#, ["exit status: 3", "broken"]),
        (r#"["sh", "-c", "echo 1; echo 2"]"#, ["more answers than there are samples", "`2`"]),
    ] {
        let program = format!("reward = \"program\"\nreward_program = {program}\n");
        let early = run(&grpo(&bench, "early", &program), &[]);
        early.refused(&[&["before the first step"], &words[..]].concat());
        assert!(!bench.path("early").exists());
    }
    // At a sample of a step: nothing of the step counts, dropped samples or not.
    for (at_five, words) in [
        ("echo broken >&2; exit 3", ["step 1", "exit status: 3) after 5 of 12 answers: broken"]),
        ("sleep 600", ["step 1", "5 of 12 answers within 3 s"]),
        (":", ["step 1", "11 answers for 12 samples"]),
    ] {
        let script = format!(
            "while read -r line; do case \"$line\" in *'\"sample\":5,'*) {at_five};; *) echo 1;; esac; done"
        );
        let program = format!(
            "reward = \"program\"\nreward_program = [\"sh\", \"-c\", {script:?}]\nreward_timeout_s = 3\n\
             reward_failure = \"drop\"\n"
        );
        run(&grpo(&bench, "step", &program), &[]).refused(&words);
        fs::remove_dir_all(bench.path("step")).unwrap();
    }
}

/// The grader's third batch (after the trial and two steps) does `third`; `count` is where batches are counted.
fn graded_by_number(bench: &Bench, count: &str, third: &str) -> String {
    let script = format!(
        "echo x >> {count:?}; [ $(wc -l < {count:?}) = 4 ] && {{ {third}; }}; while read -r line; do case \"$line\" in \
         *'\"sample\":0,'*|*'\"sample\":5,'*) echo 1;; *) echo 0;; esac; done",
        count = bench.arg(count)
    );
    format!("reward = \"program\"\nreward_program = [\"sh\", \"-c\", {script:?}]\n")
}

#[test]
fn what_was_done_before_a_grader_failed_is_kept() {
    let bench = bench();
    let save = ["--save-every", "100"];
    run(&grpo(&bench, "whole", &graded_by_number(&bench, "whole.count", ":")), &save).report();
    // A fault ends the run; after a signal, which the grader got too, it stops as asked.
    for (out, third, words) in [
        ("fault", "exit 3", ["step 3", "exit status: 3"]),
        ("stop", "kill -TERM $PPID; sleep 2; exit 3", ["stopped after step 2", "--resume"]),
    ] {
        let grader = graded_by_number(&bench, &format!("{out}.count"), third);
        let config = grpo(&bench, out, &grader);
        let ended = run(&config, &save);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "{}", ended.stderr);
        }
        assert!(bench.path(out).join("checkpoints/step-2").exists());
        run(&config, &[&save[..], &["--resume"]].concat()).report();
        assert_eq!(steps(&bench, "whole"), steps(&bench, out));
    }
}

#[test]
fn bad_settings_and_prompts_are_named() {
    let bench = bench();
    run(&grpo(&bench, "a", "gruop = 3\n"), &[]).refused(&["unknown key `gruop`", "`group`"]);
    run(&grpo(&bench, "b", "epochs = 3\n"), &[]).refused(&["epochs", "ignored"]);
    bench.write("prompts.jsonl", "{\"prompt\": \"cab\"}\n{\"question\": 1}\n");
    run(&grpo(&bench, "c", ""), &[]).refused(&["prompts.jsonl:2", "`prompt`"]);
    bench.write("prompts.jsonl", json!({"prompt": "cab".repeat(9)}).to_string());
    run(&grpo(&bench, "d", ""), &[]).refused(&["prompts.jsonl:1", "max_length"]);
    bench.write("prompts.jsonl", json!({"prompt": "cab", "answer": "none"}).to_string());
    let numeric = grpo(&bench, "f", "reward = \"numeric\"\n");
    run(&numeric, &[]).refused(&["prompts.jsonl:1", "`answer`", "it holds no number"]);
    let turns = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    bench.write("prompts.jsonl", json!({"messages": turns}).to_string());
    run(&grpo(&bench, "g", ""), &[])
        .refused(&["prompts.jsonl:1", "the answer is part of the prompt"]);
    let pattern = grpo(&bench, "h", "reward = \"regex\"\n");
    run(&pattern, &[]).refused(&["`reward_pattern` is not given", "--reward-pattern"]);
    bench.write("prompts.jsonl", json!({"prompt": "cab"}).to_string());
    run(&grpo(&bench, "e", "memory = \"64KiB\"\n"), &[]).refused(&["do not fit"]);
    let schema = samebit(&["rl", "--schema"]).report();
    assert!(schema["properties"]["group"]["description"].is_string(), "{schema}");
}

#[test]
fn pairs_are_learnt_and_replayed() {
    let bench = bench();
    let pair = |word: &str| json!({"prompt": word, "chosen": "abc", "rejected": "zy"}).to_string();
    bench.write("pairs.jsonl", ["cab", "fade", "bead"].map(pair).join("\n"));
    let data = format!("method = \"dpo\"\npairs = 2\ndata = [{:?}]\n", bench.arg("pairs.jsonl"));
    run(&settings(&bench, "run", &data), &[]).report();
    let events = steps(&bench, "run");
    let loss = |event: &Value| event["loss"].as_f64().unwrap();
    assert!((loss(&events[0]) - std::f64::consts::LN_2).abs() < 1e-6);
    assert!(loss(&events[3]) < loss(&events[0]), "{events:?}");
    assert_eq!(events[3]["pairs"]["accuracy"], 1.0);
    for step in 1..=4 {
        let replayed =
            samebit(&["replay", "--json", &bench.arg("run"), &step.to_string()]).report();
        assert_eq!(replayed["differing_coefficient_bytes"], 0, "{replayed}");
    }
    bench.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}");
    run(&settings(&bench, "same", &data), &[]).refused(&["pairs.jsonl:1", "are the same"]);
    // A completion ends with the tokenizer's end token, or with the configuration's, or the pairs are refused.
    let last = |out: &str| {
        let stored = fs::read(bench.path(out).join("rollouts/step-000001.json")).unwrap();
        let stored: Value = serde_json::from_slice(&stored).unwrap();
        stored["samples"][0]["ids"].as_array().unwrap().last().cloned()
    };
    bench.write("pairs.jsonl", pair("cab"));
    bench.write("model/tokenizer_config.json", "{}");
    run(&settings(&bench, "end", &data), &[]).report();
    assert_eq!(last("end"), last("run"));
    let mut config: Value =
        serde_json::from_slice(&fs::read(bench.path("model/config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("eos_token_id").unwrap();
    bench.write("model/config.json", config.to_string());
    run(&settings(&bench, "none", &data), &[]).refused(&["no token that ends a completion"]);
}
