//! Attention backward: all gradients in one pass over the tiles.
//!
//! A task is a key head and a chunk of [`CHUNK`] keys of a segment. It visits the
//! group's query heads, in each the tiles of queries ascending, in each the chunk's
//! key blocks ascending: that is the order of the `dk` and `dv` chains. A `dq` chain
//! runs over all keys ascending, so the task of the next chunk takes a tile up only
//! once this one has left it; the tiles flow through the chunks as in a pipeline.

use std::sync::atomic::{AtomicU32, Ordering};

use super::block::{copy, transpose};
use super::error::AttentionError;
use super::forward::{Forward, mask};
use super::gemm::{ByRow, ByStep, Product, ROWS, Right, Start, left};
use super::view::{Rows, RowsMut, Seen, check_keys, check_queries, rows_in, visible};
use super::{BLOCK, Heads, Segment, TILE};
use crate::context::{Context, Shared};
use crate::scratch;
use crate::simd::{Kernel, LANES, Vector, dispatch, exp};

/// Keys of a task. Not part of the arithmetic.
const CHUNK: usize = 512;

/// The inputs of [`backward`].
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    /// The forward inputs; its segments name the queries.
    pub forward: Forward<'a>,
    /// Gradient of the output, `[query rows, query heads * dim]`.
    pub dout: Rows<'a>,
    /// `lse[row * query heads + head]` of the forward pass.
    pub lse: &'a [f32],
    /// [`super::delta`], laid out as `lse`.
    pub delta: &'a [f32],
    /// For each segment the keys (positions in its sequence) whose products are
    /// computed; the first is a multiple of [`BLOCK`]. Keys that no query of the
    /// segment sees may be left out or not. `None` is all keys.
    pub keys: Option<&'a [std::ops::Range<usize>]>,
}

/// The outputs of [`backward`]; what is absent is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// Gradient of the queries, rows as `q`. Exact only where the keys are all keys.
    pub dq: Option<RowsMut<'a>>,
    /// Gradient of keys and values, rows as `k`. Exact only where the segment holds
    /// every query that sees the keys. Segments may not share key rows.
    pub dkv: Option<(RowsMut<'a>, RowsMut<'a>)>,
}

/// Bytes of scratch memory that [`backward`] needs for segments of the lengths that
/// `keys` (positions up to the last query) lists.
#[must_use]
pub fn backward_workspace_bytes(heads: &Heads, segments: &[Segment], threads: usize) -> usize {
    let tasks: usize = segments.iter().map(|s| s.keys().div_ceil(CHUNK) * heads.key).sum();
    scratch::bytes(Layout::of(heads).words, threads) + 4 * tasks.next_multiple_of(LANES)
}

/// Words of a thread's scratch memory.
#[derive(Clone, Copy)]
struct Layout {
    /// Keys and values of the chunk transposed, block after block, and keys by rows.
    kt: usize,
    vt: usize,
    k: usize,
    /// Chains of the chunk's keys and values.
    dk: usize,
    dv: usize,
    /// The tile: queries, gradient of the output (both by rows and transposed), gradient
    /// of the queries.
    q: usize,
    dout: usize,
    qt: usize,
    doutt: usize,
    dq: usize,
    /// Probabilities and score gradients, `[TILE][BLOCK]`.
    p: usize,
    ds: usize,
    words: usize,
}

impl Layout {
    fn of(heads: &Heads) -> Self {
        let (across, along) = (CHUNK * heads.dim, CHUNK * heads.padded());
        let tile = TILE * heads.padded();
        let mut at = 0;
        let mut take = |words: usize| {
            at += words;
            at - words
        };
        let (kt, vt) = (take(across), take(across));
        let (k, dk, dv) = (take(along), take(along), take(along));
        let (q, dout, dq) = (take(tile), take(tile), take(tile));
        let (qt, doutt) = (take(heads.dim * TILE), take(heads.dim * TILE));
        let (p, ds) = (take(TILE * BLOCK), take(TILE * BLOCK));
        let words = at.next_multiple_of(LANES);
        Self { kt, vt, k, dk, dv, q, dout, qt, doutt, dq, p, ds, words }
    }
}

