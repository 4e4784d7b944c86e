//! Pieces of text, as the patterns of byte-level vocabularies cut it, without an engine for patterns.
//!
//! Every pattern known here matches at every place, so a text is cut without gaps, and its alternatives begin with
//! characters of different classes, so that looking one or two characters ahead decides between them.

use std::ops::Range;

use super::classes::{CLASSES, Classes, DIGIT, LETTER, LINE, NUMBER, SPACE};
use crate::pre_tokenizer::PreTokenizer;

/// The longest run of white space, in bytes, that is cut here. The reference's engine gives up on a run of a million and
/// leaves the rest of the text in one piece; nothing that odd is imitated.
pub(super) const SPACE_LIMIT: usize = 1 << 16;

/// A run of white space longer than [`SPACE_LIMIT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuchSpace;

/// Cuts text in one way.
pub(super) struct Cutter {
    kind: PreTokenizer,
    classes: &'static Classes,
}

impl Cutter {
    pub(super) fn new(kind: PreTokenizer) -> Cutter {
        Cutter { kind, classes: &CLASSES }
    }

    /// Gives every piece of `text`, in order; together they are the text.
    pub(super) fn cut(
        &self,
        text: &str,
        mut piece: impl FnMut(Range<usize>),
    ) -> Result<(), TooMuchSpace> {
        let scan = Scan { text, classes: self.classes };
        match self.kind {
            PreTokenizer::Gpt2 => pieces(&scan, 0, Scan::gpt2, piece),
            PreTokenizer::Llama3 => pieces(&scan, 0, |scan, at| scan.letters_first(at, 3), piece),
            PreTokenizer::Qwen2 => pieces(&scan, 0, |scan, at| scan.letters_first(at, 1), piece),
            PreTokenizer::DigitsGpt2 => {
                let mut at = 0;
                while at < text.len() {
                    let end = scan.run(at, |class| class & DIGIT == 0);
                    // The pattern sees what lies between two digits as a text of its own.
                    let between = Scan { text: &text[..end], classes: self.classes };
                    pieces(&between, at, Scan::gpt2, &mut piece)?;
                    at = end;
                    if let Some((_, length)) = scan.class(at) {
                        piece(at..at + length);
                        at += length;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Pieces from `at` to the end, where `next` tells the end of the piece that begins at a place.
fn pieces<'a>(
    scan: &Scan<'a>,
    mut at: usize,
    next: impl Fn(&Scan<'a>, usize) -> Result<usize, TooMuchSpace>,
    mut piece: impl FnMut(Range<usize>),
) -> Result<(), TooMuchSpace> {
    while at < scan.text.len() {
        let end = next(scan, at)?;
        piece(at..end);
        at = end;
    }
    Ok(())
}

struct Scan<'a> {
    text: &'a str,
    classes: &'a Classes,
}

impl Scan<'_> {
    /// GPT-2's pattern: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
    fn gpt2(&self, at: usize) -> Result<usize, TooMuchSpace> {
        if let Some(length) = contraction(&self.text.as_bytes()[at..], false) {
            return Ok(at + length);
        }
        let (from, class) = self.past_space(at);
        Ok(match class & (LETTER | NUMBER | SPACE) {
            SPACE => self.space(at, self.space_end(at)?),
            LETTER => self.run(from, |class| class & LETTER != 0),
            NUMBER => self.run(from, |class| class & NUMBER != 0),
            _ => self.run(from, is_other),
        })
    }

    /// Llama 3's and Qwen 2's patterns, which differ in how many digits make a piece:
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
    fn letters_first(&self, at: usize, digits: usize) -> Result<usize, TooMuchSpace> {
        if let Some(length) = contraction(&self.text.as_bytes()[at..], true) {
            return Ok(at + length);
        }
        let is_letter = |class| class & LETTER != 0;
        let (class, length) = self.class(at).unwrap_or_default();
        if is_letter(class) {
            return Ok(self.run(at, is_letter));
        }
        if class & NUMBER != 0 {
            return Ok(self.numbers(at, digits));
        }
        let leads = class & LINE == 0 && self.class(at + length).is_some_and(|(c, _)| is_letter(c));
        if leads {
            return Ok(self.run(at + length, is_letter));
        }
        let (from, class) = self.past_space(at);
        if is_other(class) {
            return Ok(self.run(self.run(from, is_other), |class| class & LINE != 0));
        }
        let end = self.space_end(at)?;
        let line =
            self.text.as_bytes()[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n'));
        Ok(match line {
            Some(line) => at + line + 1,
            None => self.space(at, end),
        })
    }

    /// The class and the bytes of the character at `at`; none at the end.
    #[inline]
    fn class(&self, at: usize) -> Option<(u8, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            return Some((self.classes.of_ascii(byte), 1));
        }
        let character = self.text[at..].chars().next()?;
        Some((self.classes.of(character), character.len_utf8()))
    }

    /// Where a run of characters of some class that begins at `at` ends.
    #[inline]
    fn run(&self, mut at: usize, belongs: impl Fn(u8) -> bool) -> usize {
        while let Some((class, length)) = self.class(at)
            && belongs(class)
        {
            at += length;
        }
        at
    }

    /// What ` ?` before a class that is not white space does: the place and the class of the character behind one
    /// space, if that is no white space, else those of the character at `at`.
    #[inline]
    fn past_space(&self, at: usize) -> (usize, u8) {
        if self.text.as_bytes()[at] == b' '
            && let Some((next, _)) = self.class(at + 1)
            && next & SPACE == 0
        {
            return (at + 1, next);
        }
        (at, self.class(at).map_or(0, |(class, _)| class))
    }

    fn numbers(&self, mut at: usize, most: usize) -> usize {
        for _ in 0..most {
            match self.class(at) {
                Some((class, length)) if class & NUMBER != 0 => at += length,
                _ => break,
            }
        }
        at
    }

    fn space_end(&self, at: usize) -> Result<usize, TooMuchSpace> {
        let end = self.run(at, |class| class & SPACE != 0);
        if end - at > SPACE_LIMIT { Err(TooMuchSpace) } else { Ok(end) }
    }

    /// `\s+(?!\S)|\s+` on the run of white space `at..end`: all of it at the end of the text; else without its last
    /// character, which belongs to what follows, unless it is the only one.
    fn space(&self, at: usize, end: usize) -> usize {
        if end == self.text.len() {
            return end;
        }
        match self.text[at..end].char_indices().next_back() {
            Some((last, _)) if last > 0 => at + last,
            _ => end,
        }
    }
}

/// Neither white space nor letter nor number.
fn is_other(class: u8) -> bool {
    class & (LETTER | NUMBER | SPACE) == 0
}

/// The bytes of `'s|'t|'re|'ve|'m|'ll|'d` at the beginning of a text. Without regard to case `s` is also U+017F, the
/// long s, as the engine folds it; no other of these letters has a third form.
fn contraction(text: &[u8], any_case: bool) -> Option<usize> {
    const LONG_S: [u8; 2] = [0xc5, 0xbf];
    let [b'\'', rest @ ..] = text else {
        return None;
    };
    if any_case && rest.starts_with(&LONG_S) {
        return Some(1 + LONG_S.len());
    }
    let letter = |at: usize| match rest.get(at) {
        Some(byte) if any_case => byte.to_ascii_lowercase(),
        Some(&byte) => byte,
        None => 0,
    };
    match (letter(0), letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(3),
        _ => None,
    }
}
