//! An exact, order-free sum of squares: the gradient norm.
//!
//! The square of an `f32` is an integer below `2^48` times a power of two not
//! below `2^-298`, so a sum of squares fits a fixed-point integer of 640 bits
//! without any rounding. Integer addition has no order: any split of the values
//! over threads, ranks and calls gives the same integer, which is rounded once.

use std::fmt;

/// Limbs of the accumulator, 64 bits each, lowest first. Bit 0 has the weight
/// `2^-298`; the square of the greatest `f32` ends at bit 554, which leaves room
/// for `2^86` values.
const LIMBS: usize = 10;

/// Weight of bit 0, as a power of two: the square of the least subnormal.
const LOWEST_EXPONENT: i32 = -298;

/// Values a bucket takes before it could overflow: `2^16 * (2^24 - 1)^2 < 2^64`.
const BUCKET_VALUES: usize = 1 << 16;

/// Tables of buckets that take values in turn, so that neighbours of one exponent
/// do not wait for each other.
const TABLES: usize = 4;

/// Exponent fields of an `f32`.
const EXPONENTS: usize = 256;

/// Words of [`SumOfSquares::to_words`]: the limbs, then the state.
pub const WORDS: usize = LIMBS + 1;

/// What has been met besides finite values; the greater wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Finite = 0,
    Infinite = 1,
    NotANumber = 2,
}

/// Words that no [`SumOfSquares`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidState {
    /// The state word found.
    pub word: u64,
}

impl fmt::Display for InvalidState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "word {LIMBS} of an exact sum holds {}, not a state 0, 1 or 2; the {WORDS} words were not written by `to_words`",
            self.word
        )
    }
}

impl std::error::Error for InvalidState {}

/// The exact sum of the squares of the `f32` values added so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumOfSquares {
    limbs: [u64; LIMBS],
    state: State,
}

impl Default for SumOfSquares {
    fn default() -> Self {
        Self::new()
    }
}

impl SumOfSquares {
    /// The empty sum.
    #[must_use]
    pub fn new() -> Self {
        Self { limbs: [0; LIMBS], state: State::Finite }
    }

    /// Adds the square of every value.
    pub fn add(&mut self, values: &[f32]) {
        for block in values.chunks(TABLES * BUCKET_VALUES) {
            self.add_block(block);
        }
    }

    /// Adds at most `TABLES * BUCKET_VALUES` values: squared significands go to a
    /// bucket for each exponent field, then the buckets to the limbs.
    fn add_block(&mut self, block: &[f32]) {
        let mut tables = [[0u64; EXPONENTS]; TABLES];
        let mut groups = block.chunks_exact(TABLES);
        for group in &mut groups {
            for (table, &x) in tables.iter_mut().zip(group) {
                let (e, square) = exponent_and_square(x);
                table[e] += square;
            }
        }
        for (table, &x) in tables.iter_mut().zip(groups.remainder()) {
            let (e, square) = exponent_and_square(x);
            table[e] += square;
        }
        for table in &tables {
            for (e, &bucket) in table[..EXPONENTS - 1].iter().enumerate() {
                // Field 0 (subnormal) has the exponent of field 1.
                self.add_shifted(bucket, 2 * (e.max(1) - 1));
            }
        }
        if tables.iter().any(|table| table[EXPONENTS - 1] != 0) {
            let nan = block.iter().any(|x| x.is_nan());
            let met = if nan { State::NotANumber } else { State::Infinite };
            self.state = self.state.max(met);
        }
    }

    /// Adds `value * 2^shift` to the accumulator, `shift <= 506`.
    fn add_shifted(&mut self, value: u64, shift: usize) {
        if value == 0 {
            return;
        }
        let wide = u128::from(value) << (shift % 64);
        let first = shift / 64;
        let mut carry = false;
        let parts = [wide as u64, (wide >> 64) as u64];
        let parts = parts.into_iter().chain(std::iter::repeat(0));
        for (limb, part) in self.limbs[first..].iter_mut().zip(parts) {
            (*limb, carry) = add_with_carry(*limb, part, carry);
        }
        debug_assert!(!carry, "2^86 values cannot be added in a lifetime");
    }

