//! Cutting a dimension into the leaves of the width V.
//!
//! A dimension is a row of equal *units* that must stay whole: a key/value group
//! of heads, a row of the feed-forward, a tile of the padded vocabulary. A leaf
//! is a contiguous run of units. Leaves depend on V and on the dimension only,
//! never on how many ranks there are.

use std::fmt;
use std::ops::Range;

/// Columns of a vocabulary tile: the vocabulary is padded to a multiple of this
/// times the width, so that every leaf is a whole number of tiles.
pub const VOCAB_TILE: usize = 128;

/// The greatest width V.
pub const MAX_WIDTH: usize = 1024;

/// Why a dimension cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutError {
    /// The dimension has no units.
    NoUnits,
    /// A unit has no elements.
    EmptyUnit,
    /// The width is 0 or above [`MAX_WIDTH`].
    Width {
        /// The width asked for.
        width: usize,
    },
    /// The dimension does not fit the address space.
    TooLarge {
        /// Number of units.
        units: usize,
        /// Elements of a unit.
        unit_size: usize,
    },
}

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUnits => write!(f, "a dimension of 0 units has no leaves; check the config"),
            Self::EmptyUnit => write!(f, "a unit of 0 elements cannot be cut; check the config"),
            Self::Width { width } => write!(
                f,
                "width {width} is outside 1..={MAX_WIDTH}; choose a width in that range (8 is usual)"
            ),
            Self::TooLarge { units, unit_size } => write!(
                f,
                "{units} units of {unit_size} elements overflow the address space; check the config"
            ),
        }
    }
}

impl std::error::Error for CutError {}

/// Cuts `units` units of `unit_size` elements into leaves for the width `width`;
/// the ranges are in elements, contiguous and ascending, none empty.
///
/// - With fewer units than the width, each unit is a leaf (the finest natural
///   cut): SmolLM2's 3 key/value groups give 3 leaves at any width above 2.
/// - Otherwise there are `width` leaves. A node over `w` leaves and `u` units
///   gives `w / 2` leaves and `u * (w / 2) / w` units to its left child (both
///   rounding down), so sizes are equal when the width divides the units, differ
///   by at most one unit when the width is a power of two, and a tensor-parallel
///   degree that divides a power-of-two width always finds a leaf boundary at
///   its own cut.
///
/// # Errors
/// [`CutError`], one variant per wrong argument.
pub fn cut(units: usize, unit_size: usize, width: usize) -> Result<Vec<Range<usize>>, CutError> {
    if units == 0 {
        return Err(CutError::NoUnits);
    }
    if unit_size == 0 {
        return Err(CutError::EmptyUnit);
    }
    check_width(width)?;
    // `units * width` appears in the split; `units * unit_size` in the ranges.
    if units.checked_mul(unit_size.max(width)).is_none() {
        return Err(CutError::TooLarge { units, unit_size });
    }
    let mut leaves = Vec::with_capacity(width.min(units));
    split(0..units, width.min(units), unit_size, &mut leaves);
    Ok(leaves)
}

fn split(units: Range<usize>, width: usize, unit_size: usize, leaves: &mut Vec<Range<usize>>) {
    if width == 1 {
        leaves.push(units.start * unit_size..units.end * unit_size);
        return;
    }
    let left = width / 2;
    let middle = units.start + units.len() * left / width;
    split(units.start..middle, left, unit_size, leaves);
    split(middle..units.end, width - left, unit_size, leaves);
}

/// The vocabulary padded to a multiple of [`VOCAB_TILE`] times the width:
/// 151,936 becomes 152,576 at width 8. Padding columns hold a logit of `-inf`.
///
/// # Errors
/// [`CutError`]: an empty vocabulary, a wrong width, a size that overflows.
pub fn padded_vocab(vocab: usize, width: usize) -> Result<usize, CutError> {
    if vocab == 0 {
        return Err(CutError::NoUnits);
    }
    check_width(width)?;
    vocab
        .checked_next_multiple_of(VOCAB_TILE * width)
        .ok_or(CutError::TooLarge { units: vocab, unit_size: 1 })
}

/// The leaves of a vocabulary, as ranges of padded columns: equal, and a whole
/// number of tiles each.
///
/// # Errors
/// As [`padded_vocab`].
pub fn cut_vocab(vocab: usize, width: usize) -> Result<Vec<Range<usize>>, CutError> {
    let tiles = padded_vocab(vocab, width)? / VOCAB_TILE;
    cut(tiles, VOCAB_TILE, width)
}

fn check_width(width: usize) -> Result<(), CutError> {
    if (1..=MAX_WIDTH).contains(&width) { Ok(()) } else { Err(CutError::Width { width }) }
}
