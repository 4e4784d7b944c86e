//! Pieces that were met before, and their tokens.

/// The longest piece that is kept, in bytes: any word of most languages, with the space before it.
pub(super) const WORD_BYTES: usize = 31;
/// The most tokens of a piece that is kept.
const WORD_IDS: usize = 7;
/// Places, of 64 bytes each: 4 MiB, which holds the words in common use of a language many times.
const PLACES_BITS: u32 = 16;

/// A table of pieces with one place for each hash: what comes later takes the place. It changes no token, only how fast
/// one is found, so it needs no order, and its size is fixed.
pub(super) struct Words {
    places: Vec<Place>,
}

/// The bytes of a piece, zeros after them and their number last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word([u64; 4]);

/// One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Place {
    word: Word,
    count: u32,
    ids: [u32; WORD_IDS],
}

impl Word {
    /// None for a piece that is too long to be kept.
    #[inline]
    pub(super) fn new(piece: &[u8]) -> Option<Word> {
        if piece.len() > WORD_BYTES {
            return None;
        }
        let mut bytes = [0; WORD_BYTES + 1];
        bytes[..piece.len()].copy_from_slice(piece);
        bytes[WORD_BYTES] = piece.len() as u8;
        let (chunks, _) = bytes.as_chunks::<8>();
        Some(Word(std::array::from_fn(|at| u64::from_le_bytes(chunks[at]))))
    }

    #[inline]
    fn place(self) -> usize {
        const ODD: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            0x94d0_49bb_1331_11eb,
            0xd6e8_feb8_6659_fd93,
        ];
        let products = self.0.iter().zip(ODD).map(|(&word, odd)| {
            let product = u128::from(word ^ odd) * u128::from(odd);
            product as u64 ^ (product >> 64) as u64
        });
        let sum = products.fold(0u64, |sum, product| sum.rotate_left(5).wrapping_add(product));
        (sum.wrapping_mul(ODD[0]) >> (u64::BITS - PLACES_BITS)) as usize
    }
}

impl Words {
    pub(super) fn new() -> Words {
        // No piece is empty, so none has the word of zeros.
        let empty = Place { word: Word([0; 4]), count: 0, ids: [0; WORD_IDS] };
        Words { places: vec![empty; 1 << PLACES_BITS] }
    }

    /// The tokens of a piece that is not empty, if it is here.
    #[inline]
    pub(super) fn get(&self, word: Word) -> Option<&[u32]> {
        let place = &self.places[word.place()];
        (place.word == word).then(|| &place.ids[..place.count as usize])
    }

    /// Keeps a piece, unless it has too many tokens.
    pub(super) fn keep(&mut self, word: Word, ids: &[u32]) {
        if ids.len() <= WORD_IDS {
            let place = &mut self.places[word.place()];
            (place.word, place.count) = (word, ids.len() as u32);
            place.ids[..ids.len()].copy_from_slice(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_nothing_else() {
        let mut words = Words::new();
        let word = |piece: &str| Word::new(piece.as_bytes()).unwrap();
        assert_eq!(words.get(word("a")), None);
        words.keep(word("a"), &[7]);
        words.keep(word("a\0"), &[8, 9]);
        assert_eq!(words.get(word("a")), Some(&[7][..]));
        assert_eq!(words.get(word("a\0")), Some(&[8, 9][..]));
        assert_eq!(words.get(word("a\0\0")), None);
        words.keep(word("b"), &[0; WORD_IDS + 1]);
        assert_eq!(words.get(word("b")), None);
    }

    #[test]
    fn a_later_piece_takes_the_place_of_an_earlier_one() {
        let word = |number: u32| Word::new(&number.to_le_bytes()).unwrap();
        let first = word(1);
        let second = (2..).map(word).find(|other| other.place() == first.place()).unwrap();
        let mut words = Words::new();
        words.keep(first, &[1]);
        words.keep(second, &[2]);
        assert_eq!((words.get(first), words.get(second)), (None, Some(&[2][..])));
    }

    #[test]
    fn only_short_pieces_are_words() {
        assert!(Word::new(&[b'a'; WORD_BYTES]).is_some());
        assert!(Word::new(&[b'a'; WORD_BYTES + 1]).is_none());
    }
}