/// Computes the gradients of attention.
///
/// # Errors
/// [`AttentionError`]; nothing is then written.
pub fn backward(
    context: &Context,
    input: &Backward<'_>,
    gradients: Gradients<'_>,
    workspace: &mut [u8],
) -> Result<(), AttentionError> {
    let f = &input.forward;
    check(input, &gradients)?;
    let needed = backward_workspace_bytes(&f.heads, f.segments, context.threads());
    if workspace.len() < needed {
        return Err(AttentionError::Workspace { needed, given: workspace.len() });
    }
    let layout = Layout::of(&f.heads);
    let scratch = Shared(scratch::align(workspace));
    let tasks: usize = (0..f.segments.len()).map(|s| input.chunks(s) * f.heads.key).sum();
    // SAFETY: the workspace holds the threads' parts, then one counter for each task.
    let progress = unsafe {
        let counters = scratch.get().add(layout.words * context.threads()).cast::<AtomicU32>();
        counters.write_bytes(0, tasks);
        std::slice::from_raw_parts(counters, tasks)
    };
    let shared = |rows: RowsMut<'_>| (Shared(rows.data.as_mut_ptr()), rows.row_stride);
    let dq = gradients.dq.map(shared);
    let dkv = gradients.dkv.map(|(dk, dv)| (shared(dk), shared(dv)));
    context.for_each(tasks, |thread, task| {
        let (segment, chunk, head) = locate(input, task);
        let keys = input.range(segment);
        let first = keys.start + chunk * CHUNK;
        let job = Chunk {
            input,
            layout,
            segment,
            head,
            keys: first..keys.end.min(first + CHUNK),
            before: (chunk > 0).then(|| &progress[task - f.heads.key]),
            done: &progress[task],
            // SAFETY: the workspace holds a part for each thread.
            scratch: unsafe { scratch.get().add(thread * layout.words) },
            dq: dq.map(|(p, row)| (p.get(), row)),
            dkv: dkv.map(|((dk, k_row), (dv, v_row))| [(dk.get(), k_row), (dv.get(), v_row)]),
        };
        let _done = Done(&progress[task]);
        // SAFETY: views were checked; tasks write disjoint keys, and a tile of dq
        // only when its turn has come.
        unsafe { dispatch(context.isa(), job) };
    });
    Ok(())
}

impl Backward<'_> {
    /// Keys of a segment that are computed.
    fn range(&self, segment: usize) -> std::ops::Range<usize> {
        let all = self.forward.segments[segment].keys();
        let all = if self.forward.segments[segment].queries == 0 { 0 } else { all };
        match self.keys {
            None => 0..all,
            Some(keys) => keys[segment].start.min(all)..keys[segment].end.min(all),
        }
    }

    fn chunks(&self, segment: usize) -> usize {
        self.range(segment).len().div_ceil(CHUNK)
    }
}

/// `(segment, chunk, head)`; tasks of a segment are ordered by chunk, then head.
fn locate(input: &Backward<'_>, task: usize) -> (usize, usize, usize) {
    let heads = input.forward.heads.key;
    let mut first = 0;
    for segment in 0..input.forward.segments.len() {
        let tasks = input.chunks(segment) * heads;
        if task < first + tasks {
            let local = task - first;
            return (segment, local / heads, local % heads);
        }
        first += tasks;
    }
    unreachable!("a task past the last segment")
}

fn check(input: &Backward<'_>, gradients: &Gradients<'_>) -> Result<(), AttentionError> {
    let f = &input.forward;
    super::forward::check_inputs(f)?;
    let (wide, narrow) = (f.heads.query * f.heads.dim, f.heads.key * f.heads.dim);
    let rows = |view, r: &Rows<'_>| rows_in(view, r.data.len(), r.row_stride, wide);
    let mut query_views = [
        ("dout", rows("dout", &input.dout)?),
        ("lse", input.lse.len() / f.heads.query),
        ("delta", input.delta.len() / f.heads.query),
        ("dq", usize::MAX),
    ];
    if let Some(dq) = &gradients.dq {
        query_views[3].1 = rows_in("dq", dq.data.len(), dq.row_stride, wide)?;
    }
    for (view, rows) in query_views {
        check_queries(f.segments, view, rows)?;
    }
    if let Some(keys) = input.keys {
        if keys.len() != f.segments.len() {
            let segments = f.segments.len();
            return Err(AttentionError::KeyRanges { ranges: keys.len(), segments });
        }
        if let Some(segment) = keys.iter().position(|keys| keys.start % BLOCK != 0) {
            return Err(AttentionError::KeyRange { segment, first: keys[segment].start });
        }
    }
    for segment in 0..f.segments.len() {
        let keys = input.range(segment);
        let key_views = [("k", &f.k), ("v", &f.v)];
        for (view, r) in key_views {
            let rows = rows_in(view, r.data.len(), r.row_stride, narrow)?;
            check_keys(f.blocks, view, segment, (keys.start, keys.end), rows)?;
        }
        if let Some((dk, dv)) = &gradients.dkv {
            for (view, r) in [("dk", dk), ("dv", dv)] {
                let rows = rows_in(view, r.data.len(), r.row_stride, narrow)?;
                check_keys(f.blocks, view, segment, (keys.start, keys.end), rows)?;
            }
        }
    }
    if gradients.dkv.is_some() { check_disjoint(input) } else { Ok(()) }
}

