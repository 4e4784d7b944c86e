//! Bringing a block of rows into scratch memory, by rows or transposed.

use super::BLOCK;
use crate::simd::{LANES, Vector};

/// `to[i][0..padded]` = row `i` of `rows` rows of `dim` elements, padded with zeros;
/// rows from `rows` to `all` are zeros.
///
/// # Safety
/// The instruction set of `V` is enabled; source and target hold the elements.
#[inline(always)]
pub(super) unsafe fn copy<V: Vector>(
    from: *const f32,
    row_stride: usize,
    (rows, all): (usize, usize),
    (dim, padded): (usize, usize),
    to: *mut f32,
) {
    for i in 0..all {
        let mut d = 0;
        while d < padded {
            let lanes = if i < rows { LANES.min(dim - d) } else { 0 };
            // SAFETY: `lanes` elements are there.
            unsafe {
                let from = from.wrapping_add(i * row_stride + d);
                let v = if lanes == LANES { V::load(from) } else { V::load_first(from, lanes) };
                v.store(to.add(i * padded + d));
            }
            d += LANES;
        }
    }
}

/// `to[d][i]` = element `d` of row `i`, `[dim][BLOCK]`; rows from `rows` on are zeros.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(super) unsafe fn transpose<V: Vector>(
    from: *const f32,
    row_stride: usize,
    rows: usize,
    dim: usize,
    to: *mut f32,
) {
    let mut i = 0;
    while i < BLOCK {
        let mut d = 0;
        while d < dim {
            let lanes = LANES.min(dim - d);
            // SAFETY: `lanes` elements of each row below `rows` are there.
            unsafe {
                let mut block = [V::zero(); LANES];
                for (r, v) in block.iter_mut().enumerate() {
                    if i + r < rows {
                        let from = from.wrapping_add((i + r) * row_stride + d);
                        *v =
                            if lanes == LANES { V::load(from) } else { V::load_first(from, lanes) };
                    }
                }
                V::transpose(&mut block);
                for (r, v) in block.iter().enumerate() {
                    if r < lanes {
                        v.store(to.add((d + r) * BLOCK + i));
                    }
                }
            }
            d += LANES;
        }
        i += LANES;
    }
}
