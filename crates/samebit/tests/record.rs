//! A run's record through the commands: show, diff, annotate, runs, ps, check, resume.

mod common;

use common::{Bench, Ended, samebit, samebit_in};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A qwen3 model with data, in a folder that is no repository.
fn bench() -> Bench {
    Bench::trainable("qwen3")
}

/// Four steps with a checkpoint in their middle.
const FOUR_STEPS: [&str; 10] = [
    "--micro-tokens",
    "96",
    "--max-steps",
    "4",
    "--save-every",
    "2",
    "--lr",
    "1e-2",
    "--threads",
    "2",
];

fn arguments(bench: &Bench, out: &str, more: &[&str]) -> Vec<String> {
    bench.train_args(out, &[&FOUR_STEPS[..], more].concat())
}

fn train(bench: &Bench, out: &str, more: &[&str]) -> Ended {
    samebit(&arguments(bench, out, more))
}

#[test]
fn a_finished_run_is_shown_intact_and_a_changed_byte_breaks_it_loudly() {
    let bench = bench();
    samebit_in(&bench.path(""), &arguments(&bench, "run", &[])).report();
    let run = bench.arg("run");
    let shown = samebit(&["show", &run, "--json"]).report();
    assert_eq!(
        (&shown["standing"], &shown["seal"]["seal"]),
        (&json!("finished"), &json!("intact"))
    );
    let record = &shown["record"];
    assert_eq!(record["git"]["git"], "no_repository");
    let kernels = record["arithmetic"]["kernels"].as_array().unwrap();
    assert!(
        kernels.iter().any(|k| k["op"] == "Attention" && k["kernel"] != "plain"),
        "{kernels:?}"
    );
    for kind in record["memory"]["ranks"][0]["kinds"].as_array().unwrap() {
        assert_eq!(kind["planned_bytes"], kind["used_bytes"], "{kind}");
    }
    for check in ["packed = alone", "recomputed = kept", "no token sees a later one"] {
        let gate = record["gates"].as_array().unwrap().iter().find(|g| g["name"] == check);
        assert_eq!(gate.unwrap()["verdict"], "ok", "{check}");
    }
    let words = samebit(&["show", &run]);
    assert_eq!(words.code, Some(0));
    for part in ["finished: 4 of 4 steps", "seal: intact", "micro_tokens", "adapters of layer 0"] {
        assert!(words.stdout.contains(part), "no `{part}` in {}", words.stdout);
    }

    samebit(&["annotate", &run, "--falls", "table 2", "--survives", "table 1", "a cap"])
        .report_text();
    let shown = samebit(&["show", &run, "--json"]).report();
    assert_eq!(shown["annotations"][0]["falls"], json!(["table 2"]));
    assert_eq!(shown["seal"]["seal"], "intact");

    // Neither a look at the run alone nor a state written into its record gets around the seal.
    for command in ["runs", "ps"] {
        assert_eq!(samebit(&[command, &run]).code, Some(0));
    }
    assert_eq!(samebit(&["show", &run]).code, Some(0));
    let path = bench.path("run/record.json");
    let sealed = fs::read(&path).unwrap();
    let mut forged: Value = serde_json::from_slice(&sealed).unwrap();
    forged["status"] = json!({"state": "running"});
    fs::write(&path, forged.to_string()).unwrap();
    let shown = samebit(&["show", &run]);
    assert_eq!(shown.code, Some(1));
    assert!(shown.stderr.contains("record.json was changed"), "{}", shown.stderr);
    samebit(&["train", "--resume", &run]).refused(&["seal (hash)", "record.json was changed"]);
    fs::write(&path, sealed).unwrap();

    let steps = bench.path("run/steps.jsonl");
    let mut bytes = fs::read(&steps).unwrap();
    bytes[20] ^= 1;
    fs::write(&steps, bytes).unwrap();
    let broken = samebit(&["show", &run]);
    assert_eq!(broken.code, Some(1));
    assert!(broken.stdout.contains("BROKEN") && broken.stderr.contains("steps.jsonl was changed"));
    let compared = samebit(&["diff", &run, &run]);
    assert_eq!(compared.code, Some(1));
    assert!(compared.stderr.contains("steps.jsonl was changed"), "{}", compared.stderr);
    let adapter = bench.arg("run/adapter");
    samebit(&["merge", &bench.arg("model"), &adapter, "--out", &bench.arg("merged")])
        .refused(&["BROKEN", "steps.jsonl was changed"]);
    assert!(!bench.path("merged").exists());
    let listed = samebit(&["runs", &bench.arg("")]);
    assert!(listed.stdout.contains("not checked"), "{}", listed.stdout);
    fs::remove_file(bench.path("run/seal.json")).unwrap();
    let bare = samebit(&["show", &run]);
    assert_eq!(bare.code, Some(1));
    assert!(bare.stderr.contains("there is no seal"), "{}", bare.stderr);
}