/// Key rows must ascend over segments and blocks: then no two tasks write one row.
fn check_disjoint(input: &Backward<'_>) -> Result<(), AttentionError> {
    let mut free = 0;
    for segment in 0..input.forward.segments.len() {
        let keys = input.range(segment);
        for block in keys.start / BLOCK..keys.end.div_ceil(BLOCK) {
            let row = input.forward.blocks.first_row(segment, block);
            if row < free {
                return Err(AttentionError::SharedKeys { segment, row });
            }
            free = row + (keys.end - block * BLOCK).min(BLOCK);
        }
    }
    Ok(())
}

/// Says that a task is through with every step when it ends, by a panic too: others wait for it without end, and the panic
/// is raised once they are done.
struct Done<'a>(&'a AtomicU32);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(u32::MAX, Ordering::Release);
    }
}

/// A chunk of keys and the group of query heads of one key head.
struct Chunk<'a> {
    input: &'a Backward<'a>,
    layout: Layout,
    segment: usize,
    head: usize,
    keys: std::ops::Range<usize>,
    /// Steps done by the task of the chunk before; none for the first.
    before: Option<&'a AtomicU32>,
    done: &'a AtomicU32,
    scratch: *mut f32,
    dq: Option<(*mut f32, usize)>,
    dkv: Option<[(*mut f32, usize); 2]>,
}

impl Kernel for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let segment = self.input.forward.segments[self.segment];
        let group = self.input.forward.heads.group();
        let tiles = segment.queries.div_ceil(TILE);
        // SAFETY: the scratch memory was laid out for the heads, the views checked.
        unsafe {
            self.load_keys::<V>();
            for step in 0..group * tiles {
                let (g, first) = (step / tiles, step % tiles * TILE);
                let count = TILE.min(segment.queries - first);
                // Also where there is nothing to do: whoever waits for this chunk relies
                // on all earlier ones having left the tile.
                self.wait(step);
                if self.before.is_none() || self.sees(first, count) {
                    self.step::<V>(g, first, count);
                }
                self.done.store(step as u32 + 1, Ordering::Release);
            }
            self.store_keys::<V>();
        }
    }
}

