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
    for part in
        ["<svg", "<figcaption>Reward", "<figcaption>Loss", "<figcaption>Divergence", "Memory"]
    {
        assert!(html.contains(part), "no {part}");
    }
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
    run(&truncated, &[]).refused(&["`updates` is 2", "top_k", "names others after an update"]);
}

#[test]
fn a_resumed_run_gives_the_bytes_of_an_unbroken_one() {
    let bench = bench();
    run(&grpo(&bench, "run", EVERYTHING), &[]).report();
    let whole = files(&bench.path("run"));
    // As if it had been killed in step 4, while a line was written.
    let config = grpo(&bench, "again", EVERYTHING);
    let after = ["adapter", "report.html", "seal.json", "000004"];
    for (name, bytes) in &whole {
        let text = name.to_str().unwrap();
        if after.iter().any(|part| text.contains(part)) {
            continue;
        }
        let to = bench.path("again").join(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }
    let edit = |name: &str, edit: &dyn Fn(&mut Value)| {
        let path = bench.path("again").join(name);
        let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        fs::write(path, value.to_string()).unwrap();
    };
    edit("record.json", &|record| record["status"] = json!({"state": "running"}));
    let log = bench.path("again/steps.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 20]).unwrap();
    run(&config, &["--resume"]).report();
    assert_eq!(steps(&bench, "run"), steps(&bench, "again"));
    let again = files(&bench.path("again"));
    // These hold times.
    let timed = ["steps.jsonl", "evals.jsonl", "record.json", "report.html", "seal.json"];
    for (name, bytes) in &whole {
        if !timed.contains(&name.to_str().unwrap()) {
            assert!(again.get(name) == Some(bytes), "{}", name.display());
        }
    }
    let diff = samebit(&["diff", "--json", &bench.arg("run"), &bench.arg("again")]).report();
    assert_eq!(diff["first_differing_step"], Value::Null, "{diff}");
    assert_eq!(diff["first_differing_tensors"], Value::Null, "{diff}");
    run(&config, &["--resume"]).refused(&["is finished"]);
    run(&config, &[]).refused(&["already holds a run"]);
}

#[test]
fn what_changed_since_is_named_and_not_resumed() {
    let bench = bench();
    let eval = |note: &str| json!({"prompt": "fab", "answer": 7, "note": note}).to_string();
    bench.write("eval.jsonl", eval("kept"));
    let more = format!("eval = [{:?}]\neval_every = 2\n", bench.arg("eval.jsonl"));
    run(&grpo(&bench, "run", &more), &[]).report();
    let record = bench.path("run/record.json");
    // As if it had been killed before its end.
    let mut killed: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    killed["status"] = json!({"state": "running"});
    fs::write(&record, killed.to_string()).unwrap();
    fs::remove_file(bench.path("run/seal.json")).unwrap();
    let other = grpo(&bench, "run", &format!("{more}clip_low = 0.3\n"));
    run(&other, &["--resume"]).refused(&["cannot be resumed", "`clip_low` was 0.2 and is 0.3"]);
    let config = grpo(&bench, "run", &more);
    let prompts = fs::read(bench.path("prompts.jsonl")).unwrap();
    let model = fs::read(bench.path("model/model.safetensors")).unwrap();
    let mut other_model = model.clone();
    *other_model.last_mut().unwrap() ^= 1;
    let as_was = |name: &str| -> Vec<u8> {
        match name {
            "eval.jsonl" => eval("kept").into_bytes(),
            "prompts.jsonl" => prompts.clone(),
            _ => model.clone(),
        }
    };
    for (file, bytes, named) in [
        ("eval.jsonl", eval("changed").into_bytes(), "evaluation_data (hash)"),
        (
            "prompts.jsonl",
            json!({"prompt": "cab", "answer": 8}).to_string().into_bytes(),
            "data (hash)",
        ),
        ("model/model.safetensors", other_model, "base_weights (hash)"),
    ] {
        fs::write(bench.path(file), bytes).unwrap();
        run(&config, &["--resume"]).refused(&["cannot be resumed", named]);
        fs::write(bench.path(file), as_was(file)).unwrap();
    }
    // Another topology has the same bits.
    let config = grpo(&bench, "run", &format!("{more}rollout_tp = 2\n"));
    run(&config, &["--resume"]).report();
}

/// The record of a run of reinforcement learning is one like any other's.
#[test]
fn a_run_is_recorded_sealed_and_listed() {
    let bench = bench();
    run(&grpo(&bench, "run", "rollout_cp = 2\n"), &[]).report();
    run(&grpo(&bench, "other", "rollout_cp = 2\nclip_low = 0.1\nupdates = 2\n"), &[]).report();
    let shown = samebit(&["show", "--json", &bench.arg("run")]).report();
    assert_eq!(
        (&shown["standing"], &shown["seal"]["seal"]),
        (&json!("finished"), &json!("intact"))
    );
    let record = &shown["record"];
    assert_eq!(record["kind"], "rl");
    for gate in record["gates"].as_array().unwrap() {
        assert!(gate["verdict"] == "ok" || gate["name"] == "code is committed", "{gate}");
    }
    let phases = record["memory"]["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 6, "two ranks of three phases: {phases:?}");
    let ranks = record["memory"]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{ranks:?}");
    for bytes in ranks.iter().flat_map(|of| of["kinds"].as_array().unwrap()).chain(phases) {
        assert_eq!(bytes["planned_bytes"], bytes["used_bytes"], "{bytes}");
    }
    assert_eq!(record["tensors"].as_array().unwrap().len(), 3, "start, checkpoint, end");
    for program in ["train", "optimizer", "score", "generate"] {
        assert!(record["programs"][program].is_string(), "{program}");
    }
    let words = samebit(&["show", &bench.arg("run")]);
    for part in ["rl finished: 4 of 4 steps", "reward_pattern", "rewards teach", "0 rollout"] {
        assert!(words.stdout.contains(part), "no `{part}` in {}", words.stdout);
    }
    let diff = samebit(&["diff", "--json", &bench.arg("run"), &bench.arg("other")]).report();
    let keys: Vec<&str> =
        diff["settings"].as_array().unwrap().iter().map(|p| p["what"].as_str().unwrap()).collect();
    assert_eq!(keys, ["clip_high", "clip_low", "out", "updates"]);
    assert_eq!(samebit(&["annotate", &bench.arg("run"), "a note"]).code, Some(0));
    let listed = samebit(&["runs", "--json", &bench.arg("")]).report();
    let kinds: Vec<&Value> = listed.as_array().unwrap().iter().map(|run| &run["kind"]).collect();
    assert_eq!(kinds, ["rl", "rl"]);
    // One byte of a stored step, and the seal says so.
    let step = bench.path("run/rollouts/step-000002.json");
    let mut bytes = fs::read(&step).unwrap();
    let last = bytes.len() - 2;
    bytes[last] = b' ';
    fs::write(&step, bytes).unwrap();
    let broken = samebit(&["show", &bench.arg("run")]);
    assert!(
        broken.code == Some(1) && broken.stderr.contains("step-000002.json"),
        "{}",
        broken.stderr
    );
    samebit(&["train", "--resume", &bench.arg("run")]).refused(&["is a run of `samebit rl`"]);
}

#[test]
fn the_plan_says_what_each_rank_holds_in_each_phase() {
    let bench = bench();
    let plan = |more: &str| run(&grpo(&bench, "run", more), &["--plan"]).report();
    let two = plan("rollout_tp = 2\n");
    let ranks = two["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), &two["one_engine"]), (2, &json!(false)));
    let phases = ranks[0]["phases"].as_array().unwrap();
    let bytes = |phase: &Value| phase["total_bytes"].as_u64().unwrap();
    let most = phases.iter().map(bytes).max().unwrap();
    assert_eq!(ranks[0]["peak_bytes"], most);
    let one = plan("");
    assert_eq!((&one["one_engine"], &one["ranks"][0]["phases"]), (&json!(true), &json!([])));
    assert!(!bench.path("run").exists());
    // A lease of just the peak holds; one below gives weights back, or refuses.
    let lease = |bytes: u64| plan(&format!("rollout_tp = 2\nmemory = \"{bytes}B\"\n"));
    assert_eq!(lease(most)["keeps_weights"], true);
}

/// In mode `full` every weight passes, and rollout engines give theirs back while the trainer steps.
#[test]
fn full_training_passes_every_weight_and_an_update_that_is_lost_is_an_error() {
    let bench = bench();
    let more = |topology: &str, lr: &str| format!("mode = \"full\"\n{topology}lr = {lr}\n");
    let full = |out: &str, topology: &str, lr: &str| {
        let text = fs::read_to_string(grpo(&bench, out, &more(topology, lr))).unwrap();
        let text = text.replace("rank = 4\nlr = 1e-2\n", "");
        bench.write(&format!("{out}.toml"), text);
        run(&bench.arg(&format!("{out}.toml")), &[])
    };
    full("one", "", "1e-3").report();
    full("two", "rollout_tp = 2\n", "1e-3").report();
    assert_eq!(steps(&bench, "one"), steps(&bench, "two"));
    let shown = samebit(&["show", "--json", &bench.arg("two")]).report();
    for bytes in shown["record"]["memory"]["phases"].as_array().unwrap() {
        assert_eq!(bytes["planned_bytes"], bytes["used_bytes"], "{bytes}");
    }
    for (out, topology) in [("lost", ""), ("lost two", "rollout_tp = 2\n")] {
        full(out, topology, "1e-30").refused(&["before and after an update with a gradient"]);
        let shown = samebit(&["show", "--json", &bench.arg(out)]).report();
        assert_eq!(shown["standing"], "failed");
    }
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
    run(&grpo(&bench, "run", "reward = \"numeric\"\n"), &[])
        .refused(&["none of 4 steps taught anything", "12 groups 12 had equal rewards"]);
    let events = steps(&bench, "run");
    assert_eq!(events.len(), 4);
    for event in &events {
        assert_eq!((&event["uniform"], &event["groups"]), (&json!(3), &json!(3)));
        assert_eq!((&event["updates"], &event["reward"]), (&json!(0), &json!(0.0)));
        assert_eq!(event["weights"], events[0]["weights"]);
        // Compared all the same.
        assert!(event["compared"].as_u64().unwrap() > 12, "{event}");
    }
    let shown = samebit(&["show", "--json", &bench.arg("run")]).report();
    let gates = shown["record"]["gates"].as_array().unwrap();
    let taught = gates.iter().find(|gate| gate["name"] == "rewards teach").unwrap();
    assert_eq!((&shown["standing"], &taught["verdict"]), (&json!("failed"), &json!("failed")));
    assert!(!bench.path("run/adapter").exists());
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
