//! Decoding one id at a time.

use crate::{Tokenizer, TokenizerError};

/// Turns a stream of ids into a stream of text, holding bytes back until they complete a character.
///
/// The pieces, joined, and [`finish`](Self::finish) are the decoding of all ids at once.
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Ids whose decoding is the context of the next piece; text of the first `settled` of them has been given.
    window: Vec<u32>,
    settled: usize,
}

impl<'a> StreamDecoder<'a> {
    /// A decoder at the start of a text. `skip_special` leaves special tokens out.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, window: Vec::new(), settled: 0 }
    }

    /// Takes one id and gives the text that it completes: possibly none, never half a character. An id outside the
    /// vocabulary has no text: a model with more rows than words may draw one, and goes on.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        if !self.tokenizer.has(id) {
            return Ok(String::new());
        }
        self.window.push(id);
        let given = self.decode(&self.window[..self.settled])?;
        let all = self.decode(&self.window)?;
        // A character cut in half decodes to U+FFFD until its last byte is there.
        if all.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.settle(&given, &all)
    }

    /// Ends the text: gives what is still held back, with U+FFFD for a character that was never completed.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(mut self) -> Result<String, TokenizerError> {
        let given = self.decode(&self.window[..self.settled])?;
        let all = self.decode(&self.window)?;
        self.settle(&given, &all)
    }

    /// Marks `all` as given and returns the part of it after `given`.
    ///
    /// The ids just given stay as context: some decoders treat the first token of a text differently (SentencePiece
    /// drops its leading space), so a piece is always the difference of two decodings that begin alike.
    fn settle(&mut self, given: &str, all: &str) -> Result<String, TokenizerError> {
        let piece = all
            .strip_prefix(given)
            .ok_or_else(|| TokenizerError::Decode {
                reason: format!("{given:?} became {all:?} when an id was added"),
            })?
            .to_owned();
        if !piece.is_empty() {
            self.window.drain(..self.settled);
            self.settled = self.window.len();
        }
        Ok(piece)
    }

    fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.tokenizer.decode(ids, self.skip_special)
    }
}
