//! Which part of a rendered conversation an assistant said.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::messages::is_assistant;
use crate::{ChatTemplate, MaskError, Tokenizer};

/// A rendered conversation and the part of it that training learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervised {
    /// The text.
    pub text: String,
    /// The bytes of it that the assistant said, ascending and apart; at least one range.
    pub spans: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Renders a conversation and finds the assistant's turns in it.
    ///
    /// Where the template has `{% generation %}` blocks, their text is the assistant's. Otherwise the turn of assistant
    /// message *i* is found by rendering prefixes: it begins where
    /// `render(messages[..i], add_generation_prompt = true)` ends and it ends where `render(messages[..=i])` ends, less
    /// the white space after the turn's end marker. The end marker (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`: a
    /// special token of `tokenizer` that ends the turn but for white space) belongs to the turn, since the model has to
    /// say it; what the template puts after it does not. A turn without such a marker is kept whole.
    ///
    /// Each prefix must be a prefix of the whole text, byte for byte: a template that reads a message otherwise once
    /// others follow it (Qwen3 drops the reasoning of earlier turns) trains on other prompts than it serves, and is
    /// refused.
    ///
    /// # Errors
    /// [`MaskError::NoAssistant`], [`MaskError::NoGeneration`], [`MaskError::AssistantFirst`],
    /// [`MaskError::RewritesPrompt`], [`MaskError::RewritesTurn`], or what [`ChatTemplate::render`] gives.
    pub fn render_with_mask(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: Option<&Value>,
        extra: &Map<String, Value>,
    ) -> Result<Supervised, MaskError> {
        let whole = self.render_tracked(messages, tools, false, extra)?;
        if !messages.iter().any(is_assistant) {
            return Err(MaskError::NoAssistant);
        }
        let spans = if self.has_generation_blocks() {
            let said = whole.generation.into_iter().filter(|span| !span.is_empty());
            let said: Vec<_> = said.collect();
            if said.is_empty() {
                return Err(MaskError::NoGeneration);
            }
            said
        } else {
            self.spans_by_prefix(tokenizer, messages, tools, extra, &whole.text)?
        };
        Ok(Supervised { text: whole.text, spans })
    }

    fn spans_by_prefix(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: Option<&Value>,
        extra: &Map<String, Value>,
        whole: &str,
    ) -> Result<Vec<Range<usize>>, MaskError> {
        let mut spans = Vec::new();
        for index in (0..messages.len()).filter(|&index| is_assistant(&messages[index])) {
            if index == 0 {
                return Err(MaskError::AssistantFirst);
            }
            let prompt = self.render(&messages[..index], tools, true, extra)?;
            let to_here = self.render(&messages[..=index], tools, false, extra)?;
            if let Some(byte) = difference(&prompt, &to_here) {
                return Err(MaskError::RewritesPrompt { index, byte });
            }
            if let Some(byte) = difference(&to_here, whole) {
                return Err(MaskError::RewritesTurn { index, byte });
            }
            let turn = &to_here[prompt.len()..];
            let end = prompt.len() + said(turn, tokenizer.special_texts()).len();
            if end > prompt.len() {
                spans.push(prompt.len()..end);
            }
        }
        Ok(spans)
    }
}

/// The turn without the white space after its end marker; the whole turn where it has no end marker.
fn said<'a>(turn: &'a str, special: &[String]) -> &'a str {
    let trimmed = turn.trim_end();
    let marked = special.iter().any(|token| !token.is_empty() && trimmed.ends_with(token.as_str()));
    if marked { trimmed } else { turn }
}

/// The first byte at which `prefix` is no prefix of `text`.
fn difference(prefix: &str, text: &str) -> Option<usize> {
    let (prefix, text) = (prefix.as_bytes(), text.as_bytes());
    let common = prefix.iter().zip(text).take_while(|(a, b)| a == b).count();
    (common < prefix.len()).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_marker_is_said_and_the_rest_is_not() {
        let special = ["<|im_end|>".to_owned()];
        assert_eq!(said("hi<|im_end|>\n", &special), "hi<|im_end|>");
        assert_eq!(said("hi <|im_end|> \n\n", &special), "hi <|im_end|>");
        assert_eq!(said("hi\n\n", &special), "hi\n\n");
        assert_eq!(said("", &special), "");
    }

    #[test]
    fn difference_is_the_first_unlike_byte() {
        assert_eq!(difference("ab", "abc"), None);
        assert_eq!(difference("", ""), None);
        assert_eq!(difference("abd", "abc"), Some(2));
        assert_eq!(difference("abc", "ab"), Some(2));
    }
}
