//! The small products inside a tile.
//!
//! Both operands lie in scratch memory, and strides of the left one are constants: with
//! eight row strides in registers, half of the loads of a register tile would be spilled
//! pointers.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::{BLOCK, TILE};
use crate::simd::{Kernel, LANES, Vector};

/// Rows of the target that share their steps where not every key is visible.
pub(super) const ROWS: usize = 8;

/// How a left operand lies: row `r`, step `s` at `r * ROW + s * STEP`.
pub(super) trait Layout: Copy {
    /// Elements from a row to the next.
    const ROW: usize;
    /// Elements from a step to the next.
    const STEP: usize;
}

/// `[row][BLOCK]`: a row's steps one after the other.
#[derive(Clone, Copy)]
pub(super) struct ByRow;

impl Layout for ByRow {
    const ROW: usize = BLOCK;
    const STEP: usize = 1;
}

/// `[step][TILE]`: a step's rows one after the other.
#[derive(Clone, Copy)]
pub(super) struct ByStep;

impl Layout for ByStep {
    const ROW: usize = 1;
    const STEP: usize = TILE;
}

/// A left operand.
#[derive(Clone, Copy)]
pub(super) struct Left<L> {
    p: *const f32,
    layout: PhantomData<L>,
}

/// A left operand from `p` on.
#[inline(always)]
pub(super) fn left<L: Layout>(p: *const f32) -> Left<L> {
    Left { p, layout: PhantomData }
}

/// A right operand: step `s` is the vectors at `p + s * step`.
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub(super) p: *const f32,
    pub(super) step: usize,
}

/// What the accumulators start from.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// `+0`.
    Zero,
    /// The target.
    Target,
    /// The target's row `r` times `factors[r]`.
    Scaled(*const f32),
}

/// `to[r][c] = start, then fma(left[r][s], right[s][c], ·)` for `s < steps`; row `r` of
/// the target is at `to + r * to_row`.
#[derive(Clone, Copy)]
pub(super) struct Product<L> {
    pub(super) rows: usize,
    /// Vectors of a row of the target.
    pub(super) vectors: usize,
    pub(super) steps: usize,
    pub(super) left: Left<L>,
    pub(super) right: Right,
    pub(super) start: Start,
    pub(super) to: *mut f32,
    pub(super) to_row: usize,
}

impl<L: Layout> Product<L> {
    /// Computes the product, in a function of its own.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled and the operands hold the elements.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector>(self) {
        // SAFETY: as the caller's.
        unsafe { V::outlined(self) }
    }
}

impl<L: Layout> Kernel for Product<L> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: as the caller's.
        unsafe {
            let mut c = 0;
            while c < self.vectors {
                let right = Right { p: self.right.p.add(c * LANES), ..self.right };
                let band = Self { right, to: self.to.add(c * LANES), ..self };
                if !V::WIDE {
                    band.rows::<V, 4, 1>();
                    c += 1;
                    continue;
                }
                let left = self.vectors - c;
                // The taller a tile, the more often a vector is used, the wider, the more
                // often a broadcast is: 24 accumulators leave room for the operands.
                match left {
                    1 => band.rows::<V, 8, 1>(),
                    2 => band.rows::<V, 8, 2>(),
                    3 => band.rows::<V, 8, 3>(),
                    _ => band.rows::<V, 6, 4>(),
                }
                c += left.min(4);
            }
        }
    }
}

impl<L: Layout> Product<L> {
    /// A band of `C` vectors, at most `MOST` rows at a time.
    #[inline(always)]
    unsafe fn rows<V: Vector, const MOST: usize, const C: usize>(self) {
        let mut r = 0;
        while r < self.rows {
            let start = match self.start {
                Start::Scaled(factors) => Start::Scaled(factors.wrapping_add(r)),
                other => other,
            };
            let p = self.left.p.wrapping_add(r * L::ROW);
            let to = self.to.wrapping_add(r * self.to_row);
            let part = Self { left: left(p), start, to, ..self };
            let rows = match self.rows - r {
                few @ 1..4 => few,
                more if more < MOST || more == 8 && MOST == 6 => 4,
                _ => MOST,
            };
            // SAFETY: as the caller's.
            unsafe {
                match rows {
                    1 => part.tile::<V, 1, C>(),
                    2 => part.tile::<V, 2, C>(),
                    3 => part.tile::<V, 3, C>(),
                    4 => part.tile::<V, 4, C>(),
                    _ => part.tile::<V, MOST, C>(),
                }
            }
            r += rows;
        }
    }

    #[inline(always)]
    unsafe fn tile<V: Vector, const R: usize, const C: usize>(self) {
        let Self { to, to_row, .. } = self;
        // SAFETY: as the caller's.
        unsafe {
            let mut acc = [[V::zero(); C]; R];
            match self.start {
                Start::Zero => {}
                Start::Target => {
                    for r in 0..R {
                        for c in 0..C {
                            acc[r][c] = V::load(to.add(r * to_row + c * LANES));
                        }
                    }
                }
                Start::Scaled(factors) => {
                    for r in 0..R {
                        let factor = V::splat(*factors.add(r));
                        for c in 0..C {
                            acc[r][c] = V::load(to.add(r * to_row + c * LANES)).mul(factor);
                        }
                    }
                }
            }
            let (mut a, mut b) = (self.left.p, self.right.p);
            for _ in 0..self.steps {
                let mut vectors = [V::zero(); C];
                for c in 0..C {
                    vectors[c] = V::load(b.add(c * LANES));
                }
                for r in 0..R {
                    let one = V::splat(*a.add(r * L::ROW));
                    for c in 0..C {
                        acc[r][c] = one.fma(vectors[c], acc[r][c]);
                    }
                }
                a = a.wrapping_add(L::STEP);
                b = b.wrapping_add(self.right.step);
            }
            for r in 0..R {
                for c in 0..C {
                    acc[r][c].store(to.add(r * to_row + c * LANES));
                }
            }
        }
    }
}
