//! What is asked for, and what comes back.

use engine::{Choice, Sampling};
use serde::Serialize;
use std::fmt;

/// When a completion ends, apart from its most tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Tokens that end a completion; the token is part of its ids, not of its text.
    pub ids: Vec<u32>,
    /// Texts that end a completion and are not part of its text. They may span tokens.
    pub texts: Vec<String>,
}

/// One completion to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Number of the sample: its draws depend on (seed, sample, position) alone.
    pub sample: u64,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Most tokens of the completion.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// When it ends.
    pub stops: Stops,
    /// Whether the completion tells what each token was chosen from ([`Completion::choices`]): training on it takes that.
    pub policy: bool,
}

/// A submitted request: its number among all of its scheduler's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A token of [`Stops::ids`].
    EndToken,
    /// A text of [`Stops::texts`].
    StopText,
    /// The most tokens of the request, or of a sequence.
    Length,
    /// [`crate::Scheduler::cancel`].
    Cancelled,
}

/// What a request became.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The request's number.
    pub ticket: Ticket,
    /// The request's sample number.
    pub sample: u64,
    /// Text up to a stop; empty without a tokenizer.
    pub text: String,
    /// Chosen tokens, an end token included.
    pub ids: Vec<u32>,
    /// log p of each chosen token over the whole vocabulary, given the tokens before it.
    pub logprobs: Vec<f32>,
    /// Each chosen token with what it was chosen from, and its log-probs by that policy; empty where the request does not
    /// ask.
    #[serde(skip)]
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub ending: Ending,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens whose keys and values were another sequence's, or an earlier one's.
    pub shared_tokens: usize,
    /// Times that its pages were taken and computed again later.
    pub evictions: usize,
}

/// What a step of the scheduler tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was chosen.
    Token {
        /// Whose.
        ticket: Ticket,
        /// The token.
        id: u32,
        /// log p over the whole vocabulary.
        logprob: f32,
        /// Text that has become certain; possibly none, never half a character, never part of a stop text.
        text: String,
    },
    /// A completion ended; text that was held back comes with it.
    End {
        /// The completion.
        completion: Completion,
        /// Text after the last token's.
        text: String,
    },
}
