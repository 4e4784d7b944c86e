//! Tokenizers from GGUF metadata: against each model's own tokenizer.json, and every way in which one can be wrong.

mod common;

use formats::gguf::{Array, Metadata, Value};
use text::{Tokenizer, TokenizerError};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";

fn strings(items: &[&str]) -> Value {
    Value::Array(Array::String(items.iter().map(|item| (*item).to_owned()).collect()))
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

/// What a converter would write for a byte-level tokenizer.json.
fn converted(folder: &std::path::Path, pre: &str) -> Metadata {
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    let mut tokens: Vec<(u64, String, i32)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
        .collect();
    for added in json["added_tokens"].as_array().unwrap() {
        let kind = if added["special"].as_bool().unwrap() { 3 } else { 4 };
        let token = added["content"].as_str().unwrap().to_owned();
        tokens.retain(|(_, known, _)| *known != token);
        tokens.push((added["id"].as_u64().unwrap(), token, kind));
    }
    tokens.sort();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|rule| match rule {
        serde_json::Value::Array(pair) => {
            format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())
        }
        rule => rule.as_str().unwrap().to_owned(),
    });
    common::metadata(vec![
        (MODEL.to_owned(), text("gpt2")),
        ("tokenizer.ggml.pre".to_owned(), text(pre)),
        (MERGES.to_owned(), Value::Array(Array::String(merges.collect()))),
        (TYPES.to_owned(), Value::Array(Array::I32(tokens.iter().map(|token| token.2).collect()))),
        (
            TOKENS.to_owned(),
            Value::Array(Array::String(tokens.into_iter().map(|token| token.1).collect())),
        ),
    ])
}

#[test]
fn qwen2_and_llama_bpe_give_the_ids_of_tokenizer_json() {
    for (name, pre) in [("qwen3", "qwen2"), ("llama3_1", "llama-bpe")] {
        let Some(folder) = common::tokenizer_folder(&format!("the GGUF form of {name}"), name)
        else {
            continue;
        };
        let tokenizer = Tokenizer::from_gguf(&converted(&folder, pre)).unwrap();
        let golden = common::golden("tokenizers.json");
        for (kind, entries) in golden["tokenizers"][name].as_object().unwrap() {
            for (entry, text) in
                entries.as_array().unwrap().iter().zip(golden["texts"][kind].as_array().unwrap())
            {
                let ids = tokenizer.encode(text.as_str().unwrap(), false).unwrap();
                assert_eq!(serde_json::json!(ids), entry["ids"], "{name}, {kind}, {text}");
            }
        }
    }
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "a", "b", "c", "ab", "bc", "\u{2581}a", "abc"].map(str::to_owned));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 8]);
    let mut scores = vec![0.0; 259];
    // `bc` is better than `ab`: "abc" is a + bc.
    scores.extend([-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -8.0, -3.0]);
    let metadata = common::metadata(vec![
        (MODEL.to_owned(), text("llama")),
        (TOKENS.to_owned(), Value::Array(Array::String(tokens))),
        (TYPES.to_owned(), Value::Array(Array::I32(types))),
        ("tokenizer.ggml.scores".to_owned(), Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(1)),
    ]);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let spelled = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, false).unwrap();
        ids.into_iter().map(|id| tokenizer.token(id).unwrap()).collect()
    };
    assert_eq!(spelled("abc"), ["\u{2581}", "abc"]);
    assert_eq!(spelled("bca"), ["\u{2581}", "bc", "a"]);
    assert_eq!(spelled("aé"), ["\u{2581}a", "<0xC3>", "<0xA9>"]);
    assert_eq!(spelled("a</s>"), ["\u{2581}a", "</s>"]);
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode("a", true).unwrap()[0], 1);
    assert_eq!(tokenizer.encode("<s>a", true).unwrap().iter().filter(|id| **id == 1).count(), 1);
    let ids = tokenizer.encode("a é bc", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "a é bc");
}

/// The error for a good byte-level vocabulary with one entry changed or, without a value, removed.
fn broken(key: &str, value: Option<Value>) -> TokenizerError {
    let mut entries = common::byte_level("gpt-2", &["<s>"], &["a b"]);
    entries.retain(|(known, _)| known != key);
    entries.extend(value.map(|value| (key.to_owned(), value)));
    match Tokenizer::from_gguf(&common::metadata(entries)) {
        Ok(_) => panic!("{key} may be changed without an error"),
        Err(error) => error,
    }
}

