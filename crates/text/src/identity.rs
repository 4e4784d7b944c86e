//! What decides how a model encodes text, as hashes: cheap, since nothing is parsed.

use std::fmt::Write as _;
use std::path::Path;

use formats::gguf::Metadata;

use crate::TokenizerError;

/// Where the keys of a GGUF file's vocabulary, special tokens and templates begin.
const GGUF_PREFIX: &str = "tokenizer.";
const GGUF_TEMPLATE: &str = "tokenizer.chat_template";

/// Hashes (BLAKE3, hexadecimal) of what a model's files say about text. Equal hashes encode alike; files that differ in
/// white space only have other hashes, which costs a second encoding and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextIdentity {
    /// Of the vocabulary and how it is applied.
    pub tokenizer: String,
    /// Of the names of special tokens.
    pub special: String,
    /// Of the chat template; of nothing where there is none.
    pub template: String,
    /// Whether the template may ask for the date ([`crate::ChatTemplate::uses_clock`]).
    pub uses_clock: bool,
}

impl TextIdentity {
    /// Of `tokenizer.json`, `tokenizer_config.json` (which may hold the template too) and `chat_template.jinja` in a
    /// folder. A file that is absent counts as empty.
    ///
    /// # Errors
    /// [`TokenizerError::Read`].
    pub fn of_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let read = |name: &str| {
            let path = folder.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => Ok(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(source) => Err(TokenizerError::Read { path, source }),
            }
        };
        let config = read("tokenizer_config.json")?;
        let template = read("chat_template.jinja")?;
        Ok(Self {
            tokenizer: hash(&read("tokenizer.json")?),
            special: hash(&config),
            template: hash(&template),
            uses_clock: asks_for_date(&config) || asks_for_date(&template),
        })
    }

    /// Of the keys that begin with `tokenizer.` in a GGUF file.
    pub fn of_gguf(metadata: &Metadata) -> Self {
        let (mut tokenizer, mut special, mut template) =
            (String::new(), String::new(), String::new());
        for (key, value) in metadata.iter().filter(|(key, _)| key.starts_with(GGUF_PREFIX)) {
            let part = match key {
                key if key.starts_with(GGUF_TEMPLATE) => &mut template,
                key if key.ends_with("_token_id") => &mut special,
                _ => &mut tokenizer,
            };
            writeln!(part, "{key} {value:?}").expect("a string can be written to");
        }
        Self {
            tokenizer: hash(tokenizer.as_bytes()),
            special: hash(special.as_bytes()),
            template: hash(template.as_bytes()),
            uses_clock: asks_for_date(template.as_bytes()),
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn asks_for_date(source: &[u8]) -> bool {
    const FUNCTION: &[u8] = b"strftime_now";
    source.windows(FUNCTION.len()).any(|window| window == FUNCTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::gguf::Value;

    #[test]
    fn one_character_of_a_file_changes_its_hash_only() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let identity = || TextIdentity::of_folder(folder.path()).unwrap();
        write("tokenizer.json", "{}");
        write("tokenizer_config.json", "{}");
        let base = identity();
        assert!(!base.uses_clock);
        write("tokenizer.json", "{ }");
        assert_ne!(identity().tokenizer, base.tokenizer);
        assert_eq!(
            (identity().special, identity().template),
            (base.special.clone(), base.template.clone())
        );
        write("tokenizer.json", "{}");
        assert_eq!(identity(), base);
        write("tokenizer_config.json", "{ }");
        assert_ne!(identity().special, base.special);
        write("tokenizer_config.json", "{}");
        write("chat_template.jinja", "{{ strftime_now('%Y') }}");
        assert_ne!(identity().template, base.template);
        assert!(identity().uses_clock);
    }

    #[test]
    fn the_keys_of_a_gguf_file_count_by_kind_and_others_do_not() {
        let with = |pairs: &[(&str, Value)]| {
            let mut metadata = Metadata::default();
            for (key, value) in pairs {
                metadata.insert((*key).to_owned(), value.clone()).unwrap();
            }
            TextIdentity::of_gguf(&metadata)
        };
        let text = |text: &str| Value::String(text.to_owned());
        let base = with(&[]);
        assert_eq!(with(&[("general.name", text("a"))]), base);
        let model = with(&[("tokenizer.ggml.model", text("gpt2"))]);
        assert_ne!(model.tokenizer, base.tokenizer);
        assert_eq!((&model.special, &model.template), (&base.special, &base.template));
        assert_ne!(with(&[("tokenizer.ggml.eos_token_id", Value::U32(2))]).special, base.special);
        let template = with(&[("tokenizer.chat_template", text("{{ strftime_now('%d') }}"))]);
        assert_ne!(template.template, base.template);
        assert!(template.uses_clock && !base.uses_clock);
    }
}
