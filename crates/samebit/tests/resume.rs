//! Going on with a run: by its folder, from anywhere, and what is refused or told.

mod common;

use common::{Bench, Ended, samebit, samebit_in};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const FOUR_STEPS: [&str; 6] = ["--micro-tokens", "96", "--max-steps", "4", "--save-every", "2"];

fn bench() -> Bench {
    Bench::trainable("qwen3")
}

/// Leaves a finished run as a kill after its last checkpoint does.
fn break_off(run: &Path) {
    let path = run.join("record.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["status"] = json!({"state": "running"});
    fs::write(&path, record.to_string()).unwrap();
    fs::remove_dir_all(run.join("adapter")).unwrap();
    fs::remove_file(run.join("seal.json")).unwrap();
}

/// A run that was broken off, in the bench's folder.
fn broken(bench: &Bench) -> String {
    samebit_in(&bench.path(""), &bench.train_args("run", &FOUR_STEPS)).report();
    break_off(&bench.path("run"));
    bench.arg("run")
}

fn resume(run: &str, more: &[&str]) -> Ended {
    samebit(&[&["train", "--json", "--resume", run][..], more].concat())
}

#[test]
fn a_run_is_resumed_by_its_folder_alone_from_anywhere() {
    let bench = bench();
    let relative = |out: &str| {
        let paths = ["--model", "model", "--data", "data.jsonl", "--out", out];
        bench.train_args(out, &[&FOUR_STEPS[..], &paths].concat())
    };
    samebit_in(&bench.path(""), &relative("whole")).report();
    samebit_in(&bench.path(""), &relative("broken")).report();
    break_off(&bench.path("broken"));
    let report = resume(&bench.arg("broken"), &[]).report();
    assert_eq!(report["steps"].as_array().unwrap().len(), 2);
    assert_eq!(report["status"], "finished");
    let product = |run: &str| common::files(&bench.path(run).join("adapter"));
    assert!(product("broken") == product("whole"));
    let shown = samebit(&["show", &bench.arg("broken"), "--json"]).report();
    assert_eq!(shown["record"]["sessions"].as_array().unwrap().len(), 2);

    // That it is finished is said before what else may be wrong.
    resume(&bench.arg("broken"), &["--max-steps", "8"]).refused(&["is finished"]);
    let both = samebit(&["train", "--resume", &bench.arg("broken"), "--out", "x"]);
    both.refused(&["leave --config and --out out"]);
}

/// The day of the first start is the run's: on another day nothing of it has changed.
#[test]
fn a_template_is_told_the_day_of_the_first_start_when_a_run_goes_on() {
    let bench = bench();
    let letter = "{{ 'j' if strftime_now('%Y-%m-%d') == '2024-07-26' else 'o' }}";
    bench.write("model/chat_template.jinja", format!("{letter}{}", common::TEMPLATE));
    let started = [&FOUR_STEPS[..], &["--template-date", "2024-07-26"]].concat();
    samebit_in(&bench.path(""), &bench.train_args("run", &started)).report();
    break_off(&bench.path("run"));
    let path = bench.path("run/record.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let settings = record["settings"].as_array_mut().unwrap();
    let date = settings.iter_mut().find(|setting| setting["key"] == "template_date").unwrap();
    assert_eq!(date["resolved"], "2024-07-26");
    // As if nobody had asked for it.
    (date["requested"], date["source"]) = (Value::Null, Value::Null);
    fs::write(&path, record.to_string()).unwrap();
    resume(&bench.arg("run"), &["--template-date", "2024-07-27"])
        .refused(&["data", "template_date"]);
    assert_eq!(resume(&bench.arg("run"), &[]).report()["steps"].as_array().unwrap().len(), 2);
    // The same where the run is named by its settings.
    break_off(&bench.path("run"));
    let again = [&bench.train_args("run", &FOUR_STEPS)[..], &["--resume".into()]].concat();
    assert_eq!(samebit_in(&bench.path(""), &again).report()["steps"].as_array().unwrap().len(), 2);
}

/// The checks of `samebit check --resume`, of which the last looks at the folder.
fn folder_check(run: &str, more: &[&str]) -> (bool, String) {
    let ended = samebit(&[&["check", "--json", "--resume", run][..], more].concat());
    let report: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr));
    assert_eq!((report["ready"] == true, ended.code), (ended.code == Some(0), ended.code));
    let last = report["checks"].as_array().unwrap().last().unwrap();
    assert_eq!(last["name"], "run's folder", "{report}");
    (last["verdict"] == "ok", last["figure"].as_str().unwrap().to_owned())
}

/// Nobody reads what it says any more: a terminal was closed, a pipe's reader has ended.
#[test]
fn a_run_outlives_its_error_stream() {
    let bench = bench();
    let mut args = bench.train_args("run", &FOUR_STEPS);
    args.retain(|arg| arg != "--json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_samebit"))
        .args(args)
        .current_dir(bench.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let shown = samebit(&["show", &bench.arg("run"), "--json"]).report();
    assert_eq!(shown["standing"], "finished");
}

