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
