//! Ids of a conversation and which of them training learns.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::tokenizer::Spelled;
use crate::{ChatTemplate, MaskError, Supervised, Tokenizer};

/// An encoded conversation: one flag per id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The token ids.
    pub ids: Vec<u32>,
    /// Whether the assistant said the token, so that its log-probability counts. As long as `ids`.
    pub supervised: Vec<bool>,
}

impl ChatTemplate {
    /// [Renders](Self::render_with_mask) a conversation and encodes it, without adding a BOS (the template writes its
    /// own).
    ///
    /// # Errors
    /// As [`render_with_mask`](Self::render_with_mask), and [`MaskError::TokenAcrossEdge`] where one token holds bytes
    /// of a turn and of its surroundings: its flag would be wrong either way.
    pub fn encode_with_mask(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: Option<&Value>,
        extra: &Map<String, Value>,
    ) -> Result<Encoded, MaskError> {
        self.render_with_mask(tokenizer, messages, tools, extra)?.encode(tokenizer)
    }
}

impl Supervised {
    /// Encodes the text, with a flag per id: set where the id's bytes lie in a span. The ids before each span are those
    /// of the prompt that generation would encode.
    ///
    /// # Errors
    /// [`MaskError::TokenAcrossEdge`], [`MaskError::PromptIds`] or [`MaskError::Tokenizer`].
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoded, MaskError> {
        let Spelled { ids, ranges } = tokenizer.encode_with_ranges(&self.text)?;
        let mut supervised = Vec::with_capacity(ids.len());
        // Tokens and spans both ascend, so one pass over the spans serves all tokens.
        let mut spans = self.spans.iter().peekable();
        for range in &ranges {
            while spans.next_if(|span| span.end <= range.start).is_some() {}
            let flag = match spans.peek() {
                None => false,
                Some(span) => inside(range, span).map_err(|edge| MaskError::TokenAcrossEdge {
                    token: self.text.get(range.clone()).unwrap_or_default().to_owned(),
                    range: range.clone(),
                    edge,
                })?,
            };
            supervised.push(flag);
        }
        for span in &self.spans {
            self.check_prompt(tokenizer, &ids, &ranges, span.start)?;
        }
        Ok(Encoded { ids, supervised })
    }

    /// Checks that the text before byte `start` has the same ids alone. A special token parts the text before anything
    /// else does, so it is enough to encode again from the last of them on.
    fn check_prompt(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        ranges: &[Range<usize>],
        start: usize,
    ) -> Result<(), MaskError> {
        let end = ranges.partition_point(|range| range.end <= start);
        let from = ids[..end].iter().rposition(|&id| tokenizer.is_special(id)).unwrap_or(0);
        let byte = ranges.get(from).map_or(0, |range| range.start).min(start);
        let alone = tokenizer.encode(&self.text[byte..start], false)?;
        if alone == ids[from..end] { Ok(()) } else { Err(MaskError::PromptIds { byte: start }) }
    }
}

/// Whether a token lies inside a span that does not end before it; the edge that it crosses, if it crosses one.
fn inside(token: &Range<usize>, span: &Range<usize>) -> Result<bool, usize> {
    if token.end <= span.start {
        Ok(false)
    } else if token.start < span.start {
        Err(span.start)
    } else if token.end > span.end {
        Err(span.end)
    } else {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_in_out_or_across() {
        let span = 4..8;
        assert_eq!(inside(&(0..4), &span), Ok(false));
        assert_eq!(inside(&(4..6), &span), Ok(true));
        assert_eq!(inside(&(6..8), &span), Ok(true));
        assert_eq!(inside(&(3..5), &span), Err(4));
        assert_eq!(inside(&(7..9), &span), Err(8));
        assert_eq!(inside(&(3..9), &span), Err(4));
    }
}
