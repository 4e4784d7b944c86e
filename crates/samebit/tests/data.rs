//! `samebit data` and the encode cache, as a user meets them.

mod common;

use common::{Bench, Ended, ended, samebit};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A model, data, and a cache folder beside them.
fn bench() -> Bench {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", common::chats());
    bench
}

/// `samebit data` over `data.jsonl`, with the bench's cache.
fn data(bench: &Bench, more: &[&str]) -> Ended {
    let (model, file, cache) = (bench.model(), bench.arg("data.jsonl"), bench.arg("cache"));
    let fixed = [
        "data",
        "--model",
        &model,
        "--data",
        &file,
        "--cache",
        &cache,
        "--micro-tokens",
        "128",
        "--json",
    ];
    samebit(&[&fixed[..], more].concat())
}

fn state(report: &Value) -> &str {
    report["cache"]["state"].as_str().unwrap()
}

/// The only entry of the bench's cache.
fn entry(bench: &Bench) -> PathBuf {
    let mut files = fs::read_dir(bench.path("cache/encoded")).unwrap();
    let entry = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    entry
}

#[test]
fn the_report_counts_what_training_sees() {
    let bench = bench();
    let report = data(&bench, &["--show", "2", "--accumulation", "3"]).report();
    assert_eq!((state(&report), report["report"]["samples"].as_u64()), ("miss", Some(8)));
    let learnt: u64 =
        report["supervised"].as_array().unwrap().iter().map(|b| b["sum"].as_u64().unwrap()).sum();
    assert_eq!(Some(learnt), report["report"]["supervised"].as_u64());
    let tokens = report["sample"]["tokens"].as_array().unwrap();
    let said: String = tokens
        .iter()
        .filter(|token| token["learnt"] == true)
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, "edaf<|im_end|>");
    for token in tokens {
        assert_eq!(token["learnt"] == true, token["weight"].as_f64().unwrap() > 0.0);
    }
    // One step takes all eight samples, so their weights add up to one.
    assert_eq!(report["steps"], 1, "{report}");
    let weight = tokens.iter().find_map(|t| t["weight"].as_f64().filter(|&w| w > 0.0)).unwrap();
    assert!((weight * learnt as f64 - 1.0).abs() < 1e-12);
    let ways = report["order"]["alternatives"].as_array().unwrap();
    assert_eq!(ways.iter().filter(|way| way["chosen"] == true).count(), 1);
}

#[test]
fn what_is_held_out_is_in_no_step() {
    let bench = bench();
    let shown = |number: usize| {
        let number = number.to_string();
        data(&bench, &["--eval-fraction", "0.25", "--show", &number]).report()
    };
    let (mut trained, mut held_out) = (0, 0);
    for number in 1..=8 {
        let report = shown(number);
        assert_eq!(
            (&report["trained"]["samples"], &report["held_out"]["samples"]),
            (&json!(6), &json!(2))
        );
        let sample = &report["sample"];
        assert_eq!(sample["sample"], number);
        assert!(sample["origin"].as_str().unwrap().ends_with(&format!(":{number}")), "{sample}");
        assert_ne!(sample["held_out"] == true, sample["step"].is_u64(), "{sample}");
        if sample["held_out"] == true { held_out += 1 } else { trained += 1 }
    }
    assert_eq!((trained, held_out), (6, 2));
    // The order, and so the steps, are those of the run.
    let (model, file, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("run"));
    let settings = ["--eval-fraction", "0.25", "--micro-tokens", "128", "--max-steps", "1"];
    let fixed = ["train", "--model", &model, "--data", &file, "--out", &out, "--json"];
    assert_eq!(samebit(&[&fixed[..], &settings].concat()).code, Some(0));
    let record: Value =
        serde_json::from_slice(&fs::read(bench.path("run/record.json")).unwrap()).unwrap();
    let report = shown(1);
    assert_eq!(record["identity"]["hashes"]["data"], report["identity"]);
    samebit(&["data", "--model", &model, "--data", &file, "--show", "9"]).refused(&["8 samples"]);
}

