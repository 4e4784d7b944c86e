//! Counter-based random numbers: Philox4x32-10.
//!
//! A number is a function of (seed, purpose, stream, position), never of what was
//! drawn before, so any rank can draw any of them in any order. Philox is from
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
//! (SC 2011); the tests hold the known answers published with Random123.

use crate::elementary::{ln, sin_cos};
use crate::fused::fused;

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// `2^-24`, the distance of neighbouring uniforms.
const UNIFORM_STEP: f32 = f32::from_bits((127 - 24) << 23);

const TAU: f32 = f32::from_bits(0x40c9_0fdb); // 6.283_185_5

/// One Philox4x32-10 block: ten rounds over a 128-bit counter and a 64-bit key,
/// words lowest first.
#[must_use]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) =
            ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// What numbers are drawn for: equal seeds and streams of different purposes are
/// independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Initial values of parameters; the stream is the parameter's index.
    Init = 1,
    /// Sampling of tokens; the stream is the sample's id, the position the token's.
    Sample = 2,
    /// Order of data; the stream is the epoch.
    Order = 3,
    /// Dropout; the stream is the application's index.
    Dropout = 4,
}

/// The random numbers of one (seed, purpose, stream), addressed by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    key: [u32; 2],
    stream: [u32; 2],
}

impl Numbers {
    /// Names a sequence of numbers.
    ///
    /// The key of its blocks is the first two words of the block with counter
    /// `[purpose, 0, 0, 0]` under the key `seed` (low word first).
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose, stream: u64) -> Self {
        let [k0, k1, ..] = philox4x32([purpose as u32, 0, 0, 0], words(seed));
        Self { key: [k0, k1], stream: words(stream) }
    }

    /// The four words of block `index`: counter
    /// `[index low, index high, stream low, stream high]`.
    #[must_use]
    pub fn block(&self, index: u64) -> [u32; 4] {
        let [i0, i1] = words(index);
        philox4x32([i0, i1, self.stream[0], self.stream[1]], self.key)
    }

    /// The uniform number in `[0, 1)` at `position`: word 0 of block `position`,
    /// its high 24 bits times `2^-24`.
    #[must_use]
    pub fn uniform(&self, position: u64) -> f32 {
        uniform_of(self.block(position)[0])
    }

    /// An integer in `0..bound` at `position`, 0 for a bound of 0: the high half
    /// of the 128-bit product of `bound` and words 0 (low) and 1 (high) of block
    /// `position`. No value is more likely than another by over `bound / 2^64`.
    #[must_use]
    pub fn below(&self, position: u64, bound: u64) -> u64 {
        let [w0, w1, ..] = self.block(position);
        let word = u64::from(w1) << 32 | u64::from(w0);
        ((u128::from(word) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `out` with uniforms in `[low, high)` for the elements `first..` of a
    /// tensor: element `e` is `fma(u, high - low, low)` with `u` from word `e % 4`
    /// of block `e / 4`. The product may round up to `high` itself.
    ///
    /// A part of a tensor gets the values that the whole would have there.
    pub fn fill_uniform(&self, first: u64, low: f32, high: f32, out: &mut [f32]) {
        let interval = (low, high - low);
        fused((self, first, out, interval, uniforms), fill);
    }

    /// Fills `out` with normal deviates of the given standard deviation for the
    /// elements `first..` of a tensor; a part gets the values of the whole.
    ///
    /// Element `e` belongs to the pair `(a, b)` of words `0, 1` (`e % 4` below 2)
    /// or `2, 3` of block `e / 4`, by the method of Box and Muller:
    /// `u = float((a >> 8) + 1) * 2^-24`, `r = sqrt(-2 * ln(u))`,
    /// `(s, c) = sin_cos(TAU * uniform(b))`, and the element is
    /// `(r * c) * deviation` when `e` is even, `(r * s) * deviation` when odd.
    pub fn fill_normal(&self, first: u64, deviation: f32, out: &mut [f32]) {
        fused((self, first, out, deviation, normals), fill);
    }

    /// Puts `items` in random order (Fisher and Yates): for `i` from the last
    /// down to 1, swaps `i` with `below(i, i + 1)`.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.below(i as u64, i as u64 + 1);
            items.swap(i, other as usize);
        }
    }
}

fn words(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// What [`fill`] takes: elements `4 i ..= 4 i + 3` of the tensor are
/// `values(block i, parameters)`, and `out` starts at element `first`.
type Fill<'a, P, V> = (&'a Numbers, u64, &'a mut [f32], P, V);

#[inline(always)]
fn fill<P: Copy, V: Fn([u32; 4], P) -> [f32; 4]>(
    (numbers, first, out, parameters, values): Fill<'_, P, V>,
) {
    let mut index = first / 4;
    let mut skip = (first % 4) as usize;
    let mut rest = out;
    while !rest.is_empty() {
        let four = values(numbers.block(index), parameters);
        let (now, later) = rest.split_at_mut((4 - skip).min(rest.len()));
        now.copy_from_slice(&four[skip..skip + now.len()]);
        (index, skip, rest) = (index.wrapping_add(1), 0, later);
    }
}

#[inline(always)]
fn uniforms(words: [u32; 4], (low, width): (f32, f32)) -> [f32; 4] {
    words.map(|word| uniform_of(word).mul_add(width, low))
}

#[inline(always)]
fn normals([a, b, c, d]: [u32; 4], deviation: f32) -> [f32; 4] {
    let (x0, x1) = normal_pair(a, b);
    let (x2, x3) = normal_pair(c, d);
    [x0 * deviation, x1 * deviation, x2 * deviation, x3 * deviation]
}

#[inline(always)]
fn uniform_of(word: u32) -> f32 {
    (word >> 8) as f32 * UNIFORM_STEP
}

#[inline(always)]
fn normal_pair(a: u32, b: u32) -> (f32, f32) {
    // In (0, 1]: the logarithm is finite.
    let u = ((a >> 8) + 1) as f32 * UNIFORM_STEP;
    let radius = (-2.0 * ln(u)).sqrt();
    let (sin, cos) = sin_cos(TAU * uniform_of(b));
    (radius * cos, radius * sin)
}