#[test]
fn an_older_checkpoint_than_the_newest_is_refused() {
    let bench = bench();
    let run = broken(&bench);
    let older = format!("{run}/checkpoints/step-1");
    fs::create_dir(&older).unwrap();
    resume(&older, &[]).refused(&["step-1 is not the run's newest checkpoint", "step-2"]);
    fs::remove_dir(&older).unwrap();
    resume(&format!("{run}/checkpoints/step-2"), &[]).report();
}

/// Another seed's run is another run, whatever its shapes.
#[test]
fn what_was_edited_or_is_another_runs_is_not_gone_on_from() {
    let bench = bench();
    let run = broken(&bench);
    let record = Path::new(&run).join("record.json");
    let whole = fs::read_to_string(&record).unwrap();
    let edited = whole.replace("0.0002", "0.0004");
    assert_ne!(edited, whole);
    fs::write(&record, edited).unwrap();
    resume(&run, &[]).refused(&["record (hash) was", "cannot be resumed"]);
    fs::write(&record, &whole).unwrap();
    // Nothing that shapes the checkpoint's tensors is let pass, and a refusal leaves the run as it was.
    let before = common::files(Path::new(&run));
    let wider = resume(&run, &["--rank", "4", "--allow-changed", "settings,program,alpha"]);
    wider.refused(&["`rank` was 16 and is 4", "other shapes"]);
    resume(&run, &["--max-steps", "1", "--allow-changed", "settings,order"])
        .refused(&["checkpoint after step 2", "it has 1 steps"]);
    assert!(common::files(Path::new(&run)) == before);

    samebit_in(
        &bench.path(""),
        &bench.train_args("other", &[&FOUR_STEPS[..], &["--seed", "7"]].concat()),
    )
    .report();
    for name in [
        "steps.jsonl",
        "tensors.jsonl",
        "checkpoints/step-2/state.json",
        "checkpoints/step-2/state.safetensors",
    ] {
        fs::copy(bench.path("other").join(name), Path::new(&run).join(name)).unwrap();
    }
    let foreign = resume(&run, &[]);
    foreign.refused(&["step-2: it is another run's", "Remove the checkpoint's folder"]);
}

#[test]
fn check_says_whether_a_run_may_go_on_and_leaves_it_as_it_is() {
    let bench = bench();
    let run = broken(&bench);
    let before = common::files(Path::new(&run));
    for ranks in [&[][..], &["--tp", "2"]] {
        let (ready, said) = folder_check(&run, ranks);
        assert!(
            ready && said.ends_with("goes on after step 2 of 4; nothing of the run has changed"),
            "{said}"
        );
    }
    let (ready, said) = folder_check(&run, &["--lr", "1e-3"]);
    assert!(!ready && said.contains("lr"), "{said}");
    let (ready, said) = folder_check(&run, &["--lr", "1e-3", "--allow-changed", "settings"]);
    assert!(ready && said.contains("let pass: `lr` was"), "{said}");
    assert!(common::files(Path::new(&run)) == before);
    let state = Path::new(&run).join("checkpoints/step-2/state.safetensors");
    let whole = fs::read(&state).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&state, flipped).unwrap();
    for ranks in [&[][..], &["--tp", "2"]] {
        let (ready, said) = folder_check(&run, ranks);
        assert!(!ready && said.contains("state.safetensors"), "{said}");
    }
    fs::write(&state, whole).unwrap();
    resume(&run, &[]).report();
    let (ready, said) = folder_check(&run, &[]);
    assert!(!ready && said.contains("is finished"), "{said}");
}

/// Ctrl-C while steps go by: the run ends after one of them with a checkpoint, and goes on to the bytes of a run of as
/// many steps that nobody stopped.
#[test]
fn a_run_that_is_told_to_stop_makes_a_checkpoint() {
    let bench = bench();
    let plain =
        ["--micro-tokens", "96", "--schedule", "constant", "--warmup-ratio", "0", "--max-steps"];
    fn steps<'a>(plain: &[&'a str], steps: &'a str) -> Vec<&'a str> {
        [plain, &[steps]].concat()
    }
    for signal in ["-INT", "-TERM"] {
        let run = format!("stopped{signal}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_samebit"))
            .args(bench.train_args(
                &run,
                &[&steps(&plain, "20000")[..], &["--save-every", "20000"]].concat(),
            ))
            .current_dir(bench.path(""))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = bench.path(&run).join("steps.jsonl");
        while fs::metadata(&log).map_or(0, |file| file.len()) == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it must not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let told = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(report["status"], "stopped", "{report}");
        let done = fs::read_to_string(&log).unwrap().lines().count();
        let checkpoint = format!("checkpoints/step-{done}");
        assert!(report["checkpoint"].as_str().unwrap().ends_with(&checkpoint), "{report}");
        assert!(stderr.contains(&checkpoint) && stderr.contains("--resume"), "{stderr}");

        let last = (done + 2).to_string();
        let whole = format!("whole{signal}");
        bench.train(&whole, &steps(&plain, &last)).report();
        let changed = ["--max-steps", &last, "--allow-changed", "settings,order"];
        let report = resume(&bench.arg(&run), &changed).report();
        assert_eq!(report["steps"].as_array().unwrap().len(), 2);
        let product = |run: &str| common::files(&bench.path(run).join("adapter"));
        assert!(product(&run) == product(&whole));
    }
}

