//! (max, Σexp) of rows of logits: tiles of 128 columns combined in the tree.
//!
//! Inside a tile lanes are columns, as the canon's `LogSumExp::of_tile` says. From
//! there on lanes are rows, up to sixteen at once, so that combining costs a vector
//! operation where it would cost sixteen calls; each lane does what
//! `LogSumExp::combine` does.

use std::ops::Range;

use program::topology::VOCAB_TILE;

use crate::context::Shared;
use crate::simd::{LANES, Vector, exp};

/// Vectors of a tile.
const TILE_VECTORS: usize = VOCAB_TILE / LANES;
/// Deepest stack of a tree: `2^31` leaves.
const DEPTH: usize = 32;

/// The pairs of sixteen rows.
#[derive(Clone, Copy)]
struct Pairs<V> {
    max: V,
    sum: V,
}

impl<V: Vector> Pairs<V> {
    /// `LogSumExp::combine` in each lane.
    #[inline(always)]
    unsafe fn combine(self, other: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe {
            let max = self.max.max(other.max);
            let left = self.sum.mul(exp(self.max.sub(max)));
            let right = other.sum.mul(exp(other.max.sub(max)));
            let empty = V::splat(f32::NEG_INFINITY);
            let sum = max.select_equal(empty, self.sum.add(other.sum), left.add(right));
            Pairs { max, sum }
        }
    }
}

/// The mid-split tree over pairs that come in order.
struct Tree<V> {
    stack: [Pairs<V>; DEPTH],
    depth: usize,
    leaves: usize,
    pushed: usize,
}

impl<V: Vector> Tree<V> {
    #[inline(always)]
    unsafe fn new(leaves: usize) -> Self {
        assert!(leaves > 0 && canon::tree::partials(leaves) <= DEPTH, "{leaves} leaves of a tree");
        // SAFETY: as the caller's.
        let none = unsafe { Pairs { max: V::splat(f32::NEG_INFINITY), sum: V::zero() } };
        Tree { stack: [none; DEPTH], depth: 0, leaves, pushed: 0 }
    }

    #[inline(always)]
    unsafe fn push(&mut self, leaf: Pairs<V>) {
        let mut newest = leaf;
        for _ in 0..canon::tree::merges_after(self.pushed, self.leaves) {
            self.depth -= 1;
            // SAFETY: as the caller's.
            newest = unsafe { self.stack[self.depth].combine(newest) };
        }
        self.stack[self.depth] = newest;
        self.depth += 1;
        self.pushed += 1;
    }
}

/// `(max, Σexp)` of `rows <= 16` rows, a lane each: tiles in the tree of their leaf,
/// leaves in theirs.
///
/// # Safety
/// The instruction set of `V` is enabled; there are `rows` rows, `stride` apart, with
/// the columns of the leaves, whole tiles of them.
#[inline(always)]
pub(super) unsafe fn combine_rows<V: Vector>(
    logits: Shared<f32>,
    stride: usize,
    rows: usize,
    leaves: &[Range<usize>],
) -> (V, V) {
    // SAFETY: as the caller's.
    unsafe {
        let mut over_leaves = Tree::<V>::new(leaves.len());
        for leaf in leaves {
            let mut over_tiles = Tree::<V>::new(leaf.len() / VOCAB_TILE);
            for column in leaf.clone().step_by(VOCAB_TILE) {
                let tile = logits.get().wrapping_add(column).cast_const();
                over_tiles.push(tile_pairs::<V>(tile, stride, rows));
            }
            over_leaves.push(over_tiles.stack[0]);
        }
        let Pairs { max, sum } = over_leaves.stack[0];
        (max, sum)
    }
}

/// The pairs of one tile of each row.
#[inline(always)]
unsafe fn tile_pairs<V: Vector>(tile: *const f32, stride: usize, rows: usize) -> Pairs<V> {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [V::zero(); LANES];
        for r in 0..rows {
            let row = tile.wrapping_add(r * stride);
            let mut x = [V::zero(); TILE_VECTORS];
            for (i, x) in x.iter_mut().enumerate() {
                *x = V::load(row.add(i * LANES));
            }
            let max = greatest(&x);
            maxima[r] = max;
            // Of nothing but −∞, every exponential is +0 from any finite base.
            let base = V::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
            for x in x {
                sums[r] = sums[r].add(exp(x.sub(base)));
            }
        }
        // Lane i of every row in vector i; then the mid-split tree over lanes.
        V::transpose(&mut sums);
        let mut n = LANES / 2;
        while n > 0 {
            for i in 0..n {
                sums[i] = sums[2 * i].add(sums[2 * i + 1]);
            }
            n /= 2;
        }
        Pairs { max: V::load(maxima.as_ptr()), sum: sums[0] }
    }
}

/// The greatest lane, never −0. The order of comparisons cannot be seen: equal lanes
/// differ in the sign of a zero at most, which the last addition removes.
#[inline(always)]
unsafe fn greatest<V: Vector>(x: &[V; TILE_VECTORS]) -> f32 {
    // SAFETY: as the caller's.
    let mut lanes = unsafe {
        let mut max = x[0];
        for x in &x[1..] {
            max = max.max(*x);
        }
        max.to_array()
    };
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            let (a, b) = (lanes[i], lanes[i + n]);
            lanes[i] = if a > b { a } else { b };
        }
        n /= 2;
    }
    lanes[0] + 0.0
}
