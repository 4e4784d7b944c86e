//! (max, Σexp) of rows of logits: tiles of 128 columns combined in the tree.
//!
//! Inside a tile lanes are columns, as the canon's `LogSumExp::of_tile` says. From
//! there on lanes are rows, up to sixteen at once, so that combining costs a vector
//! operation where it would cost sixteen calls; each lane does what the canon's
//! `combine` does.

use std::ops::Range;

use program::topology::VOCAB_TILE;

use crate::context::Shared;
use crate::simd::{LANES, Vector, exp};

/// Vectors of a tile.
const TILE_VECTORS: usize = VOCAB_TILE / LANES;
/// Deepest stack of a tree: `2^31` leaves.
const DEPTH: usize = 32;

/// The sums of sixteen rows: `canon::policy::EntropySum` in each lane, of which `dot` is
/// kept only with `DOTS`.
#[derive(Clone, Copy)]
pub(super) struct Sums<V> {
    pub(super) max: V,
    pub(super) sum: V,
    pub(super) dot: V,
}

impl<V: Vector> Sums<V> {
    #[inline(always)]
    pub(super) unsafe fn empty() -> Self {
        // SAFETY: as the caller's.
        unsafe { Sums { max: V::splat(f32::NEG_INFINITY), sum: V::zero(), dot: V::zero() } }
    }

    /// `EntropySum::combine` in each lane.
    #[inline(always)]
    unsafe fn combine<const DOTS: bool>(self, other: Self) -> Self {
        // SAFETY: as the caller's.
        unsafe {
            let max = self.max.max(other.max);
            let (left, right) = (self.moved::<DOTS>(max), other.moved::<DOTS>(max));
            Sums { max, sum: left.0.add(right.0), dot: left.1.add(right.1) }
        }
    }

    #[inline(always)]
    unsafe fn moved<const DOTS: bool>(self, max: V) -> (V, V) {
        // SAFETY: as the caller's.
        unsafe {
            let empty = V::splat(f32::NEG_INFINITY);
            let d = self.max.sub(max);
            let e = exp(d);
            let sum = self.max.select_equal(empty, self.sum, self.sum.mul(e));
            if !DOTS {
                return (sum, self.dot);
            }
            let dot = self.dot.add(self.sum.mul(d)).mul(e);
            (sum, self.max.select_equal(empty, self.dot, dot))
        }
    }
}

/// The mid-split tree over sums that come in order.
struct Tree<V> {
    stack: [Sums<V>; DEPTH],
    depth: usize,
    leaves: usize,
    pushed: usize,
}

impl<V: Vector> Tree<V> {
    #[inline(always)]
    unsafe fn new(leaves: usize) -> Self {
        assert!(leaves > 0 && canon::tree::partials(leaves) <= DEPTH, "{leaves} leaves of a tree");
        // SAFETY: as the caller's.
        Tree { stack: [unsafe { Sums::empty() }; DEPTH], depth: 0, leaves, pushed: 0 }
    }

    #[inline(always)]
    unsafe fn push<const DOTS: bool>(&mut self, leaf: Sums<V>) {
        let mut newest = leaf;
        for _ in 0..canon::tree::merges_after(self.pushed, self.leaves) {
            self.depth -= 1;
            // SAFETY: as the caller's.
            newest = unsafe { self.stack[self.depth].combine::<DOTS>(newest) };
        }
        self.stack[self.depth] = newest;
        self.depth += 1;
        self.pushed += 1;
    }
}

/// The sums of `rows <= 16` rows, a lane each: tiles in the tree of their leaf, leaves in
/// theirs.
///
/// # Safety
/// The instruction set of `V` is enabled; there are `rows` rows, `stride` apart, with
/// the columns of the leaves, whole tiles of them.
#[inline(always)]
pub(super) unsafe fn combine_rows<V: Vector, const DOTS: bool>(
    logits: Shared<f32>,
    stride: usize,
    rows: usize,
    leaves: &[Range<usize>],
) -> Sums<V> {
    // SAFETY: as the caller's.
    unsafe {
        let mut over_leaves = Tree::<V>::new(leaves.len());
        for leaf in leaves {
            let mut over_tiles = Tree::<V>::new(leaf.len() / VOCAB_TILE);
            for column in leaf.clone().step_by(VOCAB_TILE) {
                let tile = logits.get().wrapping_add(column).cast_const();
                over_tiles.push::<DOTS>(tile_sums::<V, DOTS>(tile, stride, rows));
            }
            over_leaves.push::<DOTS>(over_tiles.stack[0]);
        }
        over_leaves.stack[0]
    }
}

/// The sums of one tile of each row.
#[inline(always)]
unsafe fn tile_sums<V: Vector, const DOTS: bool>(
    tile: *const f32,
    stride: usize,
    rows: usize,
) -> Sums<V> {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = [V::zero(); LANES];
        let mut dots = [V::zero(); LANES];
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
                let d = x.sub(base);
                let e = exp(d);
                sums[r] = sums[r].add(e);
                if DOTS {
                    let d = x.select_equal(V::splat(f32::NEG_INFINITY), V::zero(), d);
                    dots[r] = dots[r].add(e.mul(d));
                }
            }
        }
        let sum = fold_lanes(&mut sums);
        let dot = if DOTS { fold_lanes(&mut dots) } else { V::zero() };
        Sums { max: V::load(maxima.as_ptr()), sum, dot }
    }
}

/// Lane `i` of every row in vector `i`; then the mid-split tree over lanes.
#[inline(always)]
unsafe fn fold_lanes<V: Vector>(rows: &mut [V; LANES]) -> V {
    // SAFETY: as the caller's.
    unsafe {
        V::transpose(rows);
        let mut n = LANES / 2;
        while n > 0 {
            for i in 0..n {
                rows[i] = rows[2 * i].add(rows[2 * i + 1]);
            }
            n /= 2;
        }
    }
    rows[0]
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
