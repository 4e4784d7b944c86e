//! What a fixed corpus encodes to: a change of masks, rendering or shortening is one that somebody meant.

mod common;

use common::{Fixture, TEMPLATE, encode};
use data::{Encoder, TooLong};
use text::ChatTemplate;

/// The hash of [`encoded`].
const HASH: &str = "202da93c00747148f2a806abe9352098ff82e6e5f79690f9e52e43df8c00a301";

/// Every shape, turns that are not learnt, tools, and what is longer than most.
const LINES: &[&str] = &[
    r#"{"messages": [{"role": "user", "content": "Hi b"}, {"role": "assistant", "content": "Yes b."}]}"#,
    r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "1"}, {"role": "assistant", "content": "one", "train": false}, {"role": "user", "content": "2"}, {"role": "assistant", "content": "two"}], "tools": [{"type": "function"}]}"#,
    r#"{"messages": [{"role": "user", "content": "1 b?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"b": 1}}}]}, {"role": "tool", "content": "2"}, {"role": "assistant", "content": "It is 2."}]}"#,
    r#"{"messages": [{"role": "user", "content": "a long question, of b and b"}, {"role": "assistant", "content": "a long answer"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}"#,
    r#"{"prompt": "<s>What", "completion": " is b?<|im_end|>"}"#,
    r#"{"prompt": "", "completion": " b"}"#,
    r#"{"text": "A text <|im_start|> with\nlines, and  b b."}"#,
];

/// The identities of the corpus under plain and block templates, both ways of BOS and every rule for long samples.
fn encoded() -> String {
    let plain = TEMPLATE
        .replace("{% for", "{{ tools | tojson if tools }}{% for")
        .replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}");
    let blocks = plain.replace(
        "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}",
    );
    assert_ne!(blocks, plain);
    let mut hasher = blake3::Hasher::new();
    for adds_bos in [false, true] {
        let fixture = Fixture::new(adds_bos);
        let corpus = fixture.corpus(LINES);
        for source in [&plain, &blocks] {
            let special = fixture.tokenizer.special_tokens().clone();
            let template = ChatTemplate::new(source, special).unwrap();
            for (max_length, too_long) in [
                (1000, TooLong::Refuse),
                (40, TooLong::Drop),
                (40, TooLong::Left),
                (40, TooLong::Middle),
            ] {
                let template = Some(&template);
                let encoder = Encoder { template, max_length, too_long, ..fixture.encoder() };
                hasher.update(encode(&encoder, &corpus).unwrap().identity().as_bytes());
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

#[test]
fn the_same_corpus_gives_the_same_tokens_and_masks() {
    assert_eq!(encoded(), HASH);
}