#[test]
fn the_folder_that_a_run_was_begun_in_is_needed_and_its_settings_known() {
    let bench = bench();
    let run = broken(&bench);
    let path = bench.path("run/record.json");
    let whole: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut newer = whole.clone();
    let settings = newer["settings"].as_array_mut().unwrap();
    settings.push(settings.iter().find(|setting| setting["key"] == "max_steps").unwrap().clone());
    settings.last_mut().unwrap()["key"] = json!("gravity");
    fs::write(&path, newer.to_string()).unwrap();
    resume(&run, &[]).refused(&[&run, "this version does not have its settings", "gravity"]);
    let mut gone = whole.clone();
    gone["directory"] = json!(bench.arg("gone"));
    fs::write(&path, gone.to_string()).unwrap();
    resume(&run, &[]).refused(&[
        &bench.arg("gone"),
        "the run was last begun there",
        "No such file",
    ]);
    fs::write(&path, whole.to_string()).unwrap();
    resume(&run, &[]).report();
}

#[test]
fn a_run_is_resumed_by_its_settings_and_a_flag_too() {
    let bench = bench();
    broken(&bench);
    let mut args = bench.train_args("run", &FOUR_STEPS);
    args.insert(1, "--resume".into());
    assert_eq!(samebit(&args).report()["steps"].as_array().unwrap().len(), 2);
}

/// Paths of settings count from where the session was begun that they were given in.
#[test]
fn a_run_that_went_on_from_another_folder_goes_on_by_its_own_again() {
    let bench = bench();
    let paths = |out, data| [&FOUR_STEPS[..], &["--out", out, "--data", data]].concat();
    let started = bench.train_args("run", &paths("run", "data.jsonl"));
    samebit_in(&bench.path(""), &started).report();
    break_off(&bench.path("run"));
    let elsewhere = tempfile::tempdir().unwrap();
    fs::rename(bench.path("data.jsonl"), elsewhere.path().join("moved.jsonl")).unwrap();
    let mut moved = bench.train_args("run", &paths(&bench.arg("run"), "moved.jsonl"));
    moved.insert(1, "--resume".into());
    samebit_in(elsewhere.path(), &moved).report();
    break_off(&bench.path("run"));
    assert_eq!(resume(&bench.arg("run"), &[]).report()["steps"].as_array().unwrap().len(), 2);
}

#[test]
fn a_checkpoint_stands_for_its_run_and_where_it_goes_on_is_told() {
    let bench = bench();
    let run = broken(&bench);
    let told = samebit(&["train", "--resume", &format!("{run}/checkpoints/step-2")]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(
        told.stderr.contains("goes on from the checkpoint after step 2 of 4"),
        "{}",
        told.stderr
    );

    break_off(&bench.path("run"));
    fs::remove_dir_all(bench.path("run/checkpoints/step-2")).unwrap();
    let told = samebit(&["train", "--resume", &run]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.contains("no checkpoint: the run begins again"), "{}", told.stderr);
}

#[test]
fn what_a_resumed_command_names_is_where_the_command_is_given() {
    let bench = bench();
    let run = broken(&bench);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("key"), "07".repeat(32)).unwrap();
    let args = ["train", "--json", "--resume", &run, "--cache", "cache", "--sign-key", "key"];
    samebit_in(elsewhere.path(), &args).report();
    assert!(elsewhere.path().join("cache").is_dir() && !bench.path("cache").exists());
    let shown = samebit(&["show", &run, "--json"]).report();
    assert!(shown["seal"]["signed_by"].is_string(), "{shown}");
}

#[test]
fn a_changed_template_is_refused_by_name_even_where_it_renders_alike() {
    let bench = bench();
    let run = broken(&bench);
    bench.write("model/chat_template.jinja", format!("{}{{# a note #}}", common::TEMPLATE));
    resume(&run, &[]).refused(&["template (hash) was", "--allow-changed template"]);
    resume(&run, &["--allow-changed", "data"]).refused(&["template (hash) was"]);
    let unknown = ["--allow-changed", "tempalte"];
    resume(&run, &unknown).refused(&["tempalte", "did you mean `template`?", "base_weights"]);
    resume(&run, &["--allow-changed", "template"]).report();
}

#[test]
fn an_edited_log_is_refused_before_it_is_sealed() {
    let bench = bench();
    let run = broken(&bench);
    let steps = bench.path("run/steps.jsonl");
    let text = fs::read_to_string(&steps).unwrap();
    let at = text.find("\"loss\":").unwrap() + "\"loss\":".len();
    let mut edited = text.clone().into_bytes();
    edited[at] ^= 1;
    fs::write(&steps, edited).unwrap();
    resume(&run, &[]).refused(&["steps.jsonl", "checkpoints/step-2", "the log was changed"]);
    fs::write(&steps, text).unwrap();
    resume(&run, &[]).report();
}
