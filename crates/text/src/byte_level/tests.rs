//! The fast way against the `tokenizers` crate: every id and every range.

use std::collections::BTreeSet;

use formats::gguf::{Metadata, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::Declined;
use super::cut::SPACE_LIMIT;
use crate::pre_tokenizer::PreTokenizer;
use crate::tokenizer::Spelled;
use crate::{EncodeWay, Tokenizer};

#[path = "../../tests/common/mod.rs"]
mod common;

/// Fragments in which the patterns, the merges, composition or the tokens between them have to decide something.
const EDGES: &[&str] = &[
    "'s",
    "'S",
    "'ſ",
    "'re",
    "'RE",
    "'rE",
    "'ll",
    "'lL",
    "'v",
    "'ve",
    "'t",
    "'T",
    "'d",
    "'m",
    "''",
    "'",
    "’s",
    " 's",
    "?'s",
    "'sa",
    "K",
    "ſ",
    "İ",
    " ",
    "  ",
    "   ",
    "\t",
    " \t ",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\n ",
    " \n \n  ",
    "\r",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "\u{feff}",
    "\u{200b}",
    "\u{200d}",
    "1",
    "12",
    "123",
    "1234",
    " 7",
    "٣",
    "½",
    "²",
    "Ⅷ",
    "五",
    "\u{19da}",
    "\u{16ac0}",
    "\u{11de0}",
    "1a",
    "a1",
    ".5",
    "$1",
    "a",
    " a",
    "Z",
    "word",
    " word",
    "ß",
    "é",
    "e\u{301}",
    "\u{301}",
    "q\u{323}\u{307}",
    "é\u{316}",
    "Å",
    "\u{212b}",
    "ﬁ",
    "日本",
    "語の",
    "안녕",
    "\u{1100}\u{1161}",
    "हिन्दी",
    "नमस्ते",
    "ไทย",
    "עברית",
    "شَرّ",
    "ελλ",
    "Привет",
    "мир",
    "Việt",
    "😀",
    "👩\u{200d}🚀",
    "🇨🇭",
    "🏳️",
    "❤️",
    "!",
    "...",
    "…",
    " …",
    "—",
    "((",
    "/*",
    "_",
    "\\n",
    "#",
    "`",
    "<",
    "<|",
    "|>",
    "\0",
    "\u{7f}",
    "\u{e000}",
    "\u{d7ff}",
    "\u{10ffff}",
    "\u{30000}",
    "\u{e0100}",
    "https://a.b/c?d=1",
    "x=1;\n\t}",
];

/// Characters of every plane, those of few bytes more often.
fn characters() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{1,6}",
        "[\u{80}-\u{7ff}]{1,4}",
        "[\u{800}-\u{ffff}]{1,3}",
        any::<char>().prop_map(String::from),
    ]
}