/// The library panics at this byte; the user is told what is wrong with the file, and nothing of the program.
#[test]
fn a_damaged_table_is_an_error_and_no_panic() {
    let bench = bench();
    let golden = common::root().join("crates/data/tests/golden/parquet/chats.parquet");
    let mut bytes = fs::read(golden).unwrap();
    bytes[12] ^= 0x5a;
    bench.write("data.parquet", bytes);
    let (model, file) = (bench.model(), bench.arg("data.parquet"));
    let ended = samebit(&["data", "--model", &model, "--data", &file]);
    ended.refused(&[&file, "not readable as Parquet"]);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn evaluating_on_what_is_trained_on_is_said() {
    let bench = bench();
    let file = bench.arg("data.jsonl");
    let report = data(&bench, &["--eval", &file]).report();
    assert_eq!((&report["shared"], &report["held_out"]["samples"]), (&json!(8), &json!(8)));
    assert_eq!(data(&bench, &["--eval-fraction", "0.25"]).report()["shared"], 0);
}

#[test]
fn the_report_says_what_made_the_ids() {
    let bench = bench();
    let made = data(&bench, &[]).report();
    let way = made["encoder"].as_str().unwrap();
    assert!(
        way.starts_with("samebit, pieces as ") || way.starts_with("the tokenizers crate: "),
        "{way}"
    );
    let read = data(&bench, &[]).report();
    assert_eq!((state(&read), &read["encoder"]), ("hit", &Value::Null));
}

#[test]
fn the_text_has_every_part() {
    let bench = bench();
    let (model, file) = (bench.model(), bench.arg("data.jsonl"));
    let shown = samebit(&[
        "data",
        "--model",
        &model,
        "--data",
        &file,
        "--micro-tokens",
        "128",
        "--show",
        "1",
    ]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    for part in [
        "encode cache: miss",
        "source",
        "tokens of a sample",
        "learnt tokens",
        "fill",
        "(runs)",
        "loss weight",
    ] {
        assert!(shown.stdout.contains(part), "no `{part}` in:\n{}", shown.stdout);
    }
    samebit(&["data", "--model", &model, "--data", &file, "--micro-tokens", "128", "--show", "9"])
        .refused(&["--show 9", "8 samples"]);
}

#[test]
fn one_character_misses_and_restoring_it_hits() {
    let bench = bench();
    let first = data(&bench, &[]).report();
    assert_eq!(state(&first), "miss");
    let again = data(&bench, &[]).report();
    assert_eq!((state(&again), &again["identity"]), ("hit", &first["identity"]));
    assert_eq!(again["report"], first["report"]);
    for file in ["data.jsonl", "model/chat_template.jinja", "model/tokenizer_config.json"] {
        let whole = fs::read_to_string(bench.path(file)).unwrap();
        let changed = match file {
            "data.jsonl" => whole.replacen("cab", "dab", 1),
            "model/chat_template.jinja" => whole.replacen("\n", "\n ", 1),
            _ => whole.replacen('{', "{ ", 1),
        };
        assert_ne!(changed, whole);
        bench.write(file, changed);
        assert_eq!(state(&data(&bench, &[]).report()), "miss", "{file}");
        bench.write(file, whole);
        assert_eq!(state(&data(&bench, &[]).report()), "hit", "{file}");
    }
    for more in [["--max-length", "100"], ["--too-long", "left"]] {
        assert_eq!(state(&data(&bench, &more).report()), "miss", "{more:?}");
    }
    // What changes no token changes no key.
    for more in [["--seed", "3"], ["--order", "buckets"], ["--threads", "1"]] {
        assert_eq!(state(&data(&bench, &more).report()), "hit", "{more:?}");
    }
    assert_eq!(state(&data(&bench, &["--encode-cache", "false"]).report()), "off");
}

#[test]
fn training_is_the_same_from_the_cache_and_without() {
    let bench = bench();
    let cache = bench.arg("cache");
    let train = |out: &str, more: &[&str]| {
        let fixed = ["--cache", &cache, "--rank", "4", "--micro-tokens", "64", "--max-steps", "3"];
        let report = bench.train(out, &[&fixed[..], more].concat()).report();
        let record: Value =
            serde_json::from_slice(&fs::read(bench.path(out).join("record.json")).unwrap())
                .unwrap();
        let mut happened = report["encode_cache"].clone();
        // Nothing is held out in a file of its own.
        happened["evaluation"] = Value::Null;
        assert_eq!(record["data"]["cache"], happened, "the record has what happened");
        assert_eq!(record["data"]["order"].as_str().unwrap().len(), 64);
        report
    };
    let losses = |report: &Value| -> Vec<Value> {
        report["steps"].as_array().unwrap().iter().map(|step| step["loss"].clone()).collect()
    };
    let (miss, hit) = (train("a", &[]), train("b", &[]));
    assert_eq!(
        (&miss["encode_cache"]["state"], &hit["encode_cache"]["state"]),
        (&json!("miss"), &json!("hit"))
    );
    assert_eq!(losses(&miss), losses(&hit));
    assert_eq!(losses(&miss), losses(&train("c", &["--encode-cache", "false"])));
}

#[test]
fn a_flipped_bit_is_said_and_the_entry_rebuilt() {
    let bench = bench();
    data(&bench, &[]).report();
    let path = entry(&bench);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let ended = data(&bench, &[]);
    assert!(
        ended.stderr.contains("warning: ") && ended.stderr.contains("is damaged"),
        "{}",
        ended.stderr
    );
    let report = ended.report();
    assert_eq!(state(&report), "rebuilt");
    assert_eq!(report["cache"]["warnings"].as_array().unwrap().len(), 1);
    let ended = data(&bench, &[]);
    assert_eq!((state(&ended.report()), ended.stderr.as_str()), ("hit", ""));
}

#[test]
fn a_cache_that_cannot_be_written_is_said_and_stops_nothing() {
    let bench = bench();
    // In place of a read-only folder, which root may write: a folder whose parent is a file.
    bench.write("cache", "a file");
    let ended = data(&bench, &[]);
    assert!(ended.stderr.contains("warning: cannot "), "{}", ended.stderr);
    let report = ended.report();
    assert_eq!((state(&report), report["report"]["samples"].as_u64()), ("unwritable", Some(8)));
}

/// No file may be as long as an entry: what a full disk does, but for the words.
#[test]
fn a_full_cache_is_said_and_leaves_nothing_behind() {
    let bench = bench();
    let long = json!({"messages": [
        {"role": "user", "content": "a".repeat(60)}, {"role": "assistant", "content": "b".repeat(40)},
    ]});
    bench.write("data.jsonl", format!("{long}\n").repeat(40));
    let (model, file, cache) = (bench.model(), bench.arg("data.jsonl"), bench.arg("cache"));
    let limited = |kib: &str| {
        let mut command = Command::new("bash");
        let script = r#"trap '' XFSZ; ulimit -f "$1"; shift; exec "$@""#;
        command.args(["-c", script, "bash", kib, env!("CARGO_BIN_EXE_samebit")]);
        command.args(["data", "--model", &model, "--data", &file, "--cache", &cache]);
        ended(command.args(["--micro-tokens", "128", "--json"]))
    };
    let full = limited("4");
    assert!(full.stderr.contains("warning: cannot write"), "{}", full.stderr);
    assert_eq!(state(&full.report()), "unwritable");
    assert_eq!(fs::read_dir(bench.path("cache/encoded")).unwrap().count(), 0);
    assert_eq!(state(&limited("1000").report()), "miss");
}

#[test]
fn entries_are_listed_and_pruned() {
    let bench = bench();
    data(&bench, &[]).report();
    data(&bench, &["--max-length", "100"]).report();
    let cache = bench.arg("cache");
    let listed = samebit(&["cache", "list", "--cache", &cache, "--json"]).report();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 2);
    assert_eq!(listed["entries"][0]["entry"]["samples"], 8);
    let text = samebit(&["cache", "list", "--cache", &cache]).stdout;
    assert!(text.contains("2 entries"), "{text}");
    let keep = format!("{}B", listed["entries"][0]["bytes"]);
    let pruned =
        samebit(&["cache", "prune", "--keep", &keep, "--cache", &cache, "--json"]).report();
    assert_eq!((&pruned["removed"], &pruned["kept"]), (&json!(1), &json!(1)));
    let pruned = samebit(&["cache", "prune", "--cache", &cache, "--json"]).report();
    assert_eq!((&pruned["removed"], &pruned["kept"]), (&json!(1), &json!(0)));
}

/// A day's letter leads every conversation, and both the entry's key and the data's identity know it.
#[test]
fn a_template_that_asks_for_the_date_is_told_the_runs() {
    let bench = bench();
    let refused = |ended: Ended| ended.refused(&["template_date", "does not ask for the date"]);
    refused(data(&bench, &["--template-date", "2024-07-26"]));
    let letter = "{{ 'j' if strftime_now('%Y-%m-%d %H') == '2024-07-26 00' else 'o' }}";
    bench.write("model/chat_template.jinja", format!("{letter}{}", common::TEMPLATE));
    let on = |day: &str| {
        let report = data(&bench, &["--template-date", day, "--show", "1"]).report();
        let first = report["sample"]["tokens"][0]["text"].as_str().unwrap().to_owned();
        (state(&report).to_owned(), first, report["identity"].clone())
    };
    let (state, first, july) = on("2024-07-26");
    assert_eq!((&*state, &*first), ("miss", "j"));
    let (state, first, other) = on("2024-07-27");
    assert_eq!((&*state, &*first), ("miss", "o"));
    assert_ne!(july, other);
    assert_eq!(on("2024-07-26"), ("hit".into(), "j".into(), july));
    // Without the setting it is today, which is not that day.
    let report = data(&bench, &["--show", "1"]).report();
    assert_eq!(report["sample"]["tokens"][0]["text"], "o");
    let wrong = data(&bench, &["--rank", "0"]);
    let said: Value = serde_json::from_str(&wrong.stdout).unwrap();
    assert!(said["error"].as_str().unwrap().contains("`rank` is 0"), "{said}");
    let no_day = data(&bench, &["--template-date", "26 Jul 2024"]);
    no_day.ended_with(2, &["26 Jul 2024", "not a day"]);
}

#[test]
fn the_manifest_has_every_step() {
    let bench = bench();
    let out = bench.arg("order.jsonl");
    let report = data(&bench, &["--manifest", &out, "--epochs", "2"]).report();
    let text = fs::read_to_string(&out).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Some(lines.len() as u64), report["steps"].as_u64());
    let named: usize = lines
        .iter()
        .flat_map(|line| line["micro_batches"].as_array().unwrap())
        .map(|batch| batch.as_array().unwrap().len())
        .sum();
    assert_eq!(named, 16);
}

