//! Tokens that text is searched for before it is cut: special ones, and others that were added to a vocabulary.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// Finds added tokens in text.
pub(super) struct WholeTokens {
    /// Those that are looked for in text as it is.
    plain: Search,
    /// Those that are looked for in normalized text, between the plain ones.
    normalized: Search,
}

/// The leftmost and there the longest of some tokens.
struct Search {
    tokens: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// A part of a text: a token, or what lies between tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Token(u32, Range<usize>),
    Between(Range<usize>),
}

impl WholeTokens {
    /// From tokens by id. What a token may ask for and is not done here is the error.
    pub(super) fn new(
        added: impl IntoIterator<Item = (u32, AddedToken)>,
    ) -> Result<WholeTokens, String> {
        let mut tokens: Vec<_> =
            added.into_iter().filter(|(_, token)| !token.content.is_empty()).collect();
        tokens.sort_unstable_by_key(|(id, _)| *id);
        for (id, token) in &tokens {
            let asks = [
                (token.single_word, "stands as a word of its own only"),
                (token.lstrip || token.rstrip, "takes the white space beside it"),
                // Its normalized form would have to be looked for.
                (token.normalized && !token.content.is_ascii(), "is normalized"),
            ];
            if let Some((_, what)) = asks.iter().find(|(asked, _)| *asked) {
                return Err(format!("the added token {:?} ({id}) {what}", token.content));
            }
        }
        let search = |normalized: bool| {
            let wanted = tokens.iter().filter(|(_, token)| token.normalized == normalized);
            Search::new(wanted.map(|(id, token)| (*id, token.content.as_str())).collect())
        };
        Ok(WholeTokens { plain: search(false)?, normalized: search(true)? })
    }

    /// Gives every part of a text in order, none of them empty.
    pub(super) fn split<E>(
        &self,
        text: &str,
        mut segment: impl FnMut(Segment) -> Result<(), E>,
    ) -> Result<(), E> {
        self.plain.split(text, 0..text.len(), |found| match found {
            Segment::Between(range) => self.normalized.split(text, range, &mut segment),
            token => segment(token),
        })
    }
}

impl Search {
    fn new(tokens: Vec<(u32, &str)>) -> Result<Search, String> {
        let ids = tokens.iter().map(|(id, _)| *id).collect();
        if tokens.is_empty() {
            return Ok(Search { tokens: None, ids });
        }
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(_, content)| content))
            .map_err(|error| format!("the added tokens cannot be searched for: {error}"))?;
        Ok(Search { tokens: Some(built), ids })
    }

    fn split<E>(
        &self,
        text: &str,
        within: Range<usize>,
        mut segment: impl FnMut(Segment) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = within.start;
        let found = self.tokens.iter().flat_map(|tokens| tokens.find_iter(&text[within.clone()]));
        for token in found {
            let range = within.start + token.start()..within.start + token.end();
            if at < range.start {
                segment(Segment::Between(at..range.start))?;
            }
            at = range.end;
            segment(Segment::Token(self.ids[token.pattern().as_usize()], range))?;
        }
        if at < within.end {
            segment(Segment::Between(at..within.end))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(tokens: &[(&str, bool)]) -> Vec<(u32, AddedToken)> {
        let token = |&(text, normalized): &(&str, bool)| {
            AddedToken::from(text, false).normalized(normalized)
        };
        (0..).zip(tokens.iter().map(token)).collect()
    }

    fn parts(tokens: &[(&str, bool)], text: &str) -> Vec<Segment> {
        let mut parts = Vec::new();
        let whole = WholeTokens::new(added(tokens)).unwrap();
        whole
            .split(text, |segment| -> Result<(), ()> {
                parts.push(segment);
                Ok(())
            })
            .unwrap();
        parts
    }

    #[test]
    fn the_longest_of_the_leftmost_is_taken_and_plain_ones_first() {
        use Segment::{Between, Token};
        assert_eq!(
            parts(&[("<a>", false), ("<a><b>", false)], "x<a><b><a>"),
            [Between(0..1), Token(1, 1..7), Token(0, 7..10)]
        );
        // A normalized token that begins earlier gives way to a plain one.
        assert_eq!(
            parts(&[("bc", true), ("cd", false)], "abcd bc"),
            [Between(0..2), Token(1, 2..4), Between(4..5), Token(0, 5..7)]
        );
        assert_eq!(parts(&[], "ab"), [Between(0..2)]);
        assert_eq!(parts(&[("<a>", false)], ""), []);
    }

    #[test]
    fn tokens_that_ask_for_more_are_refused() {
        let refusal = |token: AddedToken| WholeTokens::new([(5, token)]).err();
        let token = || AddedToken::from("<é>", true);
        assert_eq!(refusal(token().normalized(false)), None);
        for (asking, what) in [
            (token().normalized(false).lstrip(true), "white space"),
            (token().normalized(false).rstrip(true), "white space"),
            (token().normalized(false).single_word(true), "a word of its own"),
            (token().normalized(true), "is normalized"),
        ] {
            let said = refusal(asking).unwrap();
            assert!(said.contains(what) && said.contains("\"<é>\" (5)"), "{said}");
        }
    }
}
