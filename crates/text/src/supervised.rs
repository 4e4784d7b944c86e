//! Which part of a rendered conversation an assistant said.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::messages::{is_assistant, is_learnt};
use crate::template::Prepared;
use crate::{ChatTemplate, MaskError, Rendered, Tokenizer};

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
    /// The turn of assistant message *i* is found by rendering prefixes: it begins where
    /// `render(messages[..i], add_generation_prompt = true)` ends and it ends where `render(messages[..=i])` ends, less
    /// the white space after the turn's end marker. The end marker (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`: a
    /// special token of `tokenizer` that ends the turn but for white space) belongs to the turn, since the model has to
    /// say it; what the template puts after it does not. A turn without such a marker is kept whole.
    ///
    /// Where the template has `{% generation %}` blocks, they say which text of a turn is learnt; the first must begin where
    /// the turn does, and an end marker that follows the last belongs to it, in the block or not.
    ///
    /// A message with `train: false` is rendered and not learnt.
    ///
    /// Each prefix must be a prefix of the whole text, byte for byte: a template that reads a message otherwise once
    /// others follow it (Qwen3 drops the reasoning of earlier turns) trains on other prompts than it serves, and is
    /// refused. A turn that is not learnt may be rewritten: the turns after it see what generation shows them.
    ///
    /// # Errors
    /// [`MaskError::NoAssistant`], [`MaskError::NoneTrained`], [`MaskError::NoGeneration`], [`MaskError::BlockStart`],
    /// [`MaskError::AssistantFirst`], [`MaskError::RewritesPrompt`], [`MaskError::RewritesTurn`], or what
    /// [`ChatTemplate::render`] gives.
    pub fn render_with_mask(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: Option<&Value>,
        extra: &Map<String, Value>,
    ) -> Result<Supervised, MaskError> {
        let prepared = self.prepare(messages, tools, extra)?;
        let whole = prepared.render(messages.len(), false)?;
        if !messages.iter().any(is_assistant) {
            return Err(MaskError::NoAssistant);
        }
        if !messages.iter().any(is_learnt) {
            return Err(MaskError::NoneTrained);
        }
        let spans = spans(&prepared, tokenizer.special_texts(), messages, &whole)?;
        if spans.is_empty() && self.has_generation_blocks() {
            return Err(MaskError::NoGeneration);
        }
        Ok(Supervised { text: whole.text, spans })
    }
}

fn spans(
    prepared: &Prepared<'_>,
    special: &[String],
    messages: &[Value],
    whole: &Rendered,
) -> Result<Vec<Range<usize>>, MaskError> {
    let mut spans = Vec::new();
    for index in (0..messages.len()).filter(|&index| is_learnt(&messages[index])) {
        let turn = turn(prepared, messages.len(), index, &whole.text)?;
        if prepared.has_blocks() {
            spans.extend(blocks(index, &turn, special, whole)?);
        } else {
            let said = said(&whole.text[turn.clone()], special).len();
            spans.push(turn.start..turn.start + said);
        }
    }
    spans.retain(|span| !span.is_empty());
    Ok(spans)
}

/// The bytes of an assistant's turn, from where generation would begin it to where the next message begins.
fn turn(
    prepared: &Prepared<'_>,
    messages: usize,
    index: usize,
    whole: &str,
) -> Result<Range<usize>, MaskError> {
    if index == 0 {
        return Err(MaskError::AssistantFirst);
    }
    let prompt = prepared.render(index, true)?.text;
    // The last turn ends where the whole does, which is rendered already.
    let to_here = if index + 1 == messages {
        Cow::Borrowed(whole)
    } else {
        Cow::Owned(prepared.render(index + 1, false)?.text)
    };
    if let Some(byte) = difference(&prompt, &to_here) {
        return Err(MaskError::RewritesPrompt { index, byte });
    }
    if let Some(byte) = difference(&to_here, whole) {
        return Err(MaskError::RewritesTurn { index, byte });
    }
    Ok(prompt.len()..to_here.len())
}

/// The blocks in a turn, those side by side as one, with the end marker that follows the last.
fn blocks(
    index: usize,
    turn: &Range<usize>,
    special: &[String],
    whole: &Rendered,
) -> Result<Vec<Range<usize>>, MaskError> {
    let reaches_in = |block: &&Range<usize>| {
        block.start < turn.end && (block.end > turn.start || block.start == turn.start)
    };
    let mut spans: Vec<Range<usize>> = Vec::new();
    for block in whole.generation.iter().filter(reaches_in) {
        match spans.last_mut() {
            None if block.start != turn.start => {
                let (block, prompt) = (block.start, turn.start);
                return Err(MaskError::BlockStart { index, block, prompt });
            }
            Some(last) if last.end == block.start => last.end = block.end,
            _ => spans.push(block.clone()),
        }
    }
    if let Some(last) = spans.last_mut() {
        last.end += marker(&whole.text[last.clone()], &whole.text[last.end..turn.end], special);
    }
    Ok(spans)
}

/// The bytes up to the end of the marker that follows a block's text; 0 where the text has one, or none follows.
fn marker(said: &str, rest: &str, special: &[String]) -> usize {
    let markers = special.iter().filter(|token| !token.is_empty());
    if markers.clone().any(|token| said.trim_end().ends_with(token.as_str())) {
        return 0;
    }
    let space = rest.len() - rest.trim_start().len();
    markers
        .filter(|token| rest[space..].starts_with(token.as_str()))
        .map(|token| space + token.len())
        .max()
        .unwrap_or(0)
}

/// The turn without the white space after its end marker; the whole turn where it has no end marker.
fn said<'a>(turn: &'a str, special: &[String]) -> &'a str {
    let trimmed = turn.trim_end();
    let marked = special.iter().any(|token| !token.is_empty() && trimmed.ends_with(token.as_str()));
    if marked { trimmed } else { turn }
}

/// The first byte at which `prefix` is no prefix of `text`.
fn difference(prefix: &str, text: &str) -> Option<usize> {
    if text.starts_with(prefix) {
        return None;
    }
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
