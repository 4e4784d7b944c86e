//! Prompts and pairs of a run: what [`data::Corpus::prompts`] reads, with an `answer`, a text or a number, that a
//! verifier compares with; pairs have `chosen` and `rejected`, texts. Every other field is kept and shown to outside
//! graders.

use std::path::PathBuf;

use data::{Corpus, DataError, Origin, PromptEncoder, PromptRow, SampleError, Source};
use serde_json::{Map, Value};

use crate::rewards::Question;

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

impl Prompt {
    /// What a grader is asked about a completion, which is sample `sample` of its step.
    pub(crate) fn question<'a>(&'a self, sample: usize, completion: &'a str) -> Question<'a> {
        let answer = self.answer.as_ref();
        Question { sample, prompt: &self.text, completion, answer, fields: &self.fields }
    }
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

/// Prompts that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A file, or a line that is no prompt.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A completion of a pair is missing, or no text.
    #[error("{origin}: `{key}` is not a text")]
    NoCompletion {
        /// File and line.
        origin: Origin,
        /// `chosen` or `rejected`.
        key: &'static str,
    },
    /// A pair that prefers nothing.
    #[error("{origin}: `chosen` and `rejected` are the same")]
    SamePair {
        /// File and line.
        origin: Origin,
    },
    /// The prompt leaves no room.
    #[error(
        "{origin}: a sequence of {tokens} tokens, with its completion, is over max_length = {limit}: shorten it, or \
         raise max_length and micro_tokens"
    )]
    TooLong {
        /// File and line.
        origin: Origin,
        /// Tokens.
        tokens: usize,
        /// The most.
        limit: usize,
    },
}

/// Reads prompts whose completions may have `max_tokens` tokens, in sequences of at most `max_length`.
///
/// # Errors
/// [`PromptError`].
pub fn read_prompts(
    files: &[PathBuf],
    encoder: &PromptEncoder<'_>,
    max_length: usize,
    max_tokens: usize,
) -> Result<Vec<Prompt>, PromptError> {
    let prompt = |row: PromptRow| -> Result<Prompt, PromptError> {
        let origin = row.origin.clone();
        let prompt = prompt(row, encoder)?;
        check(origin, prompt.ids.len() + max_tokens, max_length)?;
        Ok(prompt)
    };
    rows(files)?.into_iter().map(prompt).collect()
}

/// Reads pairs, in sequences of at most `max_length` tokens. A completion is `chosen` or `rejected` as written, and the
/// token `end` after it, at which generation ends.
///
/// # Errors
/// [`PromptError`].
pub fn read_pairs(
    files: &[PathBuf],
    encoder: &PromptEncoder<'_>,
    max_length: usize,
    end: u32,
) -> Result<Vec<Pair>, PromptError> {
    let pair = |mut row: PromptRow| -> Result<Pair, PromptError> {
        let origin = row.origin.clone();
        let mut completion = |key: &'static str| -> Result<Vec<u32>, PromptError> {
            let Some(Value::String(text)) = row.fields.shift_remove(key) else {
                return Err(PromptError::NoCompletion { origin: origin.clone(), key });
            };
            let ids = encoder.tokenizer.encode(&text, false);
            let mut ids = ids.map_err(|error| SampleError::from(error).at(&origin))?;
            ids.push(end);
            Ok(ids)
        };
        let (chosen, rejected) = (completion("chosen")?, completion("rejected")?);
        if chosen == rejected {
            return Err(PromptError::SamePair { origin });
        }
        let prompt = prompt(row, encoder)?;
        check(origin, prompt.ids.len() + chosen.len().max(rejected.len()), max_length)?;
        Ok(Pair { prompt, chosen, rejected })
    };
    rows(files)?.into_iter().map(pair).collect()
}

fn rows(files: &[PathBuf]) -> Result<Vec<PromptRow>, DataError> {
    Corpus::open(&Source::of_files(files))?.prompts()
}

fn prompt(row: PromptRow, encoder: &PromptEncoder<'_>) -> Result<Prompt, PromptError> {
    let PromptRow { origin, asked, mut fields } = row;
    let (text, ids) = encoder.encode(&asked).map_err(|error| error.at(&origin))?;
    let answer = fields.shift_remove("answer").filter(|answer| !answer.is_null());
    Ok(Prompt { origin: origin.to_string(), text, ids, answer, fields })
}

fn check(origin: Origin, tokens: usize, limit: usize) -> Result<(), PromptError> {
    if tokens <= limit {
        return Ok(());
    }
    Err(PromptError::TooLong { origin, tokens, limit })
}
