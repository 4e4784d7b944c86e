//! Ids and texts against transformers' (`scripts/goldens/token_ids.py`).

mod common;

use serde_json::Value;
use text::Tokenizer;

/// Every golden text through one tokenizer: ids, ids with additions, both decodings, and decoding id by id.
fn check(name: &str, tokenizer: &Tokenizer) {
    let golden = common::golden("tokenizers.json");
    let kinds = golden["tokenizers"][name].as_object().unwrap();
    assert_eq!(kinds.len(), 6);
    for (kind, entries) in kinds {
        let texts = golden["texts"][kind].as_array().unwrap();
        assert_eq!(texts.len(), entries.as_array().unwrap().len());
        for (text, entry) in texts.iter().zip(entries.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            check_text(&format!("{name}, {kind}, {text:?}"), tokenizer, text, entry);
        }
    }
}

fn check_text(label: &str, tokenizer: &Tokenizer, text: &str, entry: &Value) {
    let expected: Vec<u32> = serde_json::from_value(entry["ids"].clone()).unwrap();
    let ids = tokenizer.encode(text, false).unwrap();
    assert_eq!(ids, expected, "{label}");

    let with_special: Vec<u32> = match entry.get("with_special") {
        Some(ids) => serde_json::from_value(ids.clone()).unwrap(),
        None => expected,
    };
    // transformers doubles a BOS that the text already begins with; here there is one.
    let bos = tokenizer.bos();
    let doubled =
        with_special.len() > 1 && Some(with_special[0]) == bos && Some(with_special[1]) == bos;
    let ours = tokenizer.encode(text, true).unwrap();
    assert_eq!(ours, with_special[usize::from(doubled)..], "{label}");

    let decoded = entry["decoded"].as_str().unwrap_or(text);
    let skipped = entry["skipped"].as_str().unwrap_or(decoded);
    for (skip, text) in [(false, decoded), (true, skipped)] {
        assert_eq!(tokenizer.decode(&ids, skip).unwrap(), text, "{label}");
        let mut stream = tokenizer.stream(skip);
        let mut streamed = String::new();
        for id in &ids {
            streamed.push_str(&stream.push(*id).unwrap());
        }
        streamed.push_str(&stream.finish().unwrap());
        assert_eq!(streamed, text, "{label}, streamed");
    }
}

#[test]
fn smollm2_from_its_gguf() {
    let Some(file) = common::smollm2("SmolLM2's tokenizer") else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.id("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.token(2).as_deref(), Some("<|im_end|>"));
    assert!(!tokenizer.adds_bos());
    check("smollm2", &tokenizer);
}

#[test]
fn qwen3_gemma3_and_llama3_from_tokenizer_json() {
    for (name, adds_bos, size) in
        [("qwen3", false, 151_669), ("gemma3", true, 262_145), ("llama3_1", true, 128_256)]
    {
        let test = format!("the tokenizer of {name}");
        if let Some(folder) = common::tokenizer_folder(&test, name) {
            let path = folder.join("tokenizer.json");
            let tokenizer = Tokenizer::from_tokenizer_json(&path).unwrap();
            assert_eq!(tokenizer.adds_bos(), adds_bos, "{name}");
            assert_eq!(tokenizer.vocab_size(), size, "{name}");
            check(name, &tokenizer);
        }
    }
}

/// What a GGUF file would hold of a tokenizer.json gives the same ids and texts again.
#[test]
fn tokenizers_survive_gguf() {
    for (name, rows) in [("qwen3", 151_936), ("llama3_1", 128_256)] {
        if let Some(folder) = common::tokenizer_folder(&format!("{name} by GGUF"), name) {
            let before = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
            let metadata = before.to_gguf(rows, &[before.eos().unwrap(), 7], None).unwrap();
            assert_eq!(metadata.u32("tokenizer.ggml.eot_token_id").unwrap(), Some(7));
            assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), rows);
            let after = Tokenizer::from_gguf(&metadata).unwrap();
            assert_eq!((after.bos(), after.eos()), (before.bos(), before.eos()), "{name}");
            assert_eq!(after.adds_bos(), before.adds_bos(), "{name}");
            check(name, &after);
            let fewer = before.to_gguf(before.vocab_size() - 1, &[], None);
            assert!(matches!(fewer, Err(text::TokenizerError::VocabularySize { .. })));
        }
    }
}

#[test]
fn sentence_pieces_are_refused() {
    if let Some(folder) = common::tokenizer_folder("gemma3 by GGUF", "gemma3") {
        let gemma = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
        let error = gemma.to_gguf(262_208, &[], None).unwrap_err().to_string();
        assert!(error.contains("SentencePiece"), "{error}");
    }
}

/// The entries that llama.cpp's own converter wrote.
#[test]
fn smollm2_is_written_as_it_was_read() {
    let Some(file) = common::smollm2("SmolLM2's tokenizer by GGUF") else { return };
    let theirs = file.metadata();
    let tokenizer = Tokenizer::from_gguf(theirs).unwrap();
    let template = text::ChatTemplate::from_gguf(theirs).unwrap();
    let ours = tokenizer.to_gguf(49152, &[2], Some(&template)).unwrap();
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.chat_template",
    ] {
        assert!(ours.get(key) == theirs.get(key), "{key}");
    }
    assert_eq!(ours.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
}
