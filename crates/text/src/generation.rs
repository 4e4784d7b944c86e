//! `{% generation %}` blocks: transformers' own addition to Jinja, around the text that an assistant said.
//!
//! The engine has no such tag, so the blocks are rewritten to call blocks of a function that puts a marker before and
//! after the text; after rendering the markers are taken out and become ranges.

use std::ops::Range;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, State};

use crate::TemplateError;

/// The function that `{% generation %}` becomes a call of.
pub(crate) const FUNCTION: &str = "__generation_block__";

// Noncharacters: Unicode keeps them for internal use, and text that contains one is refused.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// Rewrites the tags, keeping every line where it is. The flag says whether there were any.
pub(crate) fn rewrite(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut found = false;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close + "%}".len());
        let inner = tag[2..tag.len() - 2].trim_start_matches(['-', '+']);
        let word = inner.trim_end_matches(['-', '+']).trim();
        let call = format!("call {FUNCTION}()");
        match word {
            "generation" => out.push_str(&tag.replacen("generation", &call, 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endcall", 1)),
            _ => out.push_str(tag),
        }
        found |= word == "generation";
        rest = after;
    }
    out.push_str(rest);
    (out, found)
}

/// The function behind the tag: the block's text between markers.
pub(crate) fn block(state: &State<'_, '_>, kwargs: Kwargs) -> Result<String, Error> {
    let caller: Value = kwargs.get("caller")?;
    let text = caller.call(state, &[])?;
    Ok(format!("{OPEN}{text}{CLOSE}"))
}

/// Takes the markers out of a rendering: the text, and the bytes of it that were inside blocks.
pub(crate) fn take_markers(marked: &str) -> Result<(String, Vec<Range<usize>>), TemplateError> {
    let mut text = String::with_capacity(marked.len());
    let mut ranges = Vec::new();
    let mut opened: Option<usize> = None;
    for character in marked.chars() {
        match (character, opened) {
            (OPEN, None) => opened = Some(text.len()),
            (CLOSE, Some(start)) => {
                ranges.push(start..text.len());
                opened = None;
            }
            (OPEN | CLOSE, _) => return Err(reserved(character)),
            _ => text.push(character),
        }
    }
    match opened {
        None => Ok((text, ranges)),
        Some(_) => Err(reserved(OPEN)),
    }
}

/// Refuses input that holds a marker, so that every marker in a rendering is the renderer's own.
pub(crate) fn refuse_markers(text: &str) -> Result<(), TemplateError> {
    match text.chars().find(|c| matches!(*c, OPEN | CLOSE)) {
        Some(character) => Err(reserved(character)),
        None => Ok(()),
    }
}

fn reserved(character: char) -> TemplateError {
    TemplateError::ReservedCharacter { code: character.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_rewritten_with_their_white_space_control() {
        let (out, found) =
            rewrite("a{%- generation -%}b{% endgeneration %}\n{% if x %}c{% endif %}{{ '{%' }}");
        assert!(found);
        assert_eq!(
            out,
            "a{%- call __generation_block__() -%}b{% endcall %}\n{% if x %}c{% endif %}{{ '{%' }}"
        );
        assert!(!rewrite("{% set generation = 1 %}").1);
    }

    #[test]
    fn markers_become_ranges() {
        let marked = format!("ab{OPEN}cd{CLOSE}e{OPEN}{CLOSE}");
        let (text, ranges) = take_markers(&marked).unwrap();
        assert_eq!(text, "abcde");
        assert_eq!(ranges, [2..4, 5..5]);
    }

    #[test]
    fn unbalanced_markers_are_refused() {
        for text in ["\u{FDD0}a", "a\u{FDD1}", "\u{FDD0}\u{FDD0}a\u{FDD1}"] {
            assert!(matches!(take_markers(text), Err(TemplateError::ReservedCharacter { .. })));
            assert!(refuse_markers(text).is_err());
        }
    }
}
