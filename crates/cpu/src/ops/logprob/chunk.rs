//! A chunk of active rows: its workspace, its gathered input and its products.

use std::ops::Range;

use arena::{ExecError, Frame};
use program::ops::VocabShard;
use program::{BufferId, Program};

use super::INACTIVE;
use crate::bounds::Bounds;
use crate::context::{Arithmetic, Context, Shared};
use crate::matmul::{Elems, Init, MAX_TERMS, Operand, OutView, Product, Shape, Term, matmul};
use crate::ops::{exhausted, refused};
use crate::workspace::{Workspace, bytes_of};

/// Rows of a chunk: as asked, at most the capacity, and whole pairs or runs, so that
/// those in which the bf16 profiles chain tokens are the same at every chunk size.
fn chunk_rows(asked: usize, capacity: usize, arithmetic: Arithmetic) -> usize {
    let whole = arithmetic.padded(1).next_multiple_of(2);
    let most = asked.min(capacity.next_multiple_of(whole));
    (most / whole * whole).max(whole)
}

/// Which gradients are wanted.
#[derive(Clone, Copy, Default)]
pub(super) struct Want {
    pub(super) dx: bool,
    pub(super) dw: bool,
}

/// The linear map of the head.
pub(super) struct Head<'a> {
    op: &'static str,
    x: &'a [f32],
    weight: Elems<'a>,
    scale: f32,
    shard: &'a VocabShard,
    pub(super) hidden: usize,
}

impl<'a> Head<'a> {
    pub(super) fn new(
        op: &'static str,
        frame: &Frame<'a>,
        x: BufferId,
        weight: BufferId,
        scale: f32,
        shard: &'a VocabShard,
    ) -> Self {
        let hidden = frame.cols(x);
        assert_eq!(frame.cols(weight), hidden, "the head reads its input's columns");
        assert_eq!(frame.rows(weight), shard.rows, "the head holds its share");
        assert!(
            shard.leaves.len() <= MAX_TERMS
                && shard.leaves.first().is_some_and(|leaf| leaf.start == 0)
                && shard.leaves.windows(2).all(|pair| pair[0].end == pair[1].start)
                && shard.leaves.last().is_some_and(|leaf| leaf.end == shard.rows)
                && shard.leaves.iter().all(|leaf| leaf.len() % program::topology::VOCAB_TILE == 0),
            "leaves cut the share in whole tiles"
        );
        // SAFETY: the operation reads both and writes neither.
        let weight = match unsafe { frame.elems(weight) } {
            arena::Elems::F32(weight) => Elems::F32(weight),
            arena::Elems::Bf16(weight) => Elems::Bf16(weight),
        };
        // SAFETY: as above.
        Head { op, x: unsafe { frame.f32(x) }, weight, scale, shard, hidden }
    }
}

/// The workspace of an operation over chunks, beside the list of active rows.
pub(super) struct Work<'a> {
    /// Rows of a chunk.
    pub(super) chunk: usize,
    x: &'a mut [f32],
    dx: &'a mut [f32],
    /// Logits of the chunk `[chunk, share rows]`, then their gradient.
    logits: &'a mut [f32],
    scratch: &'a mut [u8],
}

/// Workspace bytes at a program's capacity: what [`active_rows`] and
/// [`Work::take`] take.
pub(super) fn bytes(
    program: &Program,
    x: BufferId,
    shard: &VocabShard,
    chunk: usize,
    want: Want,
    bounds: &Bounds,
) -> usize {
    let (tokens, hidden) = (program.buffer(x).rows, program.buffer(x).cols);
    let arithmetic = bounds.arithmetic();
    let chunk = chunk_rows(chunk, tokens, arithmetic);
    let rows_of_x = if want.dx { 2 } else { 1 } * bytes_of::<f32>(chunk * hidden);
    let shape = |m, n, k, leaves| Shape { arithmetic, m, n, k, leaves };
    let mut products = bounds.any_m(shape(chunk, shard.rows, hidden, 1));
    if want.dx {
        let leaves = shard.leaves.len();
        products = products.max(bounds.any_m(shape(chunk, hidden, shard.rows, leaves)));
    }
    if want.dw {
        products = products.max(bounds.any_k(shape(shard.rows, hidden, chunk, 1)));
    }
    bytes_of::<u32>(tokens) + rows_of_x + bytes_of::<f32>(chunk * shard.rows) + products
}

/// Lists the rows whose target is active, ascending.
pub(super) fn active_rows<'a>(
    op: &'static str,
    targets: &[u32],
    vocab: usize,
    workspace: &mut Workspace<'a>,
) -> Result<&'a [u32], ExecError> {
    let active: &mut [u32] = workspace.take(targets.len()).map_err(exhausted(op))?;
    let mut count = 0;
    for (row, &id) in targets.iter().enumerate() {
        if id == INACTIVE {
            continue;
        }
        if id as usize >= vocab {
            return Err(ExecError::TargetOutsideVocabulary { row, id, vocab });
        }
        active[count] = row as u32;
        count += 1;
    }
    Ok(&active[..count])
}

