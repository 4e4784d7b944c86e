//! Prompts and pairs: JSON Lines.
//!
//! A line has `prompt` (a text) or `messages` (a conversation that the model is to go on with). Prompts may have an
//! `answer`, a text or a number, that a verifier compares with; pairs have `chosen` and `rejected`, texts. Every other
//! field is kept and shown to outside graders.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use text::{ChatTemplate, TemplateError, Tokenizer, TokenizerError};

/// The most bytes of a line.
const LINE_BYTES_LIMIT: u64 = 16 << 20;

/// A prompt, ready to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Where it comes from: file and line.
    pub origin: String,
    /// What the model is given, as text.
    pub text: String,
    /// And as tokens.
    pub ids: Vec<u32>,
    /// What a verifier compares with.
    pub answer: Option<Value>,
    /// Every other field of the line.
    pub fields: Map<String, Value>,
}

/// A prompt with a completion that is preferred to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens of the preferred completion.
    pub chosen: Vec<u32>,
    /// Tokens of the other.
    pub rejected: Vec<u32>,
}

/// A line that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has no lines.
    #[error("{}: no prompts there: give one JSON object a line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line is wrong.
    #[error("{origin}: {reason}")]
    Line {
        /// File and line.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// The chat template refuses the messages.
    #[error("{origin}: {source}")]
    Template {
        /// File and line.
        origin: String,
        /// Why.
        source: Box<TemplateError>,
    },
    /// The tokenizer fails.
    #[error("{origin}: {source}")]
    Tokens {
        /// File and line.
        origin: String,
        /// Why.
        source: Box<TokenizerError>,
    },
    /// The prompt leaves no room.
    #[error(
        "{origin}: a sequence of {tokens} tokens, with its completion, is over max_length = {limit}: shorten it, or \
         raise max_length and micro_tokens"
    )]
    TooLong {
        /// File and line.
        origin: String,
        /// Tokens.
        tokens: usize,
        /// The most.
        limit: usize,
    },
}

/// How prompts become tokens.
pub struct Prompts<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template; `None` gives `prompt`s as they are.
    pub template: Option<&'a ChatTemplate>,
    /// Most tokens of a prompt with its completion.
    pub max_length: usize,
}

/// Reads prompts whose completions may have `max_tokens` tokens.
///
/// # Errors
/// [`PromptError`].
pub fn read_prompts(
    files: &[PathBuf],
    encoder: &Prompts<'_>,
    max_tokens: usize,
) -> Result<Vec<Prompt>, PromptError> {
    each_line(files, |origin, mut line| {
        let prompt = encoder.prompt(origin, &mut line)?;
        encoder.check(&prompt.origin, prompt.ids.len() + max_tokens)?;
        Ok(Prompt { fields: line, ..prompt })
    })
}

/// Reads pairs. A completion is `chosen` or `rejected` as written, and an end token after it.
///
/// # Errors
/// [`PromptError`].
pub fn read_pairs(
    files: &[PathBuf],
    encoder: &Prompts<'_>,
    end: Option<u32>,
) -> Result<Vec<Pair>, PromptError> {
    each_line(files, |origin, mut line| {
        let prompt = encoder.prompt(origin, &mut line)?;
        let mut completion = |key: &str| {
            let text = match line.remove(key) {
                Some(Value::String(text)) => text,
                _ => return Err(wrong(&prompt.origin, format!("`{key}` is not a text"))),
            };
            let mut ids = encoder.tokens(&prompt.origin, &text, false)?;
            ids.extend(end);
            if ids.is_empty() {
                return Err(wrong(&prompt.origin, format!("`{key}` has no tokens")));
            }
            encoder.check(&prompt.origin, prompt.ids.len() + ids.len())?;
            Ok(ids)
        };
        let (chosen, rejected) = (completion("chosen")?, completion("rejected")?);
        if chosen == rejected {
            return Err(wrong(&prompt.origin, "`chosen` and `rejected` are the same".into()));
        }
        Ok(Pair { prompt: Prompt { fields: line, ..prompt }, chosen, rejected })
    })
}

