//! Rotary position embedding.

use std::ops::Range;

use arena::Frame;
use program::ops::{Rope, RopeTable};

use super::lanes::{Elementwise, Units, for_units, load, negate, shifted, store, sweep};
use super::{source, target};
use crate::context::{Context, Shared};
use crate::simd::Vector;

/// Rough cost of a sine and cosine, in elements of an element-wise kernel.
const SIN_COS_ELEMENTS: usize = 64;

#[derive(Clone, Copy)]
struct Table<'a> {
    positions: &'a [u32],
    inv_freq: &'a [f32],
    scale: f32,
    out: Shared<f32>,
}

impl Units for Table<'_> {
    // Generic so that the scalar sine is compiled with the instruction set's
    // fused multiply-add.
    #[inline(always)]
    unsafe fn run<V: Vector>(self, rows: Range<usize>) {
        let half = self.inv_freq.len();
        for t in rows {
            // SAFETY: the row has `2 * half` elements.
            let row = unsafe {
                std::slice::from_raw_parts_mut(self.out.get().add(t * 2 * half), 2 * half)
            };
            let (cosines, sines) = row.split_at_mut(half);
            let position = self.positions[t] as f32;
            for ((cosine, sine), inv_freq) in cosines.iter_mut().zip(sines).zip(self.inv_freq) {
                let (sin, cos) = canon::sin_cos(position * inv_freq);
                (*cosine, *sine) = (cos * self.scale, sin * self.scale);
            }
        }
    }
}

/// `[cos(a_0 …), sin(a_0 …)]·scale`, `a_i = f32(position)·inv_freq[i]`.
pub(crate) fn rope_table(context: &Context, op: &RopeTable, frame: &Frame<'_>) {
    let (out, len) = target(frame, op.out);
    // SAFETY: the operation does not write positions.
    let positions = unsafe { frame.u32(op.positions) };
    assert_eq!(positions.len() * 2 * op.inv_freq.len(), len, "two values a frequency");
    let kernel = Table { positions, inv_freq: &op.inv_freq, scale: op.scale, out };
    // SAFETY: the table has a row for every position.
    unsafe { for_units(context, positions.len(), len * SIN_COS_ELEMENTS, kernel) };
}

/// One head: `a` and `b` are its halves.
#[derive(Clone, Copy)]
struct Rotate {
    a: Shared<f32>,
    b: Shared<f32>,
    cos: Shared<f32>,
    sin: Shared<f32>,
    inverse: bool,
}

impl Elementwise for Rotate {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let (a, b) = (load::<V>(self.a, at, n), load::<V>(self.b, at, n));
            let (c, s) = (load::<V>(self.cos, at, n), load::<V>(self.sin, at, n));
            let s = if self.inverse { negate(s) } else { s };
            store(a.fma(c, negate(b.mul(s))), self.a, at, n);
            store(b.fma(c, a.mul(s)), self.b, at, n);
        }
    }
}

#[derive(Clone, Copy)]
struct Heads {
    x: Shared<f32>,
    table: Shared<f32>,
    cols: usize,
    head_dim: usize,
    half: usize,
    inverse: bool,
}

impl Units for Heads {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, rows: Range<usize>) {
        let Heads { x, table, half, inverse, .. } = self;
        for t in rows {
            // SAFETY: the caller's word: row `t` of both is there.
            unsafe {
                let cos = shifted(table, t * 2 * half);
                let sin = shifted(cos, half);
                let mut head = 0;
                while head < self.cols {
                    let a = shifted(x, t * self.cols + head);
                    let b = shifted(a, half);
                    sweep::<V>(0, half, Rotate { a, b, cos, sin, inverse });
                    head += self.head_dim;
                }
            }
        }
    }
}

/// `a' = fma(a, c, −(b·s))`, `b' = fma(b, c, a·s)` in every head; the inverse takes
/// `−s`. Columns of a head past the table's are left alone.
pub(crate) fn rope(context: &Context, op: &Rope, frame: &Frame<'_>) {
    let (x, _) = target(frame, op.x);
    let (rows, cols, half) = (frame.rows(op.x), frame.cols(op.x), frame.cols(op.table) / 2);
    assert!(2 * half <= op.head_dim && cols % op.head_dim == 0, "whole heads of whole pairs");
    let table = source(frame, op.table, rows * 2 * half);
    let kernel = Heads { x, table, cols, head_dim: op.head_dim, half, inverse: op.inverse };
    // SAFETY: both have `rows` rows.
    unsafe { for_units(context, rows, cols, kernel) };
}
