//! The register tile: the inner loops of every packed product.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use super::pieces::{Begin, End, Piece};
use super::task::Words;
use crate::simd::{LANES, Vector};

/// Units that the panels, which lie in the second-level cache, are asked for ahead of
/// their use.
const AHEAD: usize = 12;

/// Runs the pieces of one block of `k` on an `R x C*16` tile.
///
/// `state` holds, each of tile size: slot 0 the saved accumulator, slots 1.. the
/// stack of leaf sums; the finished sum is left in slot 1.
///
/// # Safety
/// The instruction set of `V` is enabled; `a` holds the pieces' units x `R` words,
/// `b` units x `C*16` words, and `state` the slots.
#[inline(always)]
pub(super) unsafe fn tile<V: Vector, W: Words, const R: usize, const C: usize>(
    pieces: &[Piece],
    mut a: *const f32,
    mut b: *const f32,
    state: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut acc = [[V::zero(); C]; R];
        for piece in pieces {
            begin(piece.begin, &mut acc, state);
            for _ in 0..piece.units {
                V::prefetch(a.wrapping_add(AHEAD * R).cast());
                for c in 0..C {
                    V::prefetch(b.wrapping_add((AHEAD * C + c) * LANES).cast());
                }
                let mut right = [V::zero(); C];
                for c in 0..C {
                    right[c] = V::load(b.add(c * LANES));
                }
                for r in 0..R {
                    let left = V::splat(*a.add(r));
                    for c in 0..C {
                        acc[r][c] = W::step(left, right[c], acc[r][c]);
                    }
                }
                a = a.add(R);
                b = b.add(C * LANES);
            }
            end(piece.end, &mut acc, state);
        }
    }
}

/// Brings the accumulator to where the piece starts.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn begin<V: Vector, const R: usize, const C: usize>(
    begin: Begin,
    acc: &mut [[V; C]; R],
    state: *const f32,
) {
    // SAFETY: as the caller's.
    unsafe {
        match begin {
            Begin::Zero => *acc = [[V::zero(); C]; R],
            Begin::Resume => *acc = load::<V, R, C>(state),
            Begin::Continue => {}
        }
    }
}

/// Puts the accumulator where the piece says.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
pub(super) unsafe fn end<V: Vector, const R: usize, const C: usize>(
    end: End,
    acc: &mut [[V; C]; R],
    state: *mut f32,
) {
    let size = R * C * LANES;
    // SAFETY: as the caller's.
    unsafe {
        match end {
            End::Keep => {}
            End::Save => save::<V, R, C>(acc, state),
            End::Leaf { merges, slot } => {
                for merge in 0..merges {
                    add_left::<V, R, C>(state.add((slot + merges - merge) * size), acc);
                }
                save::<V, R, C>(acc, state.add((slot + 1) * size));
            }
            End::Tail => {
                add_left::<V, R, C>(state.add(size), acc);
                save::<V, R, C>(acc, state.add(size));
            }
        }
    }
}

#[inline(always)]
unsafe fn load<V: Vector, const R: usize, const C: usize>(from: *const f32) -> [[V; C]; R] {
    // SAFETY: a tile lies there.
    unsafe {
        let mut tile = [[V::zero(); C]; R];
        for r in 0..R {
            for c in 0..C {
                tile[r][c] = V::load(from.add((r * C + c) * LANES));
            }
        }
        tile
    }
}

#[inline(always)]
unsafe fn save<V: Vector, const R: usize, const C: usize>(tile: &[[V; C]; R], to: *mut f32) {
    // SAFETY: a tile lies there.
    unsafe {
        for r in 0..R {
            for c in 0..C {
                tile[r][c].store(to.add((r * C + c) * LANES));
            }
        }
    }
}

/// `acc = left + acc`.
#[inline(always)]
unsafe fn add_left<V: Vector, const R: usize, const C: usize>(
    left: *const f32,
    acc: &mut [[V; C]; R],
) {
    // SAFETY: a tile lies there.
    unsafe {
        for r in 0..R {
            for c in 0..C {
                acc[r][c] = V::load(left.add((r * C + c) * LANES)).add(acc[r][c]);
            }
        }
    }
}
