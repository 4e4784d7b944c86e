//! Training over ranks from the command line.

mod common;

use common::{Bench, chats, samebit};
use serde_json::Value;
use std::path::Path;

fn train(bench: &Bench, out: &str, more: &[&str]) -> Value {
    let fixed =
        ["--micro-tokens", "128", "--accumulation", "2", "--max-steps", "2", "--allow-dirty"];
    bench.train(out, &[&fixed[..], more].concat()).report()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn ranks_leave_the_adapter_of_one_and_what_they_planned() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let one = train(&bench, "one", &[]);
    let many = train(&bench, "many", &["--tp", "2", "--cp", "2", "--dp", "2"]);
    let weights = "adapter/adapter_model.safetensors";
    assert!(read(&bench.path("one").join(weights)) == read(&bench.path("many").join(weights)));
    let losses = |report: &Value| -> Vec<Value> {
        report["steps"].as_array().unwrap().iter().map(|step| step["loss"].clone()).collect()
    };
    assert_eq!(losses(&one), losses(&many));
    assert_eq!(many["memory"]["planned_bytes"], many["memory"]["allocated_bytes"]);
    let record: Value = serde_json::from_slice(&read(&bench.path("many/record.json"))).unwrap();
    let kinds = record["memory"]["ranks"].as_array().unwrap().iter().map(|of| &of["kinds"]);
    for kind in kinds.flat_map(|kinds| kinds.as_array().unwrap()) {
        assert_eq!(kind["planned_bytes"], kind["used_bytes"], "{kind}");
    }
    let gates = record["gates"].as_array().unwrap();
    let verdict = |name: &str| gates.iter().find(|gate| gate["name"] == name).unwrap();
    for check in ["packed = alone", "no token sees a later one", "recomputed = kept", "ranks agree"]
    {
        assert_eq!(verdict(check)["verdict"], "ok", "{check}");
    }
    let shown = samebit(&["show", &bench.arg("many")]).stdout;
    assert!(shown.contains("each of ranks 0-7") || shown.contains("each of ranks 0"), "{shown}");
}

#[test]
fn a_check_over_ranks_is_the_check_of_one_and_its_smoke_runs_on_all() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let check = |more: &[&str]| {
        let (model, data, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("out"));
        let args = ["check", "--model", &model, "--data", &data, "--out", &out, "--json"];
        samebit(&[&args[..], &["--micro-tokens", "64", "--smoke"], more].concat())
    };
    let figures = |report: &Value| -> Vec<Value> {
        let names = [
            "loss within bounds",
            "trained tensors receive gradient",
            "packed = alone",
            "no token sees a later one",
            "recomputed = kept",
            "longest sample fits",
        ];
        let checks = report["checks"].as_array().unwrap();
        let of = |name: &&str| checks.iter().find(|check| check["name"] == **name).unwrap().clone();
        names.iter().map(of).collect()
    };
    let (one, two) = (check(&[]).report(), check(&["--cp", "2"]).report());
    assert_eq!(figures(&one), figures(&two));
    assert!(figures(&two)[5]["figure"].as_str().unwrap().contains("run forward and backward"));
    assert!(!bench.path("out").exists());
    let failed = check(&["--tp", "2", "--loss-limit", "0.001"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("not ready"), "{}", failed.stderr);
}

#[test]
fn degrees_that_cannot_be_are_refused_before_anything_runs() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let ended = bench.train("out", &["--tp", "16", "--allow-dirty"]);
    ended.refused(&["tp = 16", "the width 8"]);
    assert!(!bench.path("out").exists());
}

/// A launcher's processes must not each run the whole.
#[cfg(not(feature = "mpi"))]
#[test]
fn processes_of_a_launcher_need_a_build_with_mpi() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let (model, data, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("out"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_samebit"));
    command.args(["train", "--model", &model, "--data", &data, "--out", &out, "--tp", "2"]);
    command.env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "2");
    let ended = common::ended(&mut command);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("2 processes were started"), "{}", ended.stderr);
    assert!(ended.stderr.contains("--features mpi"), "{}", ended.stderr);
    assert!(!bench.path("out").exists());
}

/// Commands whose ranks are threads alone refuse to be run once a process.
#[test]
fn processes_of_a_launcher_do_not_each_run_the_whole() {
    for args in [
        vec!["rl", "--model", "m", "--data", "d", "--out", "o", "--tp", "2"],
        vec!["verify", "--matrix"],
        vec!["score", "m", "--ids", "1,2"],
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_samebit"));
        command.args(&args).env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "2");
        let ended = common::ended(&mut command);
        assert_eq!(ended.code, Some(1), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("2 processes"), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("start one process"), "{args:?}: {}", ended.stderr);
    }
}
