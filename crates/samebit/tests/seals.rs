//! What looking at runs and writing beside them does: it changes nothing that is sealed, and hides nothing that is damaged.

mod common;

use common::{Bench, Ended, samebit};
use serde_json::{Value, json};
use std::fs;

/// A finished run of two steps.
fn finished(bench: &Bench, out: &str) -> String {
    bench.train(out, &["--micro-tokens", "96", "--max-steps", "2"]).report();
    bench.arg(out)
}

fn ended_with(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "no `{word}` in: {}", ended.stderr);
    }
}

#[test]
fn a_look_at_a_run_by_its_own_folder_breaks_no_seal() {
    let bench = Bench::trainable("qwen3");
    let run = finished(&bench, "run");
    let before = common::files(&bench.path("run"));
    for args in [&["runs", "--json", &run][..], &["runs", "--json", "--rebuild", &run]] {
        let listed = samebit(args).report();
        assert_eq!(listed[0]["standing"], "finished", "{listed}");
    }
    assert_eq!(samebit(&["ps", "--json", &run]).report(), json!([]));
    samebit(&["runs", "--json", &bench.arg("run/checkpoints")]).report();
    assert!(common::files(&bench.path("run")) == before);
    assert_eq!(samebit(&["show", "--json", &run]).report()["seal"]["seal"], "intact");
}

#[test]
fn a_run_without_its_record_is_listed() {
    let bench = Bench::trainable("qwen3");
    finished(&bench, "run");
    let listed = || samebit(&["runs", "--json", &bench.arg("")]).report();
    assert_eq!(listed()[0]["standing"], "finished");
    fs::write(bench.path("run/record.json"), "{}").unwrap();
    let damaged = listed();
    assert_eq!(damaged[0]["standing"], "unreadable");
    let why = damaged[0]["unreadable"].as_str().unwrap();
    assert!(why.contains("record.json") && why.contains("put it back from a copy"), "{why}");
    fs::remove_file(bench.path("run/record.json")).unwrap();
    let gone = listed();
    assert_eq!((&gone[0]["path"], &gone[0]["standing"]), (&json!("run"), &json!("unreadable")));
}

#[test]
fn a_note_that_is_damaged_hides_no_run_and_one_beside_a_broken_seal_is_told() {
    let bench = Bench::trainable("qwen3");
    let run = finished(&bench, "run");
    let annotate = |note: &str| samebit(&["annotate", &run, note]);
    assert_eq!(annotate("first").stderr, "");
    let notes = bench.path("run/annotations.jsonl");
    let mut text = fs::read_to_string(&notes).unwrap();
    text.push_str("junk\n");
    fs::write(&notes, text).unwrap();
    let shown = samebit(&["show", "--json", &run]);
    ended_with(&shown, 1, &["annotations.jsonl", "junk", "mend the line"]);
    let report: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&report["standing"], &report["annotations"]), (&json!("finished"), &json!([])));
    assert_eq!(report["seal"]["seal"], "intact");
    fs::write(bench.path("run/report.html"), "").unwrap();
    ended_with(&annotate("second"), 0, &["the note stands", "BROKEN", "report.html"]);
}

#[test]
fn runs_with_nothing_in_common_are_not_called_the_same() {
    let bench = Bench::trainable("qwen3");
    let run = finished(&bench, "run");
    finished(&bench, "other");
    let other = bench.arg("other");
    let diff = || samebit(&["diff", &run, &other, "--exit-code"]);
    ended_with(&diff(), 0, &[]);
    // As a kill before the first line leaves it.
    for file in ["steps.jsonl", "tensors.jsonl", "evals.jsonl", "seal.json"] {
        let _ = fs::remove_file(bench.path("other").join(file));
    }
    let record = bench.path("other/record.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    text["status"] = json!({"state": "running"});
    fs::write(&record, text.to_string()).unwrap();
    ended_with(&diff(), 1, &["in common", "nothing was compared"]);
}
