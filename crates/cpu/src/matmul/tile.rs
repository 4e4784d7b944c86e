//! The register tile: the inner loops of every packed product.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::pieces::{Begin, End, Piece};
use super::words::Words;
use crate::simd::{FlushMode, Kernel, LANES, Vector};

/// The pieces of one block of `k` on an `R x C*16` tile.
///
/// `state` holds, each of tile size: slot 0 the saved accumulator, slots 1.. the
/// stack of leaf sums; the finished sum is left in slot 1.
pub(super) struct Tile<'a, W, const R: usize, const C: usize> {
    pieces: &'a [Piece],
    /// Units x `R` words.
    a: *const f32,
    /// Units x `C*16` words.
    b: *const f32,
    state: *mut f32,
    words: PhantomData<W>,
}

impl<'a, W: Words, const R: usize, const C: usize> Tile<'a, W, R, C> {
    pub(super) fn new(pieces: &'a [Piece], a: *const f32, b: *const f32, state: *mut f32) -> Self {
        Self { pieces, a, b, state, words: PhantomData }
    }
}

impl<W: Words, const R: usize, const C: usize> Kernel for Tile<'_, W, R, C> {
    const BF16_DOT: bool = W::NATIVE;
    const FLUSHES: bool = W::FLUSHES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { pieces, mut a, mut b, state, .. } = self;
        // SAFETY: panels and state hold what the fields say. As for the flush mode: a
        // chain's operands are loaded from the panels after it is set, and its
        // accumulator is stored before it is restored.
        unsafe {
            let mut acc = [[V::zero(); C]; R];
            for piece in pieces {
                begin(piece.begin, &mut acc, state);
                let mode = W::FLUSHES.then(|| FlushMode::set());
                W::chain::<V, R, C>(&mut acc, a, b, piece.units);
                a = a.add(piece.units * R);
                b = b.add(piece.units * C * LANES);
                if let Some(mode) = mode {
                    // A chain that goes on in the next piece is loaded from there.
                    save::<V, R, C>(&acc, state);
                    mode.restore();
                    acc = load::<V, R, C>(state);
                }
                end(piece.end, &mut acc, state);
            }
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
            End::Leaf { merges: 0, slot } => save::<V, R, C>(acc, state.add((slot + 1) * size)),
            End::Leaf { merges, slot } => {
                save::<V, R, C>(acc, state);
                merge::<V>(state, size, merges, slot + 1);
            }
            End::Tail => {
                save::<V, R, C>(acc, state);
                merge::<V>(state, size, 1, 1);
            }
        }
    }
}

/// Adds the `merges` slots down to `slot` on the left of slot 0, the highest first,
/// into `slot`: memory to memory, since a loop is enough.
///
/// # Safety
/// The instruction set of `V` is enabled; the slots of `size` words lie there.
#[inline(always)]
pub(super) unsafe fn merge<V: Vector>(state: *mut f32, size: usize, merges: usize, slot: usize) {
    for at in (0..size).step_by(LANES) {
        // SAFETY: as the caller's.
        unsafe {
            let mut sum = V::load(state.add(at));
            for left in (slot..slot + merges).rev() {
                sum = V::load(state.add(left * size + at)).add(sum);
            }
            sum.store(state.add(slot * size + at));
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
