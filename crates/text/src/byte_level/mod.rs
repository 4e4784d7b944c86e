//! Byte-level BPE without the `tokenizers` crate's machinery for normalised strings: the same ids, some times faster.
//!
//! The crate is the reference, and the way for everything that is not recognised here ([`recognize`]) and for single
//! texts that this way leaves alone ([`Declined`]). A text is searched for added tokens ([`whole`]), what lies between
//! is cut to pieces ([`cut`]), and a piece's tokens are looked up ([`words`]) or merged ([`merge`]).

mod classes;
mod cut;
mod merge;
mod recognize;
#[cfg(test)]
mod tests;
mod whole;
mod words;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use classes::CLASSES;
use cut::{Cutter, TooMuchSpace};
use merge::{Merges, Scratch};
use whole::{Segment, WholeTokens};
use words::{Word, Words};

use crate::pre_tokenizer::PreTokenizer;
use crate::tokenizer::Spelled;

/// A byte-level tokenizer.
pub(crate) struct ByteLevel {
    kind: PreTokenizer,
    cutter: Cutter,
    whole: WholeTokens,
    merges: Merges,
    /// Bytes of each token; 0 where bytes cannot make it.
    lengths: Vec<u32>,
    /// Tokens by their bytes, where a piece that is a token is taken without merging.
    pieces: Option<HashMap<Vec<u8>, u32>>,
    /// Whether text is composed (NFC) before it is cut.
    composes: bool,
    /// What threads work with, to be used again: as many as ever encoded at once.
    desks: Mutex<Vec<Desk>>,
}

/// A text that is left to the `tokenizers` crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declined {
    /// Composition may change it.
    NotComposed,
    /// It has a run of white space beyond [`cut::SPACE_LIMIT`].
    TooMuchSpace,
    /// It has a byte for which there is no token.
    UnknownByte,
}

/// What encoding one text takes.
struct Desk {
    words: Words,
    scratch: Scratch,
}

impl From<TooMuchSpace> for Declined {
    fn from(_: TooMuchSpace) -> Declined {
        Declined::TooMuchSpace
    }
}

impl ByteLevel {
    /// The name of the way of cutting.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The ids of a text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, Declined> {
        // English has some four bytes a token.
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.each(text, &mut ids, |_, _| ())?;
        Ok(ids)
    }

    /// The ids of a text, and the bytes of it behind each: whole characters, as the crate counts them.
    pub(crate) fn encode_with_ranges(&self, text: &str) -> Result<Spelled, Declined> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut ranges = Vec::with_capacity(text.len() / 3);
        self.each(text, &mut ids, |range, new| match *new {
            [_] => ranges.push(range),
            _ => {
                let mut at = range.start;
                for &id in new {
                    let end = at + self.lengths[id as usize] as usize;
                    ranges.push(text.floor_char_boundary(at)..text.ceil_char_boundary(end));
                    at = end;
                }
            }
        })?;
        Ok(Spelled { ids, ranges })
    }

    /// Appends the ids of a text, telling those of each token or piece with the bytes that they come from.
    fn each(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        mut told: impl FnMut(Range<usize>, &[u32]),
    ) -> Result<(), Declined> {
        if self.composes && !CLASSES.composed(text) {
            return Err(Declined::NotComposed);
        }
        let mut desk = self.desk();
        let mut spelled = true;
        let done = self.whole.split(text, |segment| match segment {
            Segment::Token(id, range) => {
                ids.push(id);
                told(range, &[id]);
                Ok(())
            }
            Segment::Between(segment) => self.cutter.cut(&text[segment.clone()], |piece| {
                let range = segment.start + piece.start..segment.start + piece.end;
                let before = ids.len();
                spelled &= self.piece(&text.as_bytes()[range.clone()], &mut desk, ids);
                told(range, &ids[before..]);
            }),
        });
        self.desks.lock().unwrap_or_else(PoisonError::into_inner).push(desk);
        done?;
        if spelled { Ok(()) } else { Err(Declined::UnknownByte) }
    }

    fn desk(&self) -> Desk {
        let free = self.desks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| Desk { words: Words::new(), scratch: Scratch::default() })
    }

    /// Appends the ids of a piece; false where one of its bytes has none.
    #[inline]
    fn piece(&self, piece: &[u8], desk: &mut Desk, ids: &mut Vec<u32>) -> bool {
        let word = Word::new(piece);
        if let Some(known) = word.and_then(|word| desk.words.get(word)) {
            ids.extend_from_slice(known);
            return true;
        }
        let before = ids.len();
        match self.pieces.as_ref().and_then(|pieces| pieces.get(piece)) {
            Some(&id) => ids.push(id),
            None if self.merges.spells(piece) => self.merges.apply(piece, &mut desk.scratch, ids),
            None => return false,
        }
        if let Some(word) = word {
            desk.words.keep(word, &ids[before..]);
        }
        true
    }
}