impl<'a> Work<'a> {
    /// Takes the workspace for chunks of `chunk` of `tokens` live rows in an arithmetic.
    pub(super) fn take(
        head: &Head<'_>,
        (chunk, arithmetic): (usize, Arithmetic),
        tokens: usize,
        want: Want,
        mut workspace: Workspace<'a>,
    ) -> Result<Self, ExecError> {
        let chunk = chunk_rows(chunk, tokens, arithmetic);
        let mut take = |count| workspace.take(count).map_err(exhausted(head.op));
        let x = take(chunk * head.hidden)?;
        let dx = take(if want.dx { chunk * head.hidden } else { 0 })?;
        let logits = take(chunk * head.shard.rows)?;
        Ok(Work { chunk, x, dx, logits, scratch: workspace.rest() })
    }

    /// Address of the chunk's logits.
    pub(super) fn rows_of_logits(&mut self) -> Shared<f32> {
        Shared(self.logits.as_mut_ptr())
    }

    /// Gathers the input of `rows` and computes their logits: one chain over the
    /// hidden columns each, times the policy's scale.
    pub(super) fn compute_logits(
        &mut self,
        context: &Context,
        head: &Head<'_>,
        rows: &[u32],
    ) -> Result<(), ExecError> {
        let hidden = head.hidden;
        for (to, &row) in self.x.chunks_exact_mut(hidden).zip(rows) {
            to.copy_from_slice(&head.x[row as usize * hidden..][..hidden]);
        }
        let a = Operand::rows(Elems::F32(self.x), hidden);
        let term = Term { a, b: Operand::rows(head.weight, hidden), k: hidden };
        let product = Product {
            m: rows.len(),
            n: head.shard.rows,
            leaves: &[&[term]],
            tail: &[],
            alpha: head.scale,
            init: Init::None,
        };
        let out = OutView::f32(self.logits, head.shard.rows);
        matmul(context, &product, out, self.scratch).map_err(refused(head.op))
    }

    /// Turns the gradient of the chunk's logits into that of its input, one leaf a
    /// leaf of the vocabulary, and scatters it to `rows` of `dx`.
    pub(super) fn input_gradient(
        &mut self,
        context: &Context,
        head: &Head<'_>,
        rows: &[u32],
        dx: Shared<f32>,
    ) -> Result<(), ExecError> {
        let (hidden, share) = (head.hidden, head.shard.rows);
        let logits = Operand::rows(Elems::F32(self.logits), share);
        let weight = Operand::columns(head.weight, hidden);
        let term = |leaf: &Range<usize>| Term {
            a: logits.at(leaf.start),
            b: weight.at(leaf.start * hidden),
            k: leaf.len(),
        };
        let count = head.shard.leaves.len();
        let mut terms = [term(&head.shard.leaves[0]); MAX_TERMS];
        for (to, leaf) in terms.iter_mut().zip(&head.shard.leaves) {
            *to = term(leaf);
        }
        let mut leaves: [&[Term<'_>]; MAX_TERMS] = [&[]; MAX_TERMS];
        for (to, term) in leaves.iter_mut().zip(&terms) {
            *to = std::slice::from_ref(term);
        }
        let product = Product {
            m: rows.len(),
            n: hidden,
            leaves: &leaves[..count],
            tail: &[],
            alpha: 1.0,
            init: Init::None,
        };
        let out = OutView::f32(self.dx, hidden);
        matmul(context, &product, out, self.scratch).map_err(refused(head.op))?;
        for (from, &row) in self.dx.chunks_exact(hidden).zip(rows) {
            let to = dx.get().wrapping_add(row as usize * hidden);
            // SAFETY: `dx` has every row; nothing else uses it now.
            unsafe { from.as_ptr().copy_to_nonoverlapping(to, hidden) };
        }
        Ok(())
    }

    /// Continues the weight's chain over tokens with the chunk's `rows`; the `first`
    /// chunk starts it.
    pub(super) fn weight_gradient(
        &mut self,
        context: &Context,
        head: &Head<'_>,
        rows: usize,
        dw: &mut [f32],
        first: bool,
    ) -> Result<(), ExecError> {
        let (hidden, share) = (head.hidden, head.shard.rows);
        let a = Operand::columns(Elems::F32(self.logits), share);
        let term = Term { a, b: Operand::columns(Elems::F32(self.x), hidden), k: rows };
        let product = Product {
            m: share,
            n: hidden,
            leaves: &[&[term]],
            tail: &[],
            alpha: 1.0,
            init: if first { Init::None } else { Init::Chain },
        };
        matmul(context, &product, OutView::f32(dw, hidden), self.scratch).map_err(refused(head.op))
    }
}
