//! The sums of products that the backward pass takes from every row.

use super::TILE;
use super::error::AttentionError;
use super::forward::fold;
use super::view::{Heads, Rows, rows_in};
use crate::context::{Context, Shared};
use crate::simd::{Kernel, LANES, Vector, dispatch};

/// `delta[row * query heads + head]` = sum of `dout_d * out_d`: element d to lane
/// d mod 16, one `fma(dout_d, out_d, ·)` chain a lane, lanes folded by the mid-split
/// tree. Rows as in `dout` and `out`, as many as `delta` has.
///
/// # Errors
/// [`AttentionError`]; nothing is then written.
pub fn delta(
    context: &Context,
    heads: &Heads,
    dout: &Rows<'_>,
    out: &Rows<'_>,
    delta: &mut [f32],
) -> Result<(), AttentionError> {
    heads.check()?;
    let rows = delta.len() / heads.query;
    let wide = heads.query * heads.dim;
    for (view, r) in [("dout", dout), ("out", out)] {
        let there = rows_in(view, r.data.len(), r.row_stride, wide)?;
        if there < rows {
            return Err(AttentionError::Row { segment: 0, view, row: rows - 1, rows: there });
        }
    }
    let to = Shared(delta.as_mut_ptr());
    context.for_each(rows.div_ceil(TILE), |_, task| {
        let rows = task * TILE..rows.min((task + 1) * TILE);
        let job = Delta { heads: *heads, dout: *dout, out: *out, rows, to: to.get() };
        // SAFETY: views were checked; tasks write disjoint rows.
        unsafe { dispatch(context.isa(), job) };
    });
    Ok(())
}

struct Delta<'a> {
    heads: Heads,
    dout: Rows<'a>,
    out: Rows<'a>,
    rows: std::ops::Range<usize>,
    to: *mut f32,
}

impl Kernel for Delta<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let dim = self.heads.dim;
        for row in self.rows {
            for h in 0..self.heads.query {
                // SAFETY: the rows were checked.
                unsafe {
                    let g = self.dout.data.as_ptr().add(row * self.dout.row_stride + h * dim);
                    let o = self.out.data.as_ptr().add(row * self.out.row_stride + h * dim);
                    let mut sums = V::zero();
                    for d in (0..dim).step_by(LANES) {
                        let lanes = LANES.min(dim - d);
                        let (g, o) =
                            (V::load_first(g.add(d), lanes), V::load_first(o.add(d), lanes));
                        sums = g.fma(o, sums);
                    }
                    self.to.add(row * self.heads.query + h).write(fold(&sums.to_array()));
                }
            }
        }
    }
}
