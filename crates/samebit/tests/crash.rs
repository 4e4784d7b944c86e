//! What a run survives: being killed at any point, also while it saves, and a disk that fills up.

mod common;

use common::{Bench, ended, samebit};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Kills of one run.
const KILLS: usize = 20;
const STEPS: usize = 150;

fn bench() -> Bench {
    Bench::trainable("qwen3")
}

/// A run that saves after every step, so that most points of time are in a save.
fn arguments(bench: &Bench, out: &str, steps: usize) -> Vec<String> {
    let (steps, few) = (steps.to_string(), ["--micro-tokens", "48", "--save-every", "1"]);
    let more = [&few[..], &["--lr", "1e-3", "--threads", "1", "--max-steps", &steps]].concat();
    bench.train_args(out, &more)
}

fn spawn(args: &[String], folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_samebit"))
        .args(args)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count())
}

/// The numbers of a run's steps, without times.
fn steps(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("steps.jsonl")).unwrap();
    let step = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("seconds");
        value
    };
    text.lines().map(step).collect()
}

/// Numbers that look random, the same every time.
struct Points(u64);

impl Points {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_run_killed_twenty_times_ends_with_the_bytes_of_an_unbroken_one() {
    let bench = bench();
    samebit(&arguments(&bench, "whole", STEPS)).report();
    let run = bench.path("broken");
    let mut points = Points(7);
    for kill in 0..KILLS {
        let begun = run.join("record.json").exists();
        let args = match begun {
            true => vec!["train".into(), "--resume".into(), bench.arg("broken")],
            false => arguments(&bench, "broken", STEPS),
        };
        let mut child = spawn(&args, &bench.path(""));
        // Some die while they start; the others some steps later, at any point of a step or a save.
        if kill % 5 == 0 {
            sleep(Duration::from_millis(points.below(60)));
        } else {
            let far = lines(&run.join("tensors.jsonl")) + 1 + points.below(4) as usize;
            while lines(&run.join("tensors.jsonl")) < far && child.try_wait().unwrap().is_none() {
                sleep(Duration::from_micros(200));
            }
            sleep(Duration::from_micros(points.below(20_000)));
        }
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "kill {kill}: the run ended before it was killed"
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
    samebit(&["train", "--json", "--resume", &bench.arg("broken")]).report();
    assert_eq!(steps(&run), steps(&bench.path("whole")));
    let product = |run: &str| common::files(&bench.path(run).join("adapter"));
    assert!(product("broken") == product("whole"));
    let state = |run: &str| common::checkpoints(&bench.path(run));
    assert!(state("broken") == state("whole"), "the same checkpoints, and nothing half-written");
    let diff = samebit(&["diff", &bench.arg("broken"), &bench.arg("whole"), "--json"]).report();
    assert!(diff["first_differing_step"].is_null() && diff["first_differing_tensors"].is_null());
    let shown = samebit(&["show", &bench.arg("broken"), "--json"]).report();
    assert_eq!(shown["seal"]["seal"], "intact");
}

/// Fills a file system of its own once the run has made a checkpoint there.
const FILL: &str = r#"
set -e
mount -t tmpfs -o size=16m none "$1"
shift_to="$2"; disk="$1"; shift 2
"$@" &
run=$!
while ! ls "$disk"/run/checkpoints/step-* >/dev/null 2>&1; do kill -0 $run; sleep 0.01; done
dd if=/dev/zero of="$disk/fill" bs=4096 2>/dev/null || true
code=0; wait $run || code=$?
rm "$disk/fill"
cp -r "$disk/run" "$shift_to"
exit $code
"#;

#[test]
fn a_disk_that_fills_up_leaves_the_checkpoints_and_a_true_status() {
    let mut probe = Command::new("unshare");
    let why = match probe.args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output() {
        Ok(out) if out.status.success() => None,
        Ok(out) => Some(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = why {
        // Not asked for by SAMEBIT_REQUIRE_ALL: what the system lets a user mount is not the project's to install, and a
        // disk that is full in the middle of a save is tested by a limit (crates/train/tests/disk_full.rs).
        println!(
            "skipped: a disk that fills up, because no file system can be mounted here ({why})"
        );
        return;
    }
    let bench = bench();
    fs::create_dir(bench.path("disk")).unwrap();
    let args = arguments(&bench, "disk/run", 20_000);
    let out = ended(
        Command::new("unshare")
            .args(["-rm", "sh", "-c", FILL, "sh", &bench.arg("disk"), &bench.arg("kept")])
            .arg(env!("CARGO_BIN_EXE_samebit"))
            .args(&args)
            .current_dir(bench.path("")),
    );
    assert_eq!(out.code, Some(1), "{}", out.stderr);
    assert!(
        out.stderr.contains("No space left") || out.stderr.contains("free some space"),
        "{}",
        out.stderr
    );
    let record = fs::read(bench.path("kept/record.json"));
    let record = record.unwrap_or_else(|e| panic!("no record is left ({e}): {}", out.stderr));
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["status"]["state"], "failed", "{}", record["status"]);
    // What is left is whole: a run with room takes it up where the last checkpoint was made.
    let done = fs::read_dir(bench.path("kept/checkpoints"))
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse().ok()
        })
        .max();
    let done: usize = done.expect("a checkpoint is left");
    let more = (done + 2).to_string();
    let allowed = ["--max-steps", &more, "--allow-changed", "max_steps,order"];
    let resumed =
        samebit(&[&["train", "--json", "--resume", &bench.arg("kept")][..], &allowed].concat());
    assert_eq!(resumed.report()["steps"].as_array().unwrap().len(), 2);
}