/// Text of fragments: edges, any characters, tokens of the vocabulary and added tokens.
fn texts(tokens: Vec<String>, added: Vec<String>) -> impl Strategy<Value = String> {
    let edges = prop::sample::select(EDGES).prop_map(str::to_owned);
    let fragment = prop_oneof![
        4 => edges,
        3 => characters(),
        4 => prop::sample::select(tokens),
        1 => prop::sample::select(added),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

/// Compares both ways on a text; false where the fast way leaves it alone.
fn compare(tokenizer: &Tokenizer, text: &str) -> bool {
    let byte_level = tokenizer.byte_level().unwrap();
    let theirs = tokenizer.spell_by_library(text).unwrap();
    let ids = match byte_level.encode(text) {
        Ok(ids) => ids,
        Err(declined) => {
            assert_ne!(declined, Declined::TooMuchSpace, "{text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), theirs.ids, "{text:?}");
            return false;
        }
    };
    assert_eq!(ids, theirs.ids, "{text:?}");
    let Spelled { ids, ranges } = byte_level.encode_with_ranges(text).unwrap();
    assert_eq!((ids, ranges), (theirs.ids, theirs.ranges), "{text:?}");
    true
}

/// Golden texts, edges by themselves and in pairs, and `cases` texts by chance.
fn fuzz(name: &str, tokenizer: &Tokenizer, cases: u32) {
    let golden = common::golden("tokenizers.json");
    let kinds = golden["texts"].as_object().unwrap().values();
    let golden =
        kinds.flat_map(|texts| texts.as_array().unwrap()).map(|text| text.as_str().unwrap());
    for text in golden.chain(EDGES.iter().copied()) {
        compare(tokenizer, text);
    }
    for first in EDGES {
        for second in EDGES {
            compare(tokenizer, &format!("{first}{second}x"));
            compare(tokenizer, &format!("x{first}{second}"));
        }
    }
    let added: Vec<String> = tokenizer.special_texts().to_vec();
    let tokens: BTreeSet<String> = (0..tokenizer.vocab_size() as u32)
        .filter_map(|id| tokenizer.decode(&[id], false).ok())
        .filter(|text| !text.is_empty() && !text.contains('\u{fffd}'))
        .collect();
    assert!(!added.is_empty() && tokens.len() > 100, "{name}");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let fast = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&texts(tokens.into_iter().collect(), added), |text| {
            fast.set(fast.get() + u32::from(compare(tokenizer, &text)));
            Ok(())
        })
        .unwrap();
    assert!(fast.get() > cases / 8, "{name}: {} of {cases} texts by the fast way", fast.get());
}

/// Metadata with another way of cutting.
fn cut_as(metadata: &Metadata, kind: PreTokenizer) -> Tokenizer {
    let kept = metadata.iter().filter(|(key, _)| *key != "tokenizer.ggml.pre");
    let mut entries: Vec<(String, Value)> =
        kept.map(|(key, value)| (key.to_owned(), value.clone())).collect();
    entries.push(("tokenizer.ggml.pre".to_owned(), Value::String(kind.name().to_owned())));
    Tokenizer::from_gguf(&entries.into_iter().collect()).unwrap()
}

/// Needs no file: bytes, a few merges, two special tokens.
#[test]
fn every_way_of_cutting_over_bytes() {
    let merges = [
        "a b", "Ġ a", "Ġ Ġ", "' s", "ab ab", "1 2", "12 3", "Ċ Ċ", "Ã ©", "Ġa b", "w o", "r d",
        "wo rd",
    ];
    let special = ["<|im_start|>", "<|im_end|>", "<|im_end|>s"];
    let metadata = common::metadata(common::byte_level("gpt-2", &special, &merges));
    for kind in PreTokenizer::ALL {
        let tokenizer = cut_as(&metadata, kind);
        assert_eq!(tokenizer.way(), EncodeWay::ByteLevel { pieces: kind.name() });
        fuzz(kind.name(), &tokenizer, 512);
    }
}

#[test]
fn every_way_of_cutting_over_a_real_vocabulary() {
    if let Some(file) = common::smollm2("SmolLM2's vocabulary cut in every way") {
        for kind in PreTokenizer::ALL {
            fuzz(kind.name(), &cut_as(file.metadata(), kind), 512);
        }
    }
}

#[test]
fn real_tokenizers() {
    for (name, pieces) in [("qwen3", "qwen2"), ("llama3_1", "llama-bpe")] {
        if let Some(folder) = common::tokenizer_folder(&format!("{name}, both ways"), name) {
            let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
            assert_eq!(tokenizer.way(), EncodeWay::ByteLevel { pieces });
            fuzz(name, &tokenizer, 1024);
        }
    }
}

#[test]
fn sentence_pieces_go_through_the_library() {
    if let Some(folder) = common::tokenizer_folder("Gemma 3's way", "gemma3") {
        let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
        let EncodeWay::Library { reason } = tokenizer.way() else {
            panic!("{:?}", tokenizer.way())
        };
        assert!(reason.contains("SentencePiece"), "{reason}");
    }
}

/// A text that the engine for patterns gives up on is left to it, and one at the limit is not.
#[test]
fn endless_white_space_is_left_alone() {
    let metadata = common::metadata(common::byte_level("gpt-2", &["<s>"], &[]));
    for kind in PreTokenizer::ALL {
        let tokenizer = cut_as(&metadata, kind);
        let at_limit = format!("a{}b", " ".repeat(SPACE_LIMIT));
        assert!(compare(&tokenizer, &at_limit), "{kind:?}");
        let beyond = format!("a{}b", " ".repeat(SPACE_LIMIT + 1));
        let declined = tokenizer.byte_level().unwrap().encode(&beyond);
        assert_eq!(declined, Err(Declined::TooMuchSpace), "{kind:?}");
        assert_eq!(tokenizer.encode(&beyond, false).unwrap().len(), beyond.len());
    }
}

/// A byte without a token: the library leaves it out, and so it is left to the library.
#[test]
fn bytes_without_a_token_are_left_alone() {
    let metadata = common::metadata(common::byte_level("gpt-2", &["<s>"], &["a b"]));
    let json = Tokenizer::from_gguf(&metadata).unwrap().to_json().unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // U+0104 spells the byte 4.
    json["model"]["vocab"].as_object_mut().unwrap().remove("\u{104}").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::from_tokenizer_json(&path).unwrap();
    assert!(compare(&tokenizer, "ab\u{5} ab"));
    let declined = tokenizer.byte_level().unwrap().encode("ab \u{4} ab");
    assert_eq!(declined, Err(Declined::UnknownByte));
    assert!(!compare(&tokenizer, "ab \u{4} ab"));
}

/// Threads that share a tokenizer, each with the words of the others before it.
#[test]
fn threads_change_no_id() {
    let metadata = common::metadata(common::byte_level("llama-bpe", &["<s>"], &["a b", "Ġ ab"]));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let texts: Vec<String> = (0..200).map(|n| format!("ab{n} abab <s> {} ab", n * n)).collect();
    let alone: Vec<_> = texts.iter().map(|text| tokenizer.encode(text, false).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (text, ids) in texts.iter().zip(&alone) {
                    assert_eq!(&tokenizer.encode(text, false).unwrap(), ids);
                }
            });
        }
    });
}

