//! Ranks as processes; only in a build with the feature `mpi`.

#![cfg(feature = "mpi")]

mod common;

use common::{Bench, chats, ended, skip};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `mpirun` with four processes of `samebit`, where there is one.
fn mpirun(test: &str, args: &[String]) -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        skip(test, "there is no mpirun here");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", "4", "--oversubscribe", env!("CARGO_BIN_EXE_samebit")]).args(args);
    Some(command)
}

fn train(bench: &Bench, out: &str, steps: &str) -> Vec<String> {
    let text = |s: &str| s.to_string();
    let mut args: Vec<String> = ["train", "--model"].map(text).to_vec();
    args.extend([bench.model(), text("--data"), bench.arg("data.jsonl"), text("--out")]);
    args.extend([bench.arg(out), text("--max-steps"), text(steps)]);
    args.extend(["--micro-tokens", "64", "--accumulation", "2"].map(text));
    args.extend(["--tp", "2", "--cp", "2", "--allow-dirty", "--json"].map(text));
    args
}

#[test]
fn four_processes_leave_the_bytes_of_four_threads() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let test = "four_processes_leave_the_bytes_of_four_threads";
    let Some(mut command) = mpirun(test, &train(&bench, "processes", "3")) else { return };
    let report = ended(&mut command).report();
    assert_eq!(report["memory"]["planned_bytes"], report["memory"]["allocated_bytes"]);
    common::samebit(&train(&bench, "threads", "3")).report();
    let weights = |out: &str| {
        std::fs::read(bench.path(out).join("adapter/adapter_model.safetensors")).unwrap()
    };
    assert!(weights("processes") == weights("threads"));
}

#[test]
fn processes_have_the_bytes_of_one_rank() {
    let test = "processes_have_the_bytes_of_one_rank";
    let verify = |args: &[&str]| {
        let args: Vec<String> = ["verify"].iter().chain(args).map(|arg| arg.to_string()).collect();
        Some(ended(&mut mpirun(test, &args)?))
    };
    let topology = ["--tp", "2", "--cp", "2", "--rollout-tp", "2", "--steps", "1", "--json"];
    let Some(same) = verify(&topology) else { return };
    let report = same.report();
    assert_eq!(report["same"], true);
    assert_eq!(report["differences"].as_array().unwrap().len(), 0);
    let Some(broken) = verify(&[&topology[..], &["--perturb", "drop-subtree"]].concat()) else {
        return;
    };
    assert_ne!(broken.code, Some(0));
    assert!(broken.stderr.contains("of the compared values differ"), "{}", broken.stderr);
    let Some(matrix) = verify(&["--matrix"]) else { return };
    assert_ne!(matrix.code, Some(0));
    assert!(matrix.stderr.contains("--matrix under a launcher"), "{}", matrix.stderr);
}

#[test]
fn another_number_of_processes_is_refused() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let mut args = train(&bench, "out", "3");
    let cp = args.iter().position(|arg| arg == "--cp").unwrap();
    args[cp + 1] = "1".into();
    let test = "another_number_of_processes_is_refused";
    let Some(mut command) = mpirun(test, &args) else { return };
    let ended = ended(&mut command);
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("4 processes were started"), "{}", ended.stderr);
}

/// Processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| -> Option<u32> {
        entry.ok()?.file_name().to_str()?.parse().ok()
    };
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(") ").next().unwrap_or_default().to_string();
        after.split(' ').nth(1) == Some(&parent.to_string())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(number).filter(is_child).collect()
}

/// Long enough for any machine; a run that hangs is what it is for.
const LIMIT: Duration = Duration::from_secs(120);

fn wait(child: &mut Child, what: &str, mut done: impl FnMut(&mut Child) -> bool) {
    let begin = Instant::now();
    while !done(child) {
        if begin.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{what}: nothing for {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_process_that_is_killed_ends_the_others() {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", chats());
    let test = "a_process_that_is_killed_ends_the_others";
    let Some(mut command) = mpirun(test, &train(&bench, "out", "20000")) else { return };
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let steps = bench.path("out").join("steps.jsonl");
    wait(&mut running, "the first step", |child| {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its first step");
        std::fs::metadata(&steps).is_ok_and(|file| file.len() > 0)
    });
    let ranks = children(running.id());
    assert_eq!(ranks.len(), 4);
    let killed = Command::new("kill").args(["-9", &ranks[2].to_string()]).status().unwrap();
    assert!(killed.success());
    wait(&mut running, "the end", |child| child.try_wait().unwrap().is_some());
    let ended = running.wait_with_output().unwrap();
    assert!(!ended.status.success());
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("signal 9"), "{said}");
}