fn wrong(origin: &str, reason: String) -> PromptError {
    PromptError::Line { origin: origin.to_owned(), reason }
}

fn each_line<T>(
    files: &[PathBuf],
    mut take: impl FnMut(String, Map<String, Value>) -> Result<T, PromptError>,
) -> Result<Vec<T>, PromptError> {
    let mut found = Vec::new();
    for path in files {
        let before = found.len();
        let read = |source| PromptError::Read { path: path.clone(), source };
        let mut reader = BufReader::new(File::open(path).map_err(read)?);
        for number in 1.. {
            let mut bytes = Vec::new();
            let limited = &mut (&mut reader).take(LINE_BYTES_LIMIT + 1);
            if limited.read_until(b'\n', &mut bytes).map_err(read)? == 0 {
                break;
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let origin = origin(path, number);
            if bytes.len() as u64 > LINE_BYTES_LIMIT {
                let reason = format!("the line is over the limit of {LINE_BYTES_LIMIT} bytes");
                return Err(wrong(&origin, reason));
            }
            match serde_json::from_slice(&bytes) {
                Ok(Value::Object(line)) => found.push(take(origin, line)?),
                Ok(_) => return Err(wrong(&origin, "it is not a JSON object".into())),
                Err(error) => return Err(wrong(&origin, format!("it is not JSON: {error}"))),
            }
        }
        if found.len() == before {
            return Err(PromptError::Empty { path: path.clone() });
        }
    }
    Ok(found)
}

fn origin(path: &Path, line: usize) -> String {
    format!("{}, line {line}", path.display())
}

impl Prompts<'_> {
    /// The prompt of a line, whose `prompt`, `messages` and `answer` are taken out of it.
    fn prompt(&self, origin: String, line: &mut Map<String, Value>) -> Result<Prompt, PromptError> {
        let text = self.text(&origin, line.remove("prompt"), line.remove("messages"))?;
        // A template writes its own special tokens.
        let ids = self.tokens(&origin, &text, self.template.is_none())?;
        if ids.is_empty() {
            return Err(wrong(&origin, "the prompt has no tokens".into()));
        }
        let answer = line.remove("answer").filter(|answer| !answer.is_null());
        Ok(Prompt { origin, text, ids, answer, fields: Map::new() })
    }

    fn text(
        &self,
        origin: &str,
        prompt: Option<Value>,
        messages: Option<Value>,
    ) -> Result<String, PromptError> {
        let messages = match (prompt, messages, self.template) {
            (Some(Value::String(prompt)), None, None) => return Ok(prompt),
            (Some(Value::String(prompt)), None, Some(_)) => {
                vec![json!({"role": "user", "content": prompt})]
            }
            (None, Some(Value::Array(_)), None) => {
                let reason = "`messages` need the chat template: leave `raw` out".into();
                return Err(wrong(origin, reason));
            }
            (None, Some(Value::Array(messages)), Some(_)) => messages,
            _ => {
                let reason = "it needs a text `prompt` or a list `messages`, and not both".into();
                return Err(wrong(origin, reason));
            }
        };
        let Some(template) = self.template else { unreachable!("messages have a template here") };
        template.render(&messages, None, true, &Map::new()).map_err(|source| {
            PromptError::Template { origin: origin.to_owned(), source: Box::new(source) }
        })
    }

    fn tokens(&self, origin: &str, text: &str, special: bool) -> Result<Vec<u32>, PromptError> {
        self.tokenizer.encode(text, special).map_err(|source| PromptError::Tokens {
            origin: origin.to_owned(),
            source: Box::new(source),
        })
    }

    fn check(&self, origin: &str, tokens: usize) -> Result<(), PromptError> {
        if tokens <= self.max_length {
            return Ok(());
        }
        let (origin, limit) = (origin.to_owned(), self.max_length);
        Err(PromptError::TooLong { origin, tokens, limit })
    }
}
