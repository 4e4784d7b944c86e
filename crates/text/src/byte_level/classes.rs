//! What the patterns ask of a character, by table.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization_alignments::{
    IsNormalized, char::canonical_combining_class, is_nfc_quick,
};

/// `\p{L}`.
pub(super) const LETTER: u8 = 1;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 2;
/// `\s`.
pub(super) const SPACE: u8 = 4;
/// `[\r\n]`.
pub(super) const LINE: u8 = 8;
/// What the stage `Digits` cuts out: the standard library's idea of a number, which may be of another Unicode version.
pub(super) const DIGIT: u8 = 16;
/// NFC may change a text that holds it: a character that is not its own composition, may compose with one before it, or
/// changes places with one.
pub(super) const COMPOSES: u8 = 32;

/// The first character that composition can change or join to another: U+0300, by UAX #15.
const FIRST_COMPOSING: char = '\u{300}';

/// Characters of one entry of the upper table.
const BLOCK: usize = 256;
const BLOCK_BITS: u32 = BLOCK.trailing_zeros();

/// The classes of every character, equal blocks once.
pub(super) struct Classes {
    /// The block of each 256 characters.
    upper: Vec<u16>,
    blocks: Vec<[u8; BLOCK]>,
}

/// Built when first asked for: some milliseconds.
pub(super) static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::build);

impl Classes {
    /// From the tables of the very crates that the reference runs on, so that a new Unicode version reaches both at once.
    fn build() -> Classes {
        let mut flat = vec![0u8; char::MAX as usize + 1];
        for (pattern, bit) in [(r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE)] {
            for (first, last) in ranges(pattern) {
                flat[first as usize..=last as usize].iter_mut().for_each(|class| *class |= bit);
            }
        }
        for line in ['\r', '\n'] {
            flat[line as usize] |= LINE;
        }
        for character in '\0'..=char::MAX {
            if character.is_numeric() {
                flat[character as usize] |= DIGIT;
            }
            if character >= FIRST_COMPOSING && composes(character) {
                flat[character as usize] |= COMPOSES;
            }
        }
        let mut classes = Classes { upper: Vec::new(), blocks: Vec::new() };
        let mut seen = HashMap::new();
        for block in flat.chunks_exact(BLOCK) {
            let block: [u8; BLOCK] = block.try_into().expect("a chunk has its length");
            let next = classes.blocks.len() as u16; // at most 0x1100
            let index = *seen.entry(block).or_insert(next);
            if index == next {
                classes.blocks.push(block);
            }
            classes.upper.push(index);
        }
        classes
    }

    pub(super) fn of(&self, character: char) -> u8 {
        let code = character as u32;
        let block = self.upper[(code >> BLOCK_BITS) as usize];
        self.blocks[usize::from(block)][code as usize % BLOCK]
    }

    /// The class of a character of ASCII.
    pub(super) fn of_ascii(&self, byte: u8) -> u8 {
        self.blocks[0][usize::from(byte)]
    }

    /// Whether NFC leaves a text as it is, for sure (the quick check of UAX #15, where "maybe" is no).
    pub(super) fn composed(&self, text: &str) -> bool {
        text.is_ascii()
            || text.chars().all(|character| self.of(character) & COMPOSES == 0)
            // A mark that composes with nothing may stand where it does (Devanagari has one in most sentences).
            || is_nfc_quick(text.chars()) == IsNormalized::Yes
    }
}

fn composes(character: char) -> bool {
    canonical_combining_class(character) != 0
        || is_nfc_quick(std::iter::once(character)) != IsNormalized::Yes
}

/// The characters that a class of one character matches.
fn ranges(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("a class that the engine knows");
    let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
        unreachable!("{pattern} is a class of characters");
    };
    class.ranges().iter().map(|range| (range.start(), range.end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every character against the engine that the `tokenizers` crate asks.
    #[test]
    fn every_class_is_the_engines() {
        for (pattern, bit) in
            [(r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE), (r"[\r\n]", LINE)]
        {
            let regex = tokenizers::utils::SysRegex::new(&format!("^{pattern}$")).unwrap();
            let mut text = [0; 4];
            for character in '\0'..=char::MAX {
                let found = regex.find_iter(character.encode_utf8(&mut text)).next().is_some();
                // `$` holds before a line's end too, so an empty match is no character.
                assert_eq!(CLASSES.of(character) & bit != 0, found, "{pattern} {character:?}");
            }
        }
        for character in '\0'..=char::MAX {
            assert_eq!(CLASSES.of(character) & DIGIT != 0, character.is_numeric());
        }
    }

    /// What is said to be composed is, alone and after any letter; and what is not is caught.
    #[test]
    fn composed_text_is_left_alone_by_nfc() {
        use unicode_normalization_alignments::UnicodeNormalization;
        let composed = |text: &str| text.nfc().map(|(c, _)| c).eq(text.chars());
        for character in '\0'..=char::MAX {
            if CLASSES.of(character) & COMPOSES == 0 {
                for before in ["", "e", "가", "क", "\u{1100}", "ά"] {
                    let text = format!("{before}{character}");
                    assert!(composed(&text), "{text:?}");
                }
            }
        }
        for text in ["e\u{301}", "\u{212b}", "\u{1100}\u{1161}", "\u{301}", "q\u{323}\u{307}"] {
            assert!(!CLASSES.composed(text), "{text:?}");
        }
        for text in ["", "plain", "naïve café", "Привет", "日本語", "안녕", "😀👩‍🚀"]
        {
            assert!(CLASSES.composed(text), "{text:?}");
        }
    }
}
