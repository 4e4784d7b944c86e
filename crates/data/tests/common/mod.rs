//! A small tokenizer made here, whose ids can be counted by hand.
#![allow(dead_code)] // not every test file needs all of it

use data::{Corpus, DataError, Dataset, Encoder, SampleError, Source, TooLong};
use serde_json::json;
use tempfile::TempDir;
use text::{ChatTemplate, Tokenizer};

pub(crate) const BOS: u32 = 0;
pub(crate) const END: u32 = 1;
pub(crate) const START: u32 = 2;
/// The token of " b", made by a merge.
pub(crate) const SPACE_B: u32 = 4;
/// The space, then the printable ASCII characters.
pub(crate) const SPACE: u32 = 10;

/// ChatML, without a system message of its own.
pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(crate) fn id(c: char) -> u32 {
    match c {
        ' ' => SPACE,
        '\n' => SPACE - 1,
        c => SPACE + (c as u32 - u32::from('!')) + 1,
    }
}

pub(crate) fn ids(text: &str) -> Vec<u32> {
    text.chars().map(id).collect()
}

pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
}

impl Fixture {
    pub(crate) fn new(adds_bos: bool) -> Fixture {
        Self::with_config(
            json!({"bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": adds_bos}),
        )
    }

    pub(crate) fn with_config(config: serde_json::Value) -> Fixture {
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

    pub(crate) fn encoder(&self) -> Encoder<'_> {
        Encoder {
            tokenizer: &self.tokenizer,
            template: Some(&self.template),
            vocab: 256,
            max_length: 1000,
            too_long: TooLong::Refuse,
            threads: 2,
        }
    }

    pub(crate) fn corpus(&self, lines: &[&str]) -> Corpus {
        let path = self.folder.path().join("data.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        Corpus::open(&[Source::new(path)]).unwrap()
    }

    pub(crate) fn encode(&self, lines: &[&str]) -> Result<Dataset, DataError> {
        encode(&self.encoder(), &self.corpus(lines))
    }

    pub(crate) fn refusal(&self, line: &str) -> SampleError {
        refusal(self.encode(&[line]))
    }
}

pub(crate) fn encode(encoder: &Encoder<'_>, corpus: &Corpus) -> Result<Dataset, DataError> {
    encoder.encode(corpus, &mut |_, _| ())
}

pub(crate) fn refusal(result: Result<Dataset, DataError>) -> SampleError {
    match result {
        Err(DataError::Sample { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// The ids that are learnt.
pub(crate) fn learnt(dataset: &Dataset, index: usize) -> Vec<u32> {
    let sample = dataset.sample(index);
    let pairs = sample.ids.iter().zip(sample.supervised);
    pairs.filter(|(_, flag)| **flag).map(|(id, _)| *id).collect()
}