impl Chunk<'_> {
    /// Whether any query of the tile sees a key of the chunk.
    #[inline(always)]
    fn sees(&self, first: usize, count: usize) -> bool {
        let position = self.input.forward.segments[self.segment].position + first;
        let low = visible(position, self.input.forward.window).0;
        low < self.keys.end && self.keys.start < position + count
    }

    /// Waits until the chunk before has done `step`.
    #[inline(always)]
    fn wait(&self, step: usize) {
        let Some(before) = self.before.filter(|_| self.dq.is_some()) else { return };
        let mut spins = 0_u32;
        while before.load(Ordering::Acquire) <= step as u32 {
            spins += 1;
            // The other task may be waiting for this very core.
            if spins.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }

    /// Blocks of the chunk: `(first key, keys)`.
    #[inline(always)]
    fn block(&self, block: usize) -> (usize, usize) {
        let first = self.keys.start + block * BLOCK;
        (first, BLOCK.min(self.keys.end - first))
    }

    #[inline(always)]
    unsafe fn load_keys<V: Vector>(&self) {
        let Forward { heads, k, v, blocks, .. } = self.input.forward;
        let (dim, padded, column) = (heads.dim, heads.padded(), self.head * heads.dim);
        let l = &self.layout;
        for b in 0..self.keys.len().div_ceil(BLOCK) {
            let (first, count) = self.block(b);
            let row = blocks.first_row(self.segment, first / BLOCK);
            // SAFETY: the rows were checked.
            unsafe {
                let to = |at: usize| self.scratch.add(at);
                let from = k.data.as_ptr().add(row * k.row_stride + column);
                transpose::<V>(from, k.row_stride, count, dim, to(l.kt + b * BLOCK * dim));
                let by_rows = to(l.k + b * BLOCK * padded);
                copy::<V>(from, k.row_stride, (count, BLOCK), (dim, padded), by_rows);
                let from = v.data.as_ptr().add(row * v.row_stride + column);
                transpose::<V>(from, v.row_stride, count, dim, to(l.vt + b * BLOCK * dim));
            }
        }
        // SAFETY: the chains lie one after the other.
        unsafe { self.scratch.add(l.dk).write_bytes(0, l.q - l.dk) };
    }

    #[inline(always)]
    unsafe fn store_keys<V: Vector>(&self) {
        let Forward { heads, blocks, .. } = self.input.forward;
        let Some(targets) = self.dkv else { return };
        for (from, (to, row_stride)) in [self.layout.dk, self.layout.dv].into_iter().zip(targets) {
            for b in 0..self.keys.len().div_ceil(BLOCK) {
                let (first, count) = self.block(b);
                let row = blocks.first_row(self.segment, first / BLOCK);
                // SAFETY: the rows were checked.
                unsafe {
                    let from = self.scratch.add(from + b * BLOCK * heads.padded());
                    let to = to.add(row * row_stride + self.head * heads.dim);
                    store::<V>(from, count, &heads, to, row_stride);
                }
            }
        }
    }

    /// One tile of queries of head `g` of the group against the chunk.
    #[inline(always)]
    unsafe fn step<V: Vector>(&self, g: usize, first: usize, count: usize) {
        let Forward { heads, q, segments, .. } = &self.input.forward;
        let (dim, padded) = (heads.dim, heads.padded());
        let column = (self.head * heads.group() + g) * dim;
        let row = segments[self.segment].query_row + first;
        let (l, dout) = (&self.layout, &self.input.dout);
        // SAFETY: the rows were checked.
        unsafe {
            for (rows, by_row, across) in [(q, l.q, l.qt), (dout, l.dout, l.doutt)] {
                let from = rows.data.as_ptr().add(row * rows.row_stride + column);
                let to = self.scratch.add(by_row);
                copy::<V>(from, rows.row_stride, (count, count), (dim, padded), to);
                transpose::<V>(from, rows.row_stride, count, dim, self.scratch.add(across));
            }
            if let Some((dq, dq_row)) = self.dq {
                let from = dq.add(row * dq_row + column);
                // The first chunk starts the chains.
                let rows = if self.before.is_some() { count } else { 0 };
                copy::<V>(from, dq_row, (rows, count), (dim, padded), self.scratch.add(l.dq));
            }
            for b in 0..self.keys.len().div_ceil(BLOCK) {
                self.tile::<V>(b, (g, first, count));
            }
            if let Some((dq, dq_row)) = self.dq {
                let to = dq.add(row * dq_row + column);
                store::<V>(self.scratch.add(l.dq), count, heads, to, dq_row);
            }
        }
    }

    /// One tile of queries against one block.
    #[inline(always)]
    unsafe fn tile<V: Vector>(&self, b: usize, (g, first, count): (usize, usize, usize)) {
        let (first_key, keys) = self.block(b);
        let f = &self.input.forward;
        let position = f.segments[self.segment].position + first;
        let low = visible(position, f.window).0;
        if low >= first_key + keys || first_key >= position + count {
            return;
        }
        // Where every query sees every key, all rows are one product.
        let last_low = visible(position + count - 1, f.window).0;
        let whole = last_low <= first_key && first_key + keys <= position + 1;
        let at_once = if whole { TILE } else { ROWS };
        // SAFETY: the scratch memory was laid out for the heads.
        unsafe {
            for i in (0..count).step_by(at_once) {
                self.rows::<V>(b, (g, first, i), at_once.min(count - i));
            }
            if self.dkv.is_some() {
                for j in (0..keys).step_by(at_once) {
                    self.keys::<V>(b, (position, count), (j, at_once.min(keys - j)));
                }
            }
        }
    }

    /// Probabilities, score gradients and `dq` of some queries of the tile.
    #[inline(always)]
    unsafe fn rows<V: Vector>(&self, b: usize, (g, first, i): (usize, usize, usize), rows: usize) {
        let (first_key, keys) = self.block(b);
        let Forward { heads, segments, window, .. } = self.input.forward;
        let position = segments[self.segment].position + first + i;
        let seen = Seen { position, window, first_key, keys };
        let (low, high) = seen.by_any(rows);
        if low >= high {
            return;
        }
        let (dim, padded, l) = (heads.dim, heads.padded(), &self.layout);
        let vectors = high.div_ceil(LANES);
        // SAFETY: the scratch memory was laid out for the heads.
        unsafe {
            let p = self.scratch.add(l.p + i * BLOCK);
            let ds = self.scratch.add(l.ds + i * BLOCK);
            for (rows_at, block_at, to) in [(l.qt, l.kt, p), (l.doutt, l.vt, ds)] {
                let product = Product {
                    rows,
                    vectors,
                    steps: dim,
                    left: left::<ByStep>(self.scratch.add(rows_at + i)),
                    right: Right { p: self.scratch.add(block_at + b * BLOCK * dim), step: BLOCK },
                    start: Start::Zero,
                    to,
                    to_row: BLOCK,
                };
                product.run::<V>();
            }
            self.score_gradients::<V>((g, first + i), rows, seen, vectors, p, ds);
            if self.dq.is_some() {
                let k = self.scratch.add(l.k + (b * BLOCK + low) * padded);
                let product = Product {
                    rows,
                    vectors: padded / LANES,
                    steps: high - low,
                    left: left::<ByRow>(ds.add(low)),
                    right: Right { p: k, step: padded },
                    start: Start::Target,
                    to: self.scratch.add(l.dq + i * padded),
                    to_row: padded,
                };
                product.run::<V>();
            }
        }
    }

    /// In place: scores to probabilities, `dp` to `ds`.
    #[inline(always)]
    unsafe fn score_gradients<V: Vector>(
        &self,
        (g, query): (usize, usize),
        rows: usize,
        seen: Seen,
        vectors: usize,
        p: *mut f32,
        ds: *mut f32,
    ) {
        let Forward { heads, segments, scale, .. } = self.input.forward;
        let head = self.head * heads.group() + g;
        let row = segments[self.segment].query_row + query;
        // SAFETY: inside the scratch memory; lse and delta were checked.
        unsafe {
            let scale = V::splat(scale);
            for r in 0..rows {
                let at = (row + r) * heads.query + head;
                let lse = V::splat(*self.input.lse.get_unchecked(at));
                let delta = V::splat(*self.input.delta.get_unchecked(at));
                let (from, to) = seen.by(r);
                for c in 0..vectors {
                    let (p, ds) = (p.add(r * BLOCK + c * LANES), ds.add(r * BLOCK + c * LANES));
                    let s = mask::<V>(V::load(p).mul(scale), c, from, to);
                    let prob = exp(s.sub(lse));
                    prob.store(p);
                    prob.mul(V::load(ds).sub(delta)).mul(scale).store(ds);
                }
            }
        }
    }

    /// `dk` and `dv` of some keys of the block: the queries of the tile that see them.
    #[inline(always)]
    unsafe fn keys<V: Vector>(
        &self,
        b: usize,
        (position, count): (usize, usize),
        (j, rows): (usize, usize),
    ) {
        let key = self.block(b).0 + j;
        let from = key.saturating_sub(position);
        let window = self.input.forward.window.unwrap_or(usize::MAX);
        let to = (key + rows - 1).saturating_add(window).saturating_sub(position).min(count);
        if from >= to {
            return;
        }
        let (padded, l) = (self.input.forward.heads.padded(), &self.layout);
        // SAFETY: inside the scratch memory.
        unsafe {
            for (weights, rows_at, to_at) in [(l.ds, l.q, l.dk), (l.p, l.dout, l.dv)] {
                let product = Product {
                    rows,
                    vectors: padded / LANES,
                    steps: to - from,
                    left: left::<ByStep>(self.scratch.add(weights + from * BLOCK + j)),
                    right: Right { p: self.scratch.add(rows_at + from * padded), step: padded },
                    start: Start::Target,
                    to: self.scratch.add(to_at + (b * BLOCK + j) * padded),
                    to_row: padded,
                };
                product.run::<V>();
            }
        }
    }
}

/// Stores padded rows, `+ 0` added.
#[inline(always)]
unsafe fn store<V: Vector>(
    from: *const f32,
    rows: usize,
    heads: &Heads,
    to: *mut f32,
    row_stride: usize,
) {
    for r in 0..rows {
        for d in (0..heads.dim).step_by(LANES) {
            // SAFETY: as the caller's.
            unsafe {
                let value = V::load(from.add(r * heads.padded() + d)).add(V::zero());
                value.store_first(to.add(r * row_stride + d), LANES.min(heads.dim - d));
            }
        }
    }
}