#[test]
fn a_manifest_that_cannot_be_written_is_named() {
    let bench = bench();
    let nowhere = bench.arg("nowhere/order.jsonl");
    data(&bench, &["--manifest", &nowhere]).refused(&[&nowhere, "No such file"]);
}

#[test]
fn of_one_sample_none_can_be_held_out() {
    let bench = bench();
    let first = common::chats().lines().next().unwrap().to_owned();
    bench.write("data.jsonl", first);
    let half = ["--eval-fraction", "0.5"];
    data(&bench, &half).refused(&["eval_fraction", "the data has one sample"]);
    let (model, file, out) = (bench.model(), bench.arg("data.jsonl"), bench.arg("run"));
    let fixed = ["train", "--model", &model, "--data", &file, "--out", &out];
    samebit(&[&fixed[..], &half].concat()).refused(&["the data has one sample"]);
    assert_eq!(data(&bench, &[]).report()["report"]["samples"], 1);
}

#[test]
fn sources_of_any_kind_are_weighed_and_counted_apart() {
    let bench = bench();
    let table = common::root().join("crates/data/tests/golden/parquet/texts.parquet");
    let config = format!(
        "model = {:?}\nmicro_tokens = 128\ndata = [{{path = {:?}, weight = 2.0, name = \"chats\"}}, {table:?}]\n",
        bench.model(),
        bench.arg("data.jsonl"),
    );
    bench.write("run.toml", config);
    let report = samebit(&["data", "--config", &bench.arg("run.toml"), "--json"]).report();
    let sources = report["report"]["sources"].as_array().unwrap();
    assert_eq!((&sources[0]["name"], &sources[0]["samples"]), (&json!("chats"), &json!(8)));
    assert_eq!((&sources[1]["weight"], &sources[1]["samples"]), (&json!(1.0), &json!(2)));
    let once: u64 = report["report"]["tokens"].as_u64().unwrap();
    let chats = sources[0]["tokens"].as_u64().unwrap();
    assert_eq!(report["packing"]["tokens"].as_u64(), Some(once + chats), "chats come twice");
}

