//! What an entry means.

use std::fmt;

use text::TextIdentity;

use crate::corpus::Corpus;
use crate::shorten::TooLong;

/// The identity of the code that encodes (rendering, masks, delimiters, shortening) and of what it is built with: BLAKE3 in
/// hexadecimal, made by the build. A change that changes no token costs one more encoding.
const ENCODER: &str = env!("SAMEBIT_ENCODER");

/// The identity of an encoding: BLAKE3, in hexadecimal, of everything that it is a function of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey(String);

impl CacheKey {
    /// The key of a corpus, encoded by a model's files under these limits ([`crate::Encoder`]'s fields of the same
    /// names); `template_time` is the moment that the encoder's template is told, where it asks for the date.
    /// Names, places and weights of sources are not in it: they change no token.
    pub fn new(
        corpus: &Corpus,
        text: &TextIdentity,
        vocab: usize,
        max_length: usize,
        too_long: TooLong,
        template_time: Option<i64>,
    ) -> CacheKey {
        let mut lines = vec![
            format!("encoder {ENCODER}"),
            format!("tokenizer {}", text.tokenizer),
            format!("special tokens {}", text.special),
            format!("template {}", text.template),
            format!("vocab {vocab}"),
            format!("max_length {max_length}"),
            format!("too_long {}", too_long.name()),
        ];
        lines.extend(template_time.map(|seconds| format!("template_time {seconds}")));
        lines.extend(
            corpus.files().iter().map(|file| format!("data {:?} {}", file.format(), file.hash())),
        );
        CacheKey(blake3::hash(lines.join("\n").as_bytes()).to_hex().to_string())
    }

    /// As hexadecimal.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    #[test]
    fn one_character_of_anything_misses_and_restoring_it_hits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let other = folder.path().join("b.jsonl");
        let text = |part: &str| TextIdentity {
            tokenizer: part.to_owned(),
            special: "s".into(),
            template: "t".into(),
            uses_clock: false,
        };
        let timed = |data: &str, text: &TextIdentity, vocab, length, too_long, time| {
            std::fs::write(&path, data).unwrap();
            let corpus = Corpus::open(&[Source::new(&path)]).unwrap();
            CacheKey::new(&corpus, text, vocab, length, too_long, time)
        };
        let key = |data: &str, text: &TextIdentity, vocab, length, too_long| {
            timed(data, text, vocab, length, too_long, None)
        };
        let base_text = text("x");
        let base = key("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Drop);
        let special = TextIdentity { special: "S".into(), ..text("x") };
        let template = TextIdentity { template: "T".into(), ..text("x") };
        let others = [
            key("{\"text\": \"b\"}", &base_text, 10, 5, TooLong::Drop),
            key("{\"text\": \"a\"}", &text("y"), 10, 5, TooLong::Drop),
            key("{\"text\": \"a\"}", &special, 10, 5, TooLong::Drop),
            key("{\"text\": \"a\"}", &template, 10, 5, TooLong::Drop),
            key("{\"text\": \"a\"}", &base_text, 11, 5, TooLong::Drop),
            key("{\"text\": \"a\"}", &base_text, 10, 6, TooLong::Drop),
            key("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Left),
            key("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Middle),
            key("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Refuse),
            timed("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Drop, Some(0)),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, base, "{index}");
        }
        assert_eq!(key("{\"text\": \"a\"}", &base_text, 10, 5, TooLong::Drop), base);

        // Another place, name and weight are the same meaning; another order is not.
        std::fs::copy(&path, &other).unwrap();
        let renamed = Source { name: "n".into(), weight: 0.5, ..Source::new(&other) };
        let corpus = Corpus::open(std::slice::from_ref(&renamed)).unwrap();
        assert_eq!(CacheKey::new(&corpus, &base_text, 10, 5, TooLong::Drop, None), base);
        std::fs::write(&other, "{\"text\": \"c\"}").unwrap();
        let both = |sources: &[Source]| {
            let corpus = Corpus::open(sources).unwrap();
            CacheKey::new(&corpus, &base_text, 10, 5, TooLong::Drop, None)
        };
        let first = Source::new(&path);
        assert_ne!(both(&[first.clone(), renamed.clone()]), both(&[renamed, first]));
    }
}
