//! Token embedding.

use std::ops::Range;

use arena::{Elems, ExecError, Frame};
use program::ops::{CollectiveKind, Embed, EmbedBackward};
use program::{BufferId, Op};

use super::lanes::{Elementwise, Units, for_elements, for_units, load, shifted, store, sweep};
use super::{source, target};
use crate::context::{Context, Shared};
use crate::simd::{LANES, Vector};

/// A rank's share of the table.
#[derive(Clone, Copy)]
struct Share {
    first: usize,
    words: usize,
}

impl Share {
    /// The share's row of a token, or `None` where another rank holds it.
    #[inline(always)]
    fn row(self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.first).filter(|&row| row < self.words)
    }

    /// Refuses an id past the share's words where the vocabulary ends with them.
    fn check(self, ids: &[u32], ends_vocabulary: bool) -> Result<(), ExecError> {
        let vocab = self.first + self.words;
        let outside = |&(_, &id): &(usize, &u32)| id as usize >= vocab;
        match ids.iter().enumerate().find(outside) {
            Some((row, &id)) if ends_vocabulary => {
                Err(ExecError::TokenOutsideVocabulary { row, id, vocab })
            }
            _ => Ok(()),
        }
    }
}

/// Whether other ranks hold rows that this one lacks.
fn is_shared(frame: &Frame<'_>, out: BufferId) -> bool {
    frame.program.ops.iter().any(|op| {
        matches!(op, Op::Collective(c)
            if c.out == out && matches!(c.kind, CollectiveKind::OwnerRows { .. }))
    })
}

/// A unit is one token.
#[derive(Clone, Copy)]
struct Rows<'a> {
    ids: &'a [u32],
    table: Elems<'a>,
    share: Share,
    out: Shared<f32>,
    cols: usize,
    scale: f32,
}

impl Units for Rows<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, tokens: Range<usize>) {
        let (cols, scale) = (self.cols, self.scale);
        for t in tokens {
            // SAFETY: the caller's word; a share's row is a row of the table.
            unsafe {
                let out = shifted(self.out, t * cols);
                match (self.share.row(self.ids[t]), self.table) {
                    (None, _) => sweep::<V>(0, cols, Fill { out }),
                    (Some(row), Elems::F32(table)) => {
                        let x = Shared(table.as_ptr().add(row * cols).cast_mut());
                        sweep::<V>(0, cols, Scaled { x, scale, out });
                    }
                    (Some(row), Elems::Bf16(table)) => {
                        let x = Shared(table.as_ptr().add(row * cols).cast::<u16>().cast_mut());
                        sweep::<V>(0, cols, ScaledBf16 { x, scale, out });
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Fill {
    out: Shared<f32>,
}

impl Elementwise for Fill {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe { store(V::zero(), self.out, at, n) };
    }
}

#[derive(Clone, Copy)]
struct Scaled {
    x: Shared<f32>,
    scale: f32,
    out: Shared<f32>,
}

impl Elementwise for Scaled {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe { store(load::<V>(self.x, at, n).mul(V::splat(self.scale)), self.out, at, n) };
    }
}

#[derive(Clone, Copy)]
struct ScaledBf16 {
    x: Shared<u16>,
    scale: f32,
    out: Shared<f32>,
}

impl Elementwise for ScaledBf16 {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let x = self.x.get().add(at);
            let x = if n == LANES { V::load_bf16(x) } else { V::load_bf16_first(x, n) };
            store(x.mul(V::splat(self.scale)), self.out, at, n);
        }
    }
}

/// `out[t] = table[id − first]·scale`; +0 where another rank owns the id.
pub(crate) fn embed(context: &Context, op: &Embed, frame: &Frame<'_>) -> Result<(), ExecError> {
    // SAFETY: neither is written by the operation.
    let (ids, table) = unsafe { (frame.u32(op.ids), frame.elems(op.table)) };
    let share = Share { first: op.first, words: op.words };
    let table_rows = frame.rows(op.table);
    share.check(ids, op.words < table_rows || !is_shared(frame, op.out))?;
    let cols = frame.cols(op.out);
    assert!(op.words <= table_rows && cols == frame.cols(op.table), "words are rows of the table");
    let out = source(frame, op.out, ids.len() * cols);
    let kernel = Rows { ids, table, share, out, cols, scale: op.scale };
    // SAFETY: `out` has a row for every id.
    unsafe { for_units(context, ids.len(), cols, kernel) };
    Ok(())
}

/// A unit is one vector of columns: tokens ascending.
#[derive(Clone, Copy)]
struct Scatter<'a> {
    ids: &'a [u32],
    share: Share,
    dout: Shared<f32>,
    dtable: Shared<f32>,
    cols: usize,
    scale: f32,
}

impl Units for Scatter<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, vectors: Range<usize>) {
        let (from, to) = (vectors.start * LANES, self.cols.min(vectors.end * LANES));
        for (t, &id) in self.ids.iter().enumerate() {
            if let Some(row) = self.share.row(id) {
                // SAFETY: the caller's word; a share's row is a row of the table.
                unsafe {
                    let dout = shifted(self.dout, t * self.cols);
                    let dtable = shifted(self.dtable, row * self.cols);
                    sweep::<V>(from, to, AddScaled { dout, dtable, scale: self.scale });
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct AddScaled {
    dout: Shared<f32>,
    dtable: Shared<f32>,
    scale: f32,
}

impl Elementwise for AddScaled {
    #[inline(always)]
    unsafe fn at<V: Vector>(self, at: usize, n: usize) {
        // SAFETY: the caller's word.
        unsafe {
            let value = load::<V>(self.dout, at, n).mul(V::splat(self.scale));
            store(load::<V>(self.dtable, at, n).add(value), self.dtable, at, n);
        }
    }
}

/// `dtable[id − first] += dout[t]·scale`: one product and one addition, tokens
/// ascending. Threads share the columns.
pub(crate) fn embed_backward(
    context: &Context,
    op: &EmbedBackward,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    // SAFETY: ids are not written by the operation.
    let ids = unsafe { frame.u32(op.ids) };
    let share = Share { first: op.first, words: op.words };
    let (dtable, len) = target(frame, op.dtable);
    let (rows, cols) = (frame.rows(op.dtable), frame.cols(op.dtable));
    share.check(ids, op.words < rows)?;
    assert!(op.words <= rows, "words are rows of the table");
    if op.zero {
        // SAFETY: `dtable` has `len` elements.
        unsafe { for_elements(context, len, Fill { out: dtable }) };
    }
    let dout = source(frame, op.dout, ids.len() * cols);
    let kernel = Scatter { ids, share, dout, dtable, cols, scale: op.scale };
    // SAFETY: `dout` has a row for every id.
    unsafe { for_units(context, cols.div_ceil(LANES), ids.len() * LANES, kernel) };
    Ok(())
}
