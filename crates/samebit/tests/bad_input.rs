//! Input that is wrong: exit code 1 (2 for wrong usage), a message that says what, where and what to do, and nothing
//! half-written left behind.

mod common;

use common::{Bench, samebit};
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};
use std::fs;

/// Ids that every tiny model can score.
const IDS: &str = "1,2,3,4";

/// Runs a command that must be refused and leave every file as it was.
#[track_caller]
fn refused(bench: &Bench, args: &[&str], words: &[&str]) {
    let before = bench.files();
    samebit(args).refused(words);
    assert!(bench.files() == before, "nothing is written, changed or removed");
}

/// A training command over `data.jsonl` into `run`.
fn train<'a>(bench: &'a Args, more: &[&'a str]) -> Vec<&'a str> {
    let fixed =
        ["train", "--model", &bench.model, "--data", &bench.data, "--out", &bench.out, "--json"];
    [&fixed[..], more].concat()
}

/// Paths of a bench as arguments.
struct Args {
    model: String,
    data: String,
    out: String,
}

impl Args {
    fn of(bench: &Bench) -> Args {
        Args { model: bench.model(), data: bench.arg("data.jsonl"), out: bench.arg("run") }
    }
}

/// A qwen3 model with data that can be trained on.
fn trainable() -> (Bench, Args) {
    let bench = Bench::with_model("qwen3");
    bench.write("data.jsonl", common::chats());
    let args = Args::of(&bench);
    (bench, args)
}

/// Small enough for every tiny model's context.
const SMALL: [&str; 4] = ["--rank", "4", "--micro-tokens", "128"];

#[test]
fn the_fixture_itself_is_good() {
    let (bench, args) = trainable();
    let trained = samebit(&train(&args, &[&SMALL[..], &["--max-steps", "1"]].concat())).report();
    assert_eq!(trained["steps"].as_array().unwrap().len(), 1);
    samebit(&["score", &bench.model(), "--ids", IDS, "--json"]).report();
}

#[test]
fn truncated_safetensors() {
    let bench = Bench::with_model("qwen3");
    let path = bench.path("model/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        bench.write("model/model.safetensors", &bytes[..length]);
        let words = ["model/model.safetensors", "truncated"];
        let words = if length == 0 { &words[..1] } else { &words[..] };
        refused(&bench, &["score", &bench.model(), "--ids", IDS], words);
    }
}

/// Splits the model's file in two shards and an index.
fn shard(bench: &Bench) {
    let path = bench.path("model/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut map = Map::new();
    for (number, in_first) in [(1, true), (2, false)] {
        let name = format!("model-{number:05}-of-00002.safetensors");
        let part: Vec<(String, TensorView<'_>)> = tensors
            .tensors()
            .into_iter()
            .filter(|(tensor, _)| tensor.contains(".layers.0.") == in_first)
            .collect();
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
        serialize_to_file(part, None, &bench.path("model").join(name)).unwrap();
    }
    let index = json!({"metadata": {}, "weight_map": map});
    bench.write_json("model/model.safetensors.index.json", &index);
    fs::remove_file(path).unwrap();
}

#[test]
fn missing_shard() {
    let bench = Bench::with_model("qwen3");
    let whole = samebit(&["score", &bench.model(), "--ids", IDS, "--json"]).report();
    shard(&bench);
    let sharded = samebit(&["score", &bench.model(), "--ids", IDS, "--json"]).report();
    assert_eq!(whole["logprobs"], sharded["logprobs"], "both shards are read");
    fs::remove_file(bench.path("model/model-00002-of-00002.safetensors")).unwrap();
    let words = ["model-00002-of-00002.safetensors"];
    refused(&bench, &["score", &bench.model(), "--ids", IDS], &words);
}

#[test]
fn config_and_weights_disagree() {
    let bench = Bench::with_model("qwen3");
    bench.configure(|config| {
        config.insert("intermediate_size".into(), json!(65));
    });
    let words = ["mlp.gate_proj.weight", "[64, 32]", "[65, 32]", "configuration"];
    refused(&bench, &["score", &bench.model(), "--ids", IDS], &words);

    let bench = Bench::with_model("qwen3");
    bench.configure(|config| {
        config.insert("num_hidden_layers".into(), json!(3));
        config.remove("layer_types");
    });
    let words = ["model.layers.2.", "is missing", "do not belong to this configuration"];
    refused(&bench, &["score", &bench.model(), "--ids", IDS], &words);
}

#[test]
fn unknown_architecture() {
    let bench = Bench::with_model("qwen3");
    bench.configure(|config| {
        config.insert("model_type".into(), json!("mamba"));
    });
    let words = ["config.json", "model_type", "mamba", "llama, qwen2 and qwen3"];
    refused(&bench, &["score", &bench.model(), "--ids", IDS], &words);
    refused(&bench, &["plan", &bench.model()], &words);
}

#[test]
fn malformed_json_line() {
    let (bench, args) = trainable();
    let mut lines: Vec<String> = common::chats().lines().map(String::from).collect();
    lines[2] = r#"{"messages": [}"#.into();
    bench.write("data.jsonl", lines.join("\n"));
    refused(&bench, &train(&args, &SMALL), &["data.jsonl:3:", "not JSON", "column 15"]);
}

#[test]
fn unknown_role() {
    let (bench, args) = trainable();
    let told = json!({"messages": [{"role": "narrator", "content": "night falls"}]});
    bench.write("data.jsonl", format!("{}\n{told}", common::chats()));
    let words = ["data.jsonl:9:", "message 0", "narrator", "system, user, assistant, tool"];
    refused(&bench, &train(&args, &SMALL), &words);
    bench.write_json("chat.json", &told);
    let chat = bench.arg("chat.json");
    let words = ["chat.json", "message 0", "narrator", "system, user, assistant, tool"];
    refused(&bench, &["score", &args.model, "--chat", &chat], &words);
}

#[test]
fn failing_template() {
    let (bench, args) = trainable();
    bench.write(
        "model/chat_template.jinja",
        "{% if messages[0].role == 'user' %}\n{{ raise_exception('begin with a system turn') }}{% endif %}",
    );
    let words = ["data.jsonl:1:", "template", "line 2", "begin with a system turn"];
    refused(&bench, &train(&args, &SMALL), &words);
    let words = ["template", "line 2", "begin with a system turn"];
    refused(&bench, &["generate", &args.model, "turn cab"], &words);
    bench.write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}");
    refused(&bench, &train(&args, &SMALL), &["template", "line 1"]);
}

#[test]
fn ids_outside_the_vocabulary() {
    let bench = Bench::with_model("qwen3");
    for (ids, id) in [("1,67", "67"), ("999999,1", "999999"), ("1,2,4294967295", "4294967295")] {
        let words = ["--ids", id, "vocabulary of 67 words", "0 to 66"];
        refused(&bench, &["score", &bench.model(), "--ids", ids], &words);
    }
}

#[test]
fn a_tokenizer_of_another_model() {
    let (bench, args) = trainable();
    let path = bench.path("model/tokenizer.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    tokenizer["model"]["vocab"]["a"] = json!(300);
    bench.write_json("model/tokenizer.json", &tokenizer);
    let words = ["data.jsonl:1:", "id 300", "67 words", "another model's"];
    refused(&bench, &train(&args, &SMALL), &words);
}

/// Runs `train --config run.toml` with more keys in it.
#[track_caller]
fn refused_settings(more: &str, words: &[&str]) {
    let (bench, args) = trainable();
    let Args { model, data, out } = &args;
    bench.write(
        "run.toml",
        format!(
            "model = {model:?}\ndata = [{data:?}]\nout = {out:?}\nmicro_tokens = 128\n{more}\n"
        ),
    );
    let config = bench.arg("run.toml");
    refused(&bench, &["train", "--config", &config, "--json"], words);
}

#[test]
fn unknown_and_ignored_keys() {
    refused_settings(
        "accumulaton = 2",
        &["run.toml", "`accumulaton`", "did you mean `accumulation`?"],
    );
    refused_settings("colour = 2", &["run.toml", "unknown key `colour`"]);
    refused_settings("rank = \"four\"", &["run.toml", "line 5"]);
    for key in ["rank = 4", "alpha = 8.0", "rslora = true", "targets = [\"q_proj\"]"] {
        let name = key.split(' ').next().unwrap();
        let words = [&format!("`{name}`"), "run.toml", "ignored in mode `full`", "remove it"];
        refused_settings(&format!("mode = \"full\"\n{key}"), &words);
    }
    refused_settings("epochs = 1\nmax_steps = 2", &["`epochs`", "`max_steps`", "give one"]);
}

#[test]
fn a_pattern_that_matches_nothing_beside_one_that_does() {
    let (bench, args) = trainable();
    let words = ["`q_porj`", "did you mean `q_proj`?", "down_proj"];
    let targets = ["--targets", "v_proj,q_porj"];
    refused(&bench, &train(&args, &[&SMALL[..], &targets].concat()), &words);
    refused(
        &bench,
        &["plan", &args.model, "--sequence", "64", "--rank", "4", targets[0], targets[1]],
        &words,
    );
    // These weights cannot be loaded, so the pattern is refused before they are.
    bench.configure(|config| {
        config.insert("intermediate_size".into(), json!(65));
    });
    refused(&bench, &train(&args, &[&SMALL[..], &targets].concat()), &words);
    let good = ["--targets", "v_proj,q_proj"];
    let words = ["mlp.gate_proj.weight", "[65, 32]"];
    refused(&bench, &train(&args, &[&SMALL[..], &good].concat()), &words);
}

#[test]
fn rank_and_sequence_out_of_range() {
    let (bench, args) = trainable();
    let model = args.model.as_str();
    refused(
        &bench,
        &["plan", model, "--rank", "0", "--sequence", "64"],
        &["--rank 0", "at least 1"],
    );
    refused(&bench, &train(&args, &["--rank", "0"]), &["`rank` is 0", "flag", "at least 1"]);
    let words = ["rank 33", "between 1 and 32"];
    refused(&bench, &["plan", model, "--rank", "33", "--sequence", "64"], &words);
    for flag in ["--micro-batch", "--sequence", "--accumulation"] {
        for count in ["0", "1048577"] {
            let named = format!("{flag} {count}");
            let words = [&*named, "between 1 and 1048576"];
            refused(&bench, &["plan", model, flag, count], &words);
        }
    }
    let most = ["--micro-batch", "1048576", "--sequence", "1", "--accumulation", "1048576"];
    let plan = ["plan", model, "--rank", "4", "--gflops", "100", "--no-table", "--json"];
    samebit(&[&plan[..], &most].concat()).report();
    let words = ["--sequence 129", "128 tokens", "max_position_embeddings"];
    refused(&bench, &["plan", model, "--rank", "4", "--sequence", "129"], &words);
    let ids = vec!["1"; 129].join(",");
    let words = ["129 tokens", "context is 128", "in pieces"];
    refused(&bench, &["score", model, "--ids", &ids], &words);
}

#[test]
fn output_that_is_there_already() {
    let (bench, args) = trainable();
    let once = train(&args, &[&SMALL[..], &["--max-steps", "1"]].concat());
    let report = samebit(&once).report();
    let adapter = report["product"].as_str().unwrap();
    refused(&bench, &once, &["already holds a run", "or choose another folder"]);
    let out = bench.arg("run");
    let words = ["run", "not empty", "choose another folder"];
    refused(&bench, &["merge", &args.model, adapter, "--out", &out, "--quiet"], &words);
}

#[test]
fn missing_paths() {
    let (bench, args) = trainable();
    let nowhere = bench.arg("nowhere");
    let words = ["nowhere", "no file or folder", "give a folder with config.json"];
    refused(&bench, &["score", &nowhere, "--ids", IDS], &words);
    refused(&bench, &["plan", &nowhere], &words);
    let words = ["nowhere", "No such file"];
    refused(&bench, &["score", &args.model, "--ids", IDS, "--adapter", &nowhere], &words);
    let args = Args { data: nowhere.clone(), ..args };
    refused(&bench, &train(&args, &SMALL), &words);
}

#[test]
fn nothing_to_read() {
    let (bench, args) = trainable();
    let model = args.model.as_str();
    refused(&bench, &["generate", model, "", "--raw"], &["prompt has no tokens"]);
    refused(&bench, &["score", model, "--ids", "5"], &["nothing to score", "1 tokens"]);
    bench.write("empty.txt", "");
    let empty = bench.arg("empty.txt");
    refused(&bench, &["score", model, "--text", &empty], &["nothing to score", "0 tokens"]);
    bench.write("data.jsonl", "");
    refused(&bench, &train(&args, &SMALL), &["data.jsonl", "no samples", "one JSON object a line"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let (bench, args) = trainable();
    let model = args.model.as_str();
    samebit(&["score", model]).ended_with(2, &["--ids", "Usage"]);
    samebit(&["score", model, "--ids", "1,x"]).ended_with(2, &["--ids"]);
    samebit(&["score", model, "--ids", IDS, "--tokens"]).ended_with(2, &["--tokens"]);
    samebit(&train(&args, &["--acumulation", "2"])).ended_with(2, &["--accumulation"]);
    samebit(&["plan", model, "--memory", "much"]).ended_with(2, &["--memory"]);
    samebit(&["plan", model, "--full", "--rank", "4"]).ended_with(2, &["--full", "--rank"]);
    let none: [&str; 0] = [];
    samebit(&none).ended_with(2, &["Usage"]);
    assert!(!bench.path("run").exists());
}
