//! What can go wrong in a rollout.

use crate::request::Ticket;
use engine::{EngineError, SamplingError};
use text::TokenizerError;

/// A rollout error.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt that leaves no room for a token.
    #[error(
        "a prompt of {tokens} tokens leaves no room in sequences of {length}: shorten it, or plan longer sequences"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the longest sequence.
        length: usize,
    },
    /// A cache that could not hold the sequence even alone.
    #[error(
        "a sequence of up to {tokens} tokens needs {needed} pages of {page} tokens and the cache has {pages}: lower the \
         most tokens of a completion, or plan more pages",
        page = program::ops::PAGE
    )]
    CacheTooSmall {
        /// Tokens of prompt and completion.
        tokens: usize,
        /// Pages that they need.
        needed: usize,
        /// Pages there are.
        pages: usize,
    },
    /// A stop text of no characters would end every completion at once.
    #[error("a stop text has at least one character")]
    EmptyStop,
    /// Stop texts without a tokenizer to make text with.
    #[error("stop texts need a tokenizer: this scheduler was made without one")]
    NoTokenizer,
    /// Weights changed, or the cache was released, while sequences were under way: their keys are old, or gone.
    #[error(
        "weights changed or the cache was released with {running} sequences under way: finish or cancel them, or give \
         up their pages, before"
    )]
    WeightsChanged {
        /// Sequences under way.
        running: usize,
    },
    /// An engine that was not planned for generation.
    #[error("the engine was not planned for generation")]
    NotPlanned,
    /// No token can be chosen.
    #[error("{ticket}: {source}")]
    Sampling {
        /// Whose.
        ticket: Ticket,
        /// Why.
        source: SamplingError,
    },
    /// Sampling settings out of their range.
    #[error(transparent)]
    Settings(SamplingError),
    /// A chosen token that the tokenizer does not know.
    #[error("{ticket}: {source}")]
    Text {
        /// Whose.
        ticket: Ticket,
        /// Why.
        source: TokenizerError,
    },
    /// A forward pass failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