    /// Adds the sum that another thread or rank formed.
    pub fn merge(&mut self, other: &Self) {
        let mut carry = false;
        for (limb, &part) in self.limbs.iter_mut().zip(&other.limbs) {
            (*limb, carry) = add_with_carry(*limb, part, carry);
        }
        debug_assert!(!carry, "2^86 values cannot be added in a lifetime");
        self.state = self.state.max(other.state);
    }

    /// The accumulator as words, to be exchanged between ranks; equal sums have
    /// equal words.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..LIMBS].copy_from_slice(&self.limbs);
        words[LIMBS] = self.state as u64;
        words
    }

    /// The accumulator that [`to_words`](Self::to_words) wrote.
    ///
    /// # Errors
    /// [`InvalidState`] when the last word is not a state.
    pub fn from_words(words: &[u64; WORDS]) -> Result<Self, InvalidState> {
        let state = match words[LIMBS] {
            0 => State::Finite,
            1 => State::Infinite,
            2 => State::NotANumber,
            word => return Err(InvalidState { word }),
        };
        let mut limbs = [0; LIMBS];
        limbs.copy_from_slice(&words[..LIMBS]);
        Ok(Self { limbs, state })
    }

    /// The sum, correctly rounded to `f64` (half to even): NaN if any value was
    /// NaN, else `+inf` if any was infinite. No finite sum overflows an `f64`.
    #[must_use]
    pub fn sum(&self) -> f64 {
        match self.state {
            State::NotANumber => return f64::from_bits(0x7ff8_0000_0000_0000),
            State::Infinite => return f64::INFINITY,
            State::Finite => {}
        }
        let Some(top) = self.limbs.iter().rposition(|&limb| limb != 0) else {
            return 0.0;
        };
        // The 128 bits from the highest set bit downwards, and whether any follow.
        let at = |back: usize| top.checked_sub(back).map_or(0, |i| self.limbs[i]);
        let zeros = self.limbs[top].leading_zeros();
        let wide = (u128::from(at(0)) << 64 | u128::from(at(1))) << zeros;
        let wide = wide | u128::from(at(2).checked_shr(64 - zeros).unwrap_or(0));
        let rest = at(2).checked_shl(zeros).unwrap_or(0) != 0
            || self.limbs[..top.saturating_sub(2)].iter().any(|&l| l != 0);
        let exponent = LOWEST_EXPONENT + 64 * (top as i32 - 1) - zeros as i32;
        // A sticky lowest bit makes the conversion of the 128 bits round as the
        // whole would: its last kept bit is 75 places above.
        let significand = (wide | u128::from(rest)) as f64;
        scale(significand, exponent)
    }

    /// The Euclidean norm: the `f64` square root of [`sum`](Self::sum), rounded
    /// to `f32`.
    #[must_use]
    pub fn norm(&self) -> f32 {
        let norm = self.sum().sqrt() as f32;
        if norm.is_nan() { crate::elementary::CANONICAL_NAN } else { norm }
    }
}

/// The exponent field of `x` and the square of its integer significand.
#[inline]
fn exponent_and_square(x: f32) -> (usize, u64) {
    let bits = x.to_bits();
    let exponent = (bits >> 23) & 0xff;
    let implicit = u32::from(exponent != 0) << 23;
    let significand = u64::from((bits & 0x007f_ffff) | implicit);
    (exponent as usize, significand * significand)
}

fn add_with_carry(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first | second)
}

/// `x * 2^exponent`, exact: `x` is in `[2^127, 2^128]` and the product is a
/// normal number, so a shift of the exponent field is all there is.
fn scale(x: f64, exponent: i32) -> f64 {
    f64::from_bits(x.to_bits().wrapping_add_signed(i64::from(exponent) << 52))
}