#[test]
fn every_way_of_being_wrong_has_its_error() {
    for key in [MODEL, TOKENS, MERGES] {
        let error = broken(key, None);
        assert!(
            matches!(error, TokenizerError::MissingKey { key: named } if named == key),
            "{error}"
        );
        let error = broken(key, Some(Value::U32(1)));
        assert!(matches!(error, TokenizerError::Metadata(_)), "{error}");
    }
    let error = broken(MODEL, Some(text("rwkv")));
    assert!(matches!(&error, TokenizerError::UnknownModel { model } if model == "rwkv"), "{error}");
    let error = broken("tokenizer.ggml.pre", Some(text("smolm")));
    assert!(
        matches!(&error, TokenizerError::UnknownPreTokenizer { pre, .. } if pre == "smolm"),
        "{error}"
    );
    assert!(error.to_string().contains("smollm"), "{error}");
    let error = broken(TOKENS, Some(strings(&[])));
    assert!(matches!(error, TokenizerError::VocabularySize { tokens: 0, .. }), "{error}");
    let error = broken(TYPES, Some(Value::Array(Array::I32(vec![1]))));
    assert!(
        matches!(error, TokenizerError::ArrayLength { entries: 1, tokens: 258, .. }),
        "{error}"
    );
    for rule in ["ab", "a zz", "zz b", "b a"] {
        let error = broken(MERGES, Some(strings(&["a b", rule])));
        assert!(
            matches!(&error, TokenizerError::Merge { index: 1, merge, .. } if merge == rule),
            "{error}"
        );
    }
    let error = broken("tokenizer.ggml.eos_token_id", Some(Value::U32(258)));
    assert!(matches!(error, TokenizerError::SpecialId { id: 258, tokens: 258, .. }), "{error}");

    let mut entries = common::byte_level("gpt-2", &["a"], &[]);
    entries.push(("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(true)));
    let error = Tokenizer::from_gguf(&common::metadata(entries)).err().unwrap();
    assert!(
        matches!(&error, TokenizerError::DuplicateToken { token, first: 97, second: 256 } if token == "a"),
        "{error}"
    );
}

#[test]
fn sentencepiece_scores_are_checked() {
    let build =
        |scores: Option<Vec<f32>>| {
            let mut entries =
                vec![(MODEL.to_owned(), text("llama")), (TOKENS.to_owned(), strings(&["a", "b"]))];
            entries.extend(scores.map(|scores| {
                ("tokenizer.ggml.scores".to_owned(), Value::Array(Array::F32(scores)))
            }));
            Tokenizer::from_gguf(&common::metadata(entries)).err()
        };
    assert!(matches!(build(None), Some(TokenizerError::MissingKey { .. })));
    assert!(matches!(build(Some(vec![0.0])), Some(TokenizerError::ArrayLength { .. })));
    assert!(matches!(build(Some(vec![0.0, f32::NAN])), Some(TokenizerError::Score { id: 1, .. })));
    assert!(build(Some(vec![0.0, -1.0])).is_none());
}

#[test]
fn digits_stand_alone_for_smollm_and_not_for_gpt2() {
    let ids = |pre: &str| {
        let metadata = common::metadata(common::byte_level(pre, &[], &["1 2", "Ġ Ġ"]));
        Tokenizer::from_gguf(&metadata).unwrap().encode("x  12", false).unwrap()
    };
    let (x, space, one, two) = (u32::from(b'x'), u32::from(b' '), u32::from(b'1'), u32::from(b'2'));
    assert_eq!(ids("gpt-2"), [x, space, space, 256]); // ` 12` is one piece, so the two spaces never meet
    assert_eq!(ids("smollm"), [x, 257, one, two]);
}

#[test]
fn bos_is_added_where_the_file_asks_and_never_twice() {
    let with = |add: Option<bool>| {
        let mut entries = common::byte_level("gpt-2", &["<s>", "</s>"], &[]);
        entries.push(("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(256)));
        entries.push(("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(257)));
        entries
            .extend(add.map(|add| ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(add))));
        Tokenizer::from_gguf(&common::metadata(entries)).unwrap()
    };
    let a = u32::from(b'a');
    let adding = with(Some(true));
    assert_eq!((adding.bos(), adding.eos(), adding.adds_bos()), (Some(256), Some(257), true));
    assert_eq!(adding.encode("a", true).unwrap(), [256, a]);
    assert_eq!(adding.encode("<s>a", true).unwrap(), [256, a]);
    assert_eq!(adding.encode("", true).unwrap(), [256]);
    assert_eq!(adding.encode("a", false).unwrap(), [a]);
    for tokenizer in [with(Some(false)), with(None)] {
        assert!(!tokenizer.adds_bos());
        assert_eq!(tokenizer.encode("a", true).unwrap(), [a]);
    }
}

#[test]
fn ids_outside_the_vocabulary_are_errors() {
    let tokenizer =
        Tokenizer::from_gguf(&common::metadata(common::byte_level("gpt-2", &[], &[]))).unwrap();
    let error = tokenizer.decode(&[97, 256], false).unwrap_err();
    assert!(
        matches!(error, TokenizerError::UnknownId { id: 256, position: 1, vocab_size: 256 }),
        "{error}"
    );
}

#[test]
fn an_id_outside_the_vocabulary_has_no_text_in_a_stream() {
    let tokenizer =
        Tokenizer::from_gguf(&common::metadata(common::byte_level("gpt-2", &[], &[]))).unwrap();
    let mut stream = tokenizer.stream(false);
    let pieces = [97, 9999, 0xc3, 256, 0xa9].map(|id| stream.push(id).unwrap());
    assert_eq!(pieces, ["a", "", "", "", "é"]);
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn a_stream_never_cuts_a_character() {
    let tokenizer =
        Tokenizer::from_gguf(&common::metadata(common::byte_level("gpt-2", &["<e>"], &[])))
            .unwrap();
    let mut stream = tokenizer.stream(true);
    let pieces: Vec<String> =
        "aé👍".bytes().map(|byte| stream.push(byte.into()).unwrap()).collect();
    assert_eq!(pieces, ["a", "", "é", "", "", "", "👍"]);
    assert_eq!(stream.push(256).unwrap(), "");
    assert_eq!(stream.push(0xf0).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
}