#[test]
fn data_that_is_wrong_is_refused_by_file_and_line() {
    let bench = bench();
    let cases: [(&str, Vec<u8>, &[&str]); 5] = [
        ("empty", Vec::new(), &["data.jsonl", "no samples"]),
        ("UTF-16", b"\xff\xfe{\0}\0".to_vec(), &["data.jsonl", "UTF-16", "iconv"]),
        ("Latin-1", b"{\"text\": \"\xe9\"}".to_vec(), &["data.jsonl:1", "byte 10", "UTF-8"]),
        (
            "twice",
            b"{\"text\": \"a\", \"id\": 1}\n{\"text\": \"b\", \"id\": 1}\n".to_vec(),
            &["data.jsonl:2", "id 1", "line 1"],
        ),
        (
            "nothing",
            b"{\"text\": \"<|im_end|>\"}\n".to_vec(),
            &["data.jsonl:1", "nothing to learn"],
        ),
    ];
    for (name, bytes, words) in cases {
        bench.write("data.jsonl", bytes);
        println!("{name}");
        data(&bench, &[]).refused(words);
    }
    bench.write("data.jsonl", common::chats());
    data(&bench, &["--too-long", "drop", "--max-length", "3"])
        .refused(&["all 8 samples", "max_length = 3"]);
    let weighted = |weight: &str| {
        let file = format!("{}@{weight}", bench.arg("data.jsonl"));
        samebit(&[
            "data",
            "--model",
            &bench.model(),
            "--data",
            &file,
            "--micro-tokens",
            "128",
            "--json",
        ])
    };
    for weight in ["0", "nan", "-1"] {
        weighted(weight).refused(&["`data`", "data.jsonl@", "weight over 0"]);
    }
    weighted("0.5").report();
    let table = common::root().join("crates/data/tests/golden/parquet/refused_numbers.parquet");
    let table = table.to_str().unwrap();
    samebit(&["data", "--model", &bench.model(), "--data", table, "--micro-tokens", "128"])
        .refused(&["refused_numbers.parquet", "`text`", "strings"]);
}