/// The file of a public key.
fn public(bench: &Bench, name: &str, digits: &str) -> String {
    bench.write(name, digits.repeat(32));
    let key = record::read_signing_key(&bench.path(name)).unwrap().verifying_key();
    let file = format!("{name}.pub");
    bench.write(&file, record::hex(key.as_bytes()));
    bench.arg(&file)
}

#[test]
fn a_run_is_held_against_whoever_must_have_signed_it() {
    let bench = bench();
    let (own, other) = (public(&bench, "own", "07"), public(&bench, "other", "08"));
    let key = bench.arg("own");
    train(&bench, "signed", &["--sign-key", &key]).report();
    train(&bench, "unsigned", &[]).report();
    let shown =
        |run: &str, signer: &str| samebit(&["show", &bench.arg(run), "--signer", signer, "--json"]);
    let report = shown("signed", &own).report();
    let digits = |file: &str| fs::read_to_string(bench.path(file)).unwrap();
    assert_eq!(report["seal"]["signed_by"], digits("own.pub"));
    let broken = |run: &str, signer: &str, words: &str| {
        let ended = shown(run, signer);
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        let said = ended.stderr.contains("BROKEN") && ended.stderr.contains(words);
        assert!(said, "no `{words}` in: {}", ended.stderr);
    };
    broken("signed", &other, &format!("it is signed by {}", digits("own.pub")));
    broken("unsigned", &own, "it is signed by nobody");
    // As a kill leaves a run, it has no seal, which is no fault unless somebody must have signed it.
    let path = bench.path("signed/record.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["status"] = json!({"state": "running"});
    fs::write(&path, record.to_string()).unwrap();
    fs::remove_file(bench.path("signed/seal.json")).unwrap();
    samebit(&["show", &bench.arg("signed")]).report_text();
    broken("signed", &own, "nobody: there is no seal");
    shown("unsigned", "/nowhere").refused(&["/nowhere"]);
}

#[test]
fn the_report_is_written_where_it_is_asked_for() {
    let bench = bench();
    train(&bench, "run", &[]).report();
    let (run, file) = (bench.arg("run"), bench.arg("page.html"));
    samebit(&["show", &run, "--report", &file]).report_text();
    let page = |name: &str| fs::read_to_string(bench.path(name)).unwrap();
    assert_eq!(page("page.html"), page("run/report.html"));
    let nowhere = bench.arg("nowhere/page.html");
    samebit(&["show", &run, "--report", &nowhere]).refused(&["cannot write", &nowhere]);
}

/// Which kernels ran is in the record, and changes no bit.
#[test]
fn a_run_by_other_kernels_says_so_and_has_the_same_bits() {
    if cpu_is_portable_only() {
        let because = "this processor has one way to compute";
        return common::skip("a_run_by_other_kernels_says_so_and_has_the_same_bits", because);
    }
    let bench = bench();
    train(&bench, "usual", &[]).report();
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebit"));
    command.args(arguments(&bench, "portable", &[])).env("SAMEBIT_ISA", "portable");
    command.env("SAMEBIT_CACHE", bench.path("cache")).current_dir(bench.path(""));
    common::ended(&mut command).report();
    let kernels = |run: &str| {
        let shown = samebit(&["show", &bench.arg(run), "--json"]).report();
        let arithmetic = &shown["record"]["arithmetic"];
        assert_eq!(shown["record"]["sessions"][0]["kernels"], arithmetic["kernels"]);
        let kernels = arithmetic["kernels"].as_array().unwrap().clone();
        let named: Vec<String> =
            kernels.iter().map(|of| of["kernel"].as_str().unwrap().to_owned()).collect();
        (arithmetic["device"].as_str().unwrap().to_owned(), named)
    };
    let (usual, portable) = (kernels("usual"), kernels("portable"));
    assert!(usual.0 != portable.0 && usual.1 != portable.1, "{usual:?} {portable:?}");
    let is_portable = |of: &&String| of.contains("portable");
    assert!(portable.1.iter().any(|of| is_portable(&of)), "{portable:?}");
    assert!(!usual.1.iter().any(|of| is_portable(&of)), "{usual:?}");

    let (usual, portable) = (bench.arg("usual"), bench.arg("portable"));
    let diff = samebit(&["diff", &usual, &portable, "--exit-code", "--json"]).report();
    let told = |of: &str| -> Vec<String> {
        let pairs = diff[of].as_array().unwrap();
        pairs.iter().map(|pair| pair["what"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((told("settings"), told("identities")), (vec!["out".into()], vec![]));
    let around = told("surroundings");
    assert!(around.contains(&"kernels".into()) && around.contains(&"device".into()), "{around:?}");
    assert_eq!((&diff["same_bits"], &diff["common_steps"]), (&json!(true), &json!(4)));
    let product = |run: &str| common::files(&bench.path(run).join("adapter"));
    assert!(product("usual") == product("portable"));
}

trait Text {
    fn report_text(&self);
}

impl Text for Ended {
    #[track_caller]
    fn report_text(&self) {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
    }
}

#[test]
fn two_runs_are_compared_and_listed() {
    let bench = bench();
    for (out, more) in
        [("a", &[][..]), ("b", &["--threads", "1"]), ("c", &["--weight-decay", "0.5"])]
    {
        train(&bench, out, more).report();
    }
    let diff =
        |a: &str, b: &str| samebit(&["diff", &bench.arg(a), &bench.arg(b), "--json"]).report();
    let same = diff("a", "b");
    let keys = |pairs: &Value| {
        pairs
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["what"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&same["settings"]), ["out", "threads"]);
    assert_eq!((&same["first_differing_step"], &same["common_steps"]), (&Value::Null, &json!(4)));
    assert_eq!((&same["first_differing_tensors"], &same["identities"]), (&Value::Null, &json!([])));
    let other = diff("a", "c");
    assert!(keys(&other["settings"]).contains(&"weight_decay".to_owned()));
    assert!(other["first_differing_step"]["step"].as_u64() >= Some(2), "{other}");
    assert_eq!(other["first_differing_tensors"][0], 2);
    let words = samebit(&["diff", &bench.arg("a"), &bench.arg("c")]);
    assert!(words.stdout.contains("NOT the same bits"), "{}", words.stdout);
    let told =
        |a: &str, b: &str| samebit(&["diff", &bench.arg(a), &bench.arg(b), "--exit-code"]).code;
    assert_eq!((told("a", "b"), told("a", "c")), (Some(0), Some(1)));

    let root = bench.arg("");
    let listed = samebit(&["runs", &root, "--json"]).report();
    let runs = listed.as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|run| run["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(runs.iter().all(|run| run["standing"] == "finished" && run["has_seal"] == true));
    assert_eq!(samebit(&["runs", &root, "--json", "--rebuild"]).report(), listed);
    assert_eq!(samebit(&["ps", &root, "--json"]).report(), json!([]));
}

#[test]
fn a_running_process_is_seen_and_a_killed_one_is_dead() {
    let bench = bench();
    let args = arguments(&bench, "run", &["--max-steps", "20000"]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_samebit"))
        .args(&args)
        .current_dir(bench.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !bench.path("run/steps.jsonl").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it must not end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let life = || samebit(&["ps", &bench.arg(""), "--json"]).report()[0].clone();
    let alive = life();
    assert_eq!((&alive["life"], &alive["pid"]), (&json!("running"), &json!(child.id())));
    let busy = samebit(&["train", "--resume", &bench.arg("run")]);
    assert!(busy.stderr.contains("is in use by another run"), "{}", busy.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(life()["life"], "dead");

    // The number of the dead process is another's by now: this test's own.
    let path = bench.path("run/record.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["sessions"][0]["process"]["pid"] = json!(std::process::id());
    fs::write(&path, record.to_string()).unwrap();
    let reused = life();
    assert_eq!(reused["life"], "dead");
    assert!(reused["why"].as_str().unwrap().contains("another one"), "{reused}");
}

/// A repository of its own around a bench.
fn commit(folder: &Path) {
    for args in [&["init", "-q"][..], &["add", "data.jsonl"], &["commit", "-q", "-m", "data"]] {
        let git = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"])
            .args(args)
            .current_dir(folder)
            .status()
            .unwrap();
        assert!(git.success(), "git {args:?}");
    }
}

#[test]
fn a_dirty_tree_is_refused_unless_it_is_let_pass_and_then_recorded() {
    let bench = bench();
    commit(&bench.path(""));
    let mut data = common::chats();
    data.push('\n');
    bench.write("data.jsonl", data);
    let before = bench.files();
    let refused = samebit_in(&bench.path(""), &arguments(&bench, "run", &[]));
    refused.refused(&["code is committed", "data.jsonl", "--allow-dirty"]);
    let untouched = |files: &std::collections::BTreeMap<_, _>| {
        files.keys().filter(|path: &&std::path::PathBuf| !path.starts_with(".git")).count()
    };
    assert_eq!(untouched(&bench.files()), untouched(&before));
    let allowed = arguments(&bench, "run", &["--allow-dirty"]);
    samebit_in(&bench.path(""), &allowed).report();
    let shown = samebit(&["show", &bench.arg("run"), "--json"]).report();
    let patch = &shown["record"]["git"]["patch"];
    let kept = fs::read(bench.path("run/changes.patch")).unwrap();
    assert_eq!(patch["files"], json!(["data.jsonl"]));
    assert_eq!(patch["bytes"], kept.len());
}

#[test]
fn check_lists_what_must_hold_and_leaves_nothing() {
    let bench = bench();
    let mut args = arguments(&bench, "run", &[]);
    args[0] = "check".into();
    let before = bench.files();
    let checked = samebit(&[args.clone(), vec!["--smoke".into()]].concat()).report();
    assert!(bench.files() == before);
    assert_eq!(checked["ready"], true);
    let checks = checked["checks"].as_array().unwrap();
    let verdict = |name: &str| &checks.iter().find(|c| c["name"] == name).unwrap()["verdict"];
    for name in [
        "settings resolved",
        "patterns match",
        "supervised tokens",
        "disk space",
        "memory",
        "loss within bounds",
        "trained tensors receive gradient",
        "packed = alone",
        "no token sees a later one",
        "recomputed = kept",
        "longest sample fits",
    ] {
        assert_eq!(verdict(name), "ok", "{name}: {checks:?}");
    }
    assert_eq!(verdict("code is committed"), "skipped");
    for kind in ["products on ", "attention on "] {
        let chosen = |c: &&Value| c["name"].as_str().unwrap().starts_with(kind);
        let figures: Vec<&str> =
            checks.iter().filter(chosen).map(|c| c["figure"].as_str().unwrap()).collect();
        assert!(!figures.is_empty(), "{checks:?}");
        let says = |f: &&str| f.contains("faster and not chosen: ") || f.contains("none is faster");
        assert!(figures.iter().all(says), "{figures:?}");
    }
    // Neither it nor its way through the encode cache changes a bit of the run.
    let unchecked = train(&bench, "unchecked", &[]).report();
    let cache = bench.arg("cache");
    let cached =
        |args: &[String]| samebit(&[args, &["--cache".to_owned(), cache.clone()]].concat());
    cached(&args).report();
    let checked = cached(&arguments(&bench, "checked", &[])).report();
    assert_eq!(checked["encode_cache"]["state"], "hit");
    let numbers = |report: &Value| -> Vec<Value> {
        let mut steps = report["steps"].as_array().unwrap().clone();
        steps.iter_mut().for_each(|step| step["seconds"] = Value::Null);
        steps
    };
    assert_eq!(numbers(&checked), numbers(&unchecked));
    let product = |run: &str| common::files(&bench.path(run).join("adapter"));
    assert!(product("checked") == product("unchecked"));
    let mut nameless = args.clone();
    let out = nameless.iter().position(|arg| arg == "--out").unwrap();
    nameless.drain(out..out + 2);
    assert_eq!(samebit(&nameless).report()["ready"], true, "it needs no folder");
    let failing = [args, vec!["--loss-limit".into(), "0.001".into()]].concat();
    let failed = samebit(&failing);
    assert_eq!(failed.code, Some(1));
    let report: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(report["ready"], false);
    let refused = train(&bench, "run", &["--loss-limit", "0.001"]);
    refused.refused(&["checks failed", "loss within bounds", "loss_limit"]);
    assert!(!bench.path("run").exists());
}

#[test]
fn what_fails_before_or_in_a_step_is_in_the_list() {
    let bench = bench();
    let failed = |more: &[&str]| {
        let mut args = arguments(&bench, "run", more);
        args[0] = "check".into();
        let ended = samebit(&args);
        assert_eq!(ended.code, Some(1), "{more:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("not ready"), "{}", ended.stderr);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(report["ready"], false);
        let checks = report["checks"].as_array().unwrap();
        let failed: Vec<_> = checks.iter().filter(|check| check["verdict"] == "failed").collect();
        let [failed] = &failed[..] else { panic!("{checks:?}") };
        (failed["name"].as_str().unwrap().to_owned(), failed["figure"].as_str().unwrap().to_owned())
    };
    bench.write("mute.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
    let mute = bench.arg("mute.jsonl");
    fs::create_dir(bench.path("taken")).unwrap();
    bench.write("taken/notes.txt", "");
    let taken = bench.arg("taken");
    for (more, name, said) in [
        (["--rank", "0"], "settings resolved", "`rank` is 0"),
        (["--model", "/nowhere"], "settings resolved", "/nowhere"),
        (["--sign-key", "/nowhere"], "settings resolved", "/nowhere"),
        (["--memory", "1KiB"], "memory", "the lease is 1"),
        (["--data", &mute], "supervised tokens", "mute.jsonl:1"),
        (["--warmup-ratio", "1.5"], "settings resolved", "`warmup_ratio`"),
        (["--keep-checkpoints", "1000000000"], "disk space", "for 1000000000 checkpoints"),
        (["--out", &taken], "run's folder", "notes.txt"),
    ] {
        let (check, figure) = failed(&more);
        assert_eq!(check, name);
        assert!(figure.contains(said), "{figure}");
    }
    // It fits steps, and not the epoch that this run has.
    let mut longer: Vec<String> = arguments(&bench, "run", &["--warmup-steps", "500"]);
    longer[0] = "check".into();
    let steps = longer.iter().position(|arg| arg == "--max-steps").unwrap();
    longer.drain(steps..steps + 2);
    let report: Value = serde_json::from_str(&samebit(&longer).stdout).unwrap();
    assert_eq!(report["checks"][0]["name"], "steps planned", "{report}");
    let weights = bench.path("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let (check, figure) = failed(&[]);
    assert_eq!(check, "steps run");
    assert!(figure.contains("not finite") && figure.contains("data.jsonl:"), "{figure}");
}

/// The first number of a tensor's row becomes NaN, in a model of f32 tensors.
fn spoil_row(bench: &Bench, tensor: &str, row: usize) {
    let path = bench.path("model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let columns = tensors[tensor]["shape"][1].as_u64().unwrap() as usize;
    assert_eq!(tensors[tensor]["dtype"], "F32");
    let begin = tensors[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let at = header + begin + 4 * row * columns;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
}

/// What only the longest sample shows, which is not the one that is probed.
#[test]
fn the_longest_sample_is_run_where_that_is_asked_for() {
    let bench = bench();
    let long = json!({"messages": [
        {"role": "user", "content": "z".repeat(40)}, {"role": "assistant", "content": "z".repeat(20)},
    ]});
    bench.write("data.jsonl", format!("{}\n{long}\n", common::chats()));
    // Of the tokenizer's letters the last; three special tokens come before them.
    spoil_row(&bench, "model.embed_tokens.weight", 3 + 25);
    let check = |more: &[&str]| {
        let mut args = arguments(&bench, "run", more);
        args[0] = "check".into();
        samebit(&args)
    };
    assert_eq!(check(&[]).report()["ready"], true);
    let ended = check(&["--smoke"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let failed: Vec<&Value> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["verdict"] == "failed")
        .collect();
    let [failed] = &failed[..] else { panic!("{report}") };
    assert_eq!(failed["name"], "steps run");
    let figure = failed["figure"].as_str().unwrap();
    assert!(figure.contains("--smoke: the longest sample") && figure.contains("NaN"), "{figure}");
}

#[test]
fn a_kernel_that_is_not_the_fastest_is_named_with_the_reason() {
    let bench = bench();
    let mut args = arguments(&bench, "run", &[]);
    args[0] = "check".into();
    let mut command = Command::new(env!("CARGO_BIN_EXE_samebit"));
    command.args(&args).env("SAMEBIT_ISA", "portable").current_dir(bench.path(""));
    command.env("SAMEBIT_CACHE", bench.path("cache"));
    let report = common::ended(&mut command).report();
    let checks = report["checks"].as_array().unwrap();
    let named = |kind: &str| {
        let of = checks.iter().find(|c| c["name"].as_str().unwrap().starts_with(kind));
        of.unwrap_or_else(|| panic!("{checks:?}"))["figure"].as_str().unwrap()
    };
    let (products, attention) = (named("products on portable"), named("attention on portable"));
    assert!(products.contains(" × 96") || products.contains("96 × "), "shapes: {products}");
    if cpu_is_portable_only() {
        return;
    }
    for figure in [products, attention] {
        assert!(figure.contains("SAMEBIT_ISA says so"), "{figure}");
    }
    assert!(products.contains("bf16") && !attention.contains("bf16"), "{products}; {attention}");
}

/// Whether this processor has no instructions that the kernels are made for.
fn cpu_is_portable_only() -> bool {
    !std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains("avx2")
}
