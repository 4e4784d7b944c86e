//! Root-mean-square norm.

use std::ops::Range;

use arena::{ExecError, Frame};
use program::ops::{Norm, NormBackward, NormWeightGrad};
use program::{BufferId, Program};

use super::lanes::{Elementwise, Factors, Units, dot, for_units, load, shifted, store, sweep};
use super::{exhausted, row_as_f32, source, target, workspace};
use crate::context::{Context, Shared};
use crate::simd::{LANES, Vector};
use crate::workspace::{Exhausted, Workspace, bytes_of};

/// The factors of Σx².
#[derive(Clone, Copy)]
struct Squares(Shared<f32>);

impl Factors for Squares {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) -> (V, V) {
        // SAFETY: the caller's word.
        let x = unsafe { load(self.0, at, n) };
        (x, x)
    }
}

/// `1 / √(Σx²/n + eps)` over the `n` elements from `x`.
#[inline(always)]
unsafe fn inverse_rms<V: Vector>(x: Shared<f32>, n: usize, eps: f32) -> f32 {
    // SAFETY: as the caller's.
    let squares = unsafe { dot::<V>(n, Squares(x)) };
    1.0 / (squares / n as f32 + eps).sqrt()
}

/// The weight as a factor: itself, or `1 + w` by one addition.
fn factors<'a>(
    frame: &Frame<'_>,
    weight: BufferId,
    plus_one: bool,
    workspace: &mut Workspace<'a>,
) -> Result<&'a mut [f32], Exhausted> {
    let factors = row_as_f32(frame, weight, workspace)?;
    if plus_one {
        factors.iter_mut().for_each(|w| *w += 1.0);
    }
    Ok(factors)
}

/// Workspace of [`norm`] and [`norm_backward`].
pub(crate) fn norm_bytes(weight: BufferId, program: &Program) -> usize {
    bytes_of::<f32>(program.buffer(weight).cols)
}

#[derive(Clone, Copy)]
struct Scale {
    x: Shared<f32>,
    weight: Shared<f32>,
    out: Shared<f32>,
    inv: f32,
}

impl Elementwise for Scale {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let y = load::<V>(self.x, at, n).mul(V::splat(self.inv));
            let y = y.mul(load(self.weight, at, n));
            store(y, self.out, at, n);
        }
    }
}

/// A unit is one group of one row.
#[derive(Clone, Copy)]
struct Forward {
    x: Shared<f32>,
    weight: Shared<f32>,
    out: Shared<f32>,
    group: usize,
    eps: f32,
}

impl Units for Forward {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, groups: Range<usize>) {
        let Forward { weight, group, eps, .. } = self;
        for index in groups {
            // SAFETY: the caller's word.
            unsafe {
                let (x, out) = (shifted(self.x, index * group), shifted(self.out, index * group));
                let inv = inverse_rms::<V>(x, group, eps);
                sweep::<V>(0, group, Scale { x, weight, out, inv });
            }
        }
    }
}

/// `y = (x·inv)·w`.
pub(crate) fn norm(context: &Context, op: &Norm, frame: &Frame<'_>) -> Result<(), ExecError> {
    let weight =
        factors(frame, op.weight, op.plus_one, &mut workspace(frame)).map_err(exhausted("Norm"))?;
    assert_eq!(weight.len(), op.group, "one weight a column of a group");
    let (out, len) = target(frame, op.out);
    let weight = Shared(weight.as_mut_ptr());
    let x = source(frame, op.x, len);
    let kernel = Forward { x, weight, out, group: op.group, eps: op.eps };
    // SAFETY: both buffers have `len` elements, whole groups of them.
    unsafe { for_units(context, len / op.group, op.group, kernel) };
    Ok(())
}

/// The factors of Σ g·x̂.
#[derive(Clone, Copy)]
struct Projection {
    x: Shared<f32>,
    dy: Shared<f32>,
    weight: Shared<f32>,
    inv: f32,
}

impl Factors for Projection {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) -> (V, V) {
        // SAFETY: the caller's word.
        unsafe {
            let g = load::<V>(self.dy, at, n).mul(load(self.weight, at, n));
            (g, load::<V>(self.x, at, n).mul(V::splat(self.inv)))
        }
    }
}

/// A unit is one group of one row.
#[derive(Clone, Copy)]
struct Backward {
    x: Shared<f32>,
    weight: Shared<f32>,
    dy: Shared<f32>,
    dx: Shared<f32>,
    group: usize,
    eps: f32,
    accumulate: bool,
}

#[derive(Clone, Copy)]
struct Input {
    of: Backward,
    inv: f32,
    mean: f32,
}

impl Elementwise for Input {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        let of = self.of;
        // SAFETY: the caller's word.
        unsafe {
            let inv = V::splat(self.inv);
            let g = load::<V>(of.dy, at, n).mul(load(of.weight, at, n));
            let normed = load::<V>(of.x, at, n).mul(inv);
            let value = inv.mul(g.sub(normed.mul(V::splat(self.mean))));
            let value = if of.accumulate { value.add(load(of.dx, at, n)) } else { value };
            store(value, of.dx, at, n);
        }
    }
}

impl Units for Backward {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, groups: Range<usize>) {
        let Backward { weight, group, eps, .. } = self;
        for index in groups {
            // SAFETY: the caller's word.
            unsafe {
                let at = index * group;
                let (x, dy, dx) = (shifted(self.x, at), shifted(self.dy, at), shifted(self.dx, at));
                let inv = inverse_rms::<V>(x, group, eps);
                let sum = dot::<V>(group, Projection { x, dy, weight, inv });
                let mean = sum / group as f32;
                let of = Backward { x, dy, dx, ..self };
                sweep::<V>(0, group, Input { of, inv, mean });
            }
        }
    }
}