/// Each part of a tokenizer that is of another kind, and the one it is named by.
#[test]
fn parts_of_another_kind_are_named() {
    let metadata = common::metadata(common::byte_level("gpt-2", &["<s>"], &["a b"]));
    let json = Tokenizer::from_gguf(&metadata).unwrap().to_json().unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let reason = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        change(&mut json);
        let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        super::ByteLevel::of(&inner).err().unwrap_or_default()
    };
    use serde_json::json;
    assert_eq!(reason(&|_| ()), "");
    let word_level = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
    let trimming = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    // A template that says the text twice: no part is of another kind, and yet ids are others.
    let twice = json!({"type": "TemplateProcessing", "special_tokens": {}, "pair": [],
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]});
    for (part, value, said) in [
        ("model", word_level, "not BPE"),
        ("normalizer", json!({"type": "NFKC"}), "normalizes text in another way"),
        ("pre_tokenizer", json!({"type": "Whitespace"}), "cuts text"),
        ("post_processor", trimming, "post-processor"),
        ("post_processor", twice, "in another way than its parts say"),
    ] {
        let found = reason(&|json| json[part] = value.clone());
        assert!(found.contains(said), "{part}: {found:?}");
    }
    for (key, value, said) in [
        ("dropout", json!(0.1), "at random"),
        ("continuing_subword_prefix", json!("##"), "prefix"),
        ("end_of_word_suffix", json!("</w>"), "suffix"),
        ("byte_fallback", json!(true), "SentencePiece"),
    ] {
        let found = reason(&|json| {
            json["model"][key] = value.clone();
            json["model"]["merges"] = json!([]);
        });
        assert!(found.contains(said), "{key}: {found:?}");
    }
    let found = reason(&|json| json["added_tokens"][0]["lstrip"] = json!(true));
    assert!(found.contains("white space beside it"), "{found:?}");
    let found = reason(&|json| {
        json["model"]["vocab"].as_object_mut().unwrap().remove("!");
    });
    assert!(found.contains("in another way than its parts say"), "{found:?}");
    let found = reason(&|json| json["model"]["vocab"]["twin"] = json!(7));
    assert!(found.contains("share an id"), "{found:?}");
}
