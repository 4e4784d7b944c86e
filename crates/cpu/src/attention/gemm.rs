//! The small products inside a tile, one register tile at a time.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use crate::simd::{LANES, Vector};

/// Rows of a register tile.
pub(super) const ROWS: usize = 8;

/// A left operand: row `r`, step `s` at `p + r * row + s * step`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) p: *const f32,
    pub(super) row: usize,
    pub(super) step: usize,
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

/// `to[r][c] = start, then fma(left[r][s], right[s][c], ·)` for `s < steps`, for `rows
/// <= 8` rows of `vectors` vectors; row `r` of the target is at `to + r * to_row`.
///
/// # Safety
/// The instruction set of `V` is enabled and the operands hold the elements.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn product<V: Vector>(
    rows: usize,
    vectors: usize,
    steps: usize,
    left: Left,
    right: Right,
    start: Start,
    to: *mut f32,
    to_row: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut c = 0;
        while c < vectors {
            let right = Right { p: right.p.add(c * LANES), ..right };
            let to = to.add(c * LANES);
            if V::WIDE && c + 2 <= vectors {
                band::<V, 2>(rows, steps, left, right, start, to, to_row);
                c += 2;
            } else {
                band::<V, 1>(rows, steps, left, right, start, to, to_row);
                c += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn band<V: Vector, const C: usize>(
    rows: usize,
    steps: usize,
    left: Left,
    right: Right,
    start: Start,
    to: *mut f32,
    to_row: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        if V::WIDE && rows == ROWS {
            return tile::<V, 8, C>(steps, left, right, start, to, to_row);
        }
        let mut r = 0;
        while r < rows {
            let shift = |by: usize| match start {
                Start::Scaled(factors) => Start::Scaled(factors.wrapping_add(by)),
                other => other,
            };
            let (left, start) = (Left { p: left.p.wrapping_add(r * left.row), ..left }, shift(r));
            let to = to.wrapping_add(r * to_row);
            match rows - r {
                1 => tile::<V, 1, C>(steps, left, right, start, to, to_row),
                2 => tile::<V, 2, C>(steps, left, right, start, to, to_row),
                3 => tile::<V, 3, C>(steps, left, right, start, to, to_row),
                _ => tile::<V, 4, C>(steps, left, right, start, to, to_row),
            }
            r += (rows - r).min(4);
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const C: usize>(
    steps: usize,
    left: Left,
    right: Right,
    start: Start,
    to: *mut f32,
    to_row: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        let mut acc = [[V::zero(); C]; R];
        match start {
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
        let (mut a, mut b) = (left.p, right.p);
        for _ in 0..steps {
            let mut vectors = [V::zero(); C];
            for c in 0..C {
                vectors[c] = V::load(b.add(c * LANES));
            }
            for r in 0..R {
                let one = V::splat(*a.add(r * left.row));
                for c in 0..C {
                    acc[r][c] = one.fma(vectors[c], acc[r][c]);
                }
            }
            a = a.wrapping_add(left.step);
            b = b.wrapping_add(right.step);
        }
        for r in 0..R {
            for c in 0..C {
                acc[r][c].store(to.add(r * to_row + c * LANES));
            }
        }
    }
}