/// `dx = inv·(g − x̂·mean)`, `mean = Σ(g·x̂)/n`, `g = dy·w`, `x̂ = x·inv`; added to
/// what is there if the operation says so.
pub(crate) fn norm_backward(
    context: &Context,
    op: &NormBackward,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    let weight = factors(frame, op.weight, op.plus_one, &mut workspace(frame))
        .map_err(exhausted("NormBackward"))?;
    assert_eq!(weight.len(), op.group, "one weight a column of a group");
    let (dx, len) = target(frame, op.dx);
    let kernel = Backward {
        x: source(frame, op.x, len),
        weight: Shared(weight.as_mut_ptr()),
        dy: source(frame, op.dy, len),
        dx,
        group: op.group,
        eps: op.eps,
        accumulate: op.accumulate,
    };
    // SAFETY: the three buffers have `len` elements, whole groups of them.
    unsafe { for_units(context, len / op.group, op.group, kernel) };
    Ok(())
}

/// A unit is one group of one row: its `inv`.
#[derive(Clone, Copy)]
struct Inverses {
    x: Shared<f32>,
    inverses: Shared<f32>,
    group: usize,
    eps: f32,
}

impl Units for Inverses {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, groups: Range<usize>) {
        for index in groups {
            // SAFETY: the caller's word.
            unsafe {
                let x = shifted(self.x, index * self.group);
                let inv = inverse_rms::<V>(x, self.group, self.eps);
                self.inverses.get().add(index).write(inv);
            }
        }
    }
}

/// Vectors of columns that walk down the tokens together.
const WIDTH: usize = 4;

/// The chains of one leaf; a unit is `WIDTH` vectors of the group's columns.
#[derive(Clone, Copy)]
struct WeightGrad {
    /// First group of the leaf, in row 0.
    x: Shared<f32>,
    dy: Shared<f32>,
    inverses: Shared<f32>,
    dw: Shared<f32>,
    rows: usize,
    /// Groups of a row, and those of the leaf.
    row_groups: usize,
    leaf_groups: usize,
    group: usize,
}

impl Units for WeightGrad {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, blocks: Range<usize>) {
        for block in blocks {
            let from = block * WIDTH * LANES;
            let lanes: [usize; WIDTH] =
                std::array::from_fn(|i| self.group.saturating_sub(from + i * LANES).min(LANES));
            // SAFETY: the caller's word; lanes past the group are not touched.
            unsafe {
                let mut sums = [V::zero(); WIDTH];
                for index in (0..self.rows)
                    .flat_map(|t| (0..self.leaf_groups).map(move |g| t * self.row_groups + g))
                {
                    let inv = V::splat(self.inverses.get().add(index).read());
                    for i in 0..WIDTH {
                        if lanes[i] > 0 {
                            let at = index * self.group + from + i * LANES;
                            let normed = load::<V>(self.x, at, lanes[i]).mul(inv);
                            sums[i] = load::<V>(self.dy, at, lanes[i]).fma(normed, sums[i]);
                        }
                    }
                }
                for i in 0..WIDTH {
                    if lanes[i] > 0 {
                        store(sums[i], self.dw, from + i * LANES, lanes[i]);
                    }
                }
            }
        }
    }
}

/// `dw[leaf, j]`: one chain `fma(dy, x̂, acc)` over tokens and, in a token, the leaf's
/// groups.
pub(crate) fn norm_weight_grad(
    context: &Context,
    op: &NormWeightGrad,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    let (rows, group) = (frame.rows(op.x), op.group);
    let row_groups = frame.cols(op.x) / group;
    let len = rows * row_groups * group;
    let (x, dy) = (source(frame, op.x, len), source(frame, op.dy, len));
    let dw = source(frame, op.dw, op.leaf_groups.len() * group);
    assert_eq!(op.leaf_groups.iter().sum::<usize>(), row_groups, "leaves cover the groups");
    let inverses: &mut [f32] =
        workspace(frame).take(rows * row_groups).map_err(exhausted("NormWeightGrad"))?;
    let inverses = Shared(inverses.as_mut_ptr());
    let kernel = Inverses { x, inverses, group, eps: op.eps };
    // SAFETY: `x` has as many groups as there are inverses.
    unsafe { for_units(context, rows * row_groups, group, kernel) };
    let mut first = 0;
    for (leaf, &leaf_groups) in op.leaf_groups.iter().enumerate() {
        // SAFETY: leaves cover the groups of a row, and `dw` has a row for each leaf.
        unsafe {
            let kernel = WeightGrad {
                x: shifted(x, first * group),
                dy: shifted(dy, first * group),
                inverses: shifted(inverses, first),
                dw: shifted(dw, leaf * group),
                rows,
                row_groups,
                leaf_groups,
                group,
            };
            let elements = rows * leaf_groups * WIDTH * LANES;
            for_units(context, group.div_ceil(WIDTH * LANES), elements, kernel);
        }
        first += leaf_groups;
    }
    Ok(())
}

/// Workspace of [`norm_weight_grad`].
pub(crate) fn norm_weight_grad_bytes(op: &NormWeightGrad, program: &Program) -> usize {
    let x = program.buffer(op.x);
    bytes_of::<f32>(x.rows * (x.cols / op.group))
}
