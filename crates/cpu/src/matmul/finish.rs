//! From the sum of a tile to the output: alpha, init, rounding, storage.

use super::Init;
use super::operand::Target;
use crate::simd::{LANES, Vector};

/// Where a tile lies in the output and what is done with it.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    pub(super) out: Target,
    pub(super) alpha: f32,
    pub(super) init: Init<'a>,
}

impl Finish<'_> {
    /// Stores `rows` rows of `cols` of the sums at `tile` (rows `width` apart), the
    /// first at `(i, j)` of the output.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled; tile and output hold the elements.
    #[inline(always)]
    pub(super) unsafe fn store<V: Vector>(
        &self,
        tile: *const f32,
        width: usize,
        (i, rows): (usize, usize),
        (j, cols): (usize, usize),
    ) {
        for r in 0..rows {
            let mut c = 0;
            while c < cols {
                let lanes = LANES.min(cols - c);
                // SAFETY: as the caller's.
                unsafe { self.lanes::<V>(V::load(tile.add(r * width + c)), i + r, j + c, lanes) };
                c += LANES;
            }
        }
    }

    #[inline(always)]
    unsafe fn lanes<V: Vector>(&self, sum: V, i: usize, j: usize, lanes: usize) {
        // SAFETY: as the caller's.
        unsafe {
            let val = if self.alpha == 1.0 { sum } else { V::splat(self.alpha).mul(sum) };
            let val = match self.init {
                Init::None | Init::Chain => val,
                Init::Bias(bias) => val.add(V::load_first(bias.as_ptr().wrapping_add(j), lanes)),
                Init::Accumulate => self.old::<V>(i, j, lanes).add(val),
            };
            if self.out.bf16 {
                val.store_bf16_first(self.out.bf16_at(i, j), lanes);
            } else if lanes == LANES {
                val.store(self.out.f32_at(i, j));
            } else {
                val.store_first(self.out.f32_at(i, j), lanes);
            }
        }
    }

    #[inline(always)]
    unsafe fn old<V: Vector>(&self, i: usize, j: usize, lanes: usize) -> V {
        // SAFETY: as the caller's.
        unsafe {
            if self.out.bf16 {
                V::load_bf16_first(self.out.bf16_at(i, j), lanes)
            } else {
                V::load_first(self.out.f32_at(i, j), lanes)
            }
        }
    }

    /// For [`Init::Chain`]: the old output into the accumulator slot of a tile.
    ///
    /// # Safety
    /// As [`Finish::store`].
    #[inline(always)]
    pub(super) unsafe fn preload<V: Vector>(
        &self,
        tile: *mut f32,
        width: usize,
        (i, rows): (usize, usize),
        (j, cols): (usize, usize),
    ) {
        if !matches!(self.init, Init::Chain) {
            return;
        }
        for r in 0..rows {
            let mut c = 0;
            while c < width {
                let lanes = LANES.min(cols.saturating_sub(c));
                // SAFETY: as the caller's; `lanes` is 0 past the last column.
                unsafe {
                    V::load_first(self.out.f32_at(i + r, j + c), lanes)
                        .store(tile.add(r * width + c));
                }
                c += LANES;
            }
        }
    }
}
