//! Which part of a rendered conversation an assistant said.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::messages::{is_assistant, is_learnt};
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
    /// A message with `train: false` is rendered and not learnt.
    ///
    /// Each prefix must be a prefix of the whole text, byte for byte: a template that reads a message otherwise once
    /// others follow it (Qwen3 drops the reasoning of earlier turns) trains on other prompts than it serves, and is
    /// refused. A turn that is not learnt may be rewritten: the turns after it see what generation shows them.
    ///
    /// # Errors
    /// [`MaskError::NoAssistant`], [`MaskError::NoneTrained`], [`MaskError::NoGeneration`], [`MaskError::Blocks`],
    /// [`MaskError::AssistantFirst`], [`MaskError::RewritesPrompt`], [`MaskError::RewritesTurn`], or what
    /// [`ChatTemplate::render`] gives.
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
        if !messages.iter().any(is_learnt) {
            return Err(MaskError::NoneTrained);
        }
        let spans = if self.has_generation_blocks() {
            spans_of_blocks(whole.generation, messages)?
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
        for index in (0..messages.len()).filter(|&index| is_learnt(&messages[index])) {
            if index == 0 {
                return Err(MaskError::AssistantFirst);
            }
            let prompt = self.render(&messages[..index], tools, true, extra)?;
            // The last turn ends where the whole does, which is rendered already.
            let to_here = if index + 1 == messages.len() {
                Cow::Borrowed(whole)
            } else {
                Cow::Owned(self.render(&messages[..=index], tools, false, extra)?)
            };
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

/// The blocks that have text, without those of messages that are not learnt.
fn spans_of_blocks(
    blocks: Vec<Range<usize>>,
    messages: &[Value],
) -> Result<Vec<Range<usize>>, MaskError> {
    let said: Vec<Range<usize>> = blocks.into_iter().filter(|block| !block.is_empty()).collect();
    if said.is_empty() {
        return Err(MaskError::NoGeneration);
    }
    let assistants: Vec<&Value> = messages.iter().filter(|message| is_assistant(message)).collect();
    if assistants.iter().all(|message| is_learnt(message)) {
        return Ok(said);
    }
    if said.len() != assistants.len() {
        return Err(MaskError::Blocks { blocks: said.len(), assistants: assistants.len() });
    }
    let learnt = said.into_iter().zip(assistants).filter(|(_, message)| is_learnt(message));
    Ok(learnt.map(|(block, _)| block).collect())
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
