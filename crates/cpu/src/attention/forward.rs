//! Attention forward.

use super::block::{copy, transpose};
use super::error::AttentionError;
use super::gemm::{ByRow, ByStep, Product, ROWS, Right, Start, left};
use super::view::{
    Heads, KeyBlocks, Rows, RowsMut, Seen, Segment, check_keys, check_queries, rows_in, visible,
};
use super::{BLOCK, SPAN, TILE};
use crate::context::{Context, Shared};
use crate::scratch;
use crate::simd::{Kernel, LANES, Vector, dispatch, exp, ln};

/// The inputs of [`forward`].
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    /// Head counts and size.
    pub heads: Heads,
    /// Multiplier of the scores.
    pub scale: f32,
    /// Only the last so many keys are visible, the query's own included.
    pub window: Option<usize>,
    /// Queries `[query rows, query heads * dim]`.
    pub q: Rows<'a>,
    /// Keys `[key rows, key heads * dim]`.
    pub k: Rows<'a>,
    /// Values, as the keys.
    pub v: Rows<'a>,
    /// The queries to compute.
    pub segments: &'a [Segment],
    /// Where each segment's keys and values lie.
    pub blocks: &'a dyn KeyBlocks,
}

/// Bytes of scratch memory that [`forward`] needs.
#[must_use]
pub fn forward_workspace_bytes(heads: &Heads, threads: usize) -> usize {
    scratch::bytes(Layout::of(heads).words, threads)
}

/// Words of a thread's scratch memory.
#[derive(Clone, Copy)]
struct Layout {
    v: usize,
    /// Queries transposed, head after head.
    qt: usize,
    scores: usize,
    rows: usize,
    total: usize,
    state: usize,
    words: usize,
}

/// Per row: sixteen lane sums, then m, M, L and whether there was a span.
const LANE_SUMS: usize = 0;
const STATE_WORDS: usize = LANES + 3;

impl Layout {
    fn of(heads: &Heads) -> Self {
        let (rows, padded) = (heads.group() * TILE, heads.padded());
        let v = heads.dim * BLOCK;
        let qt = v + BLOCK * padded;
        let scores = qt + heads.group() * heads.dim * TILE;
        let acc = scores + TILE * BLOCK;
        let total = acc + rows * padded;
        let state = total + rows * padded;
        let words = (state + (rows + LANES) * STATE_WORDS).next_multiple_of(LANES);
        Self { v, qt, scores, rows: acc, total, state, words }
    }
}

/// Computes attention: `out` `[query rows, query heads * dim]` and, where given,
/// `lse[row * query heads + head]`. Rows of no segment are left as they are.
///
/// # Errors
/// [`AttentionError`]; nothing is then written.
pub fn forward(
    context: &Context,
    input: &Forward<'_>,
    out: RowsMut<'_>,
    lse: Option<&mut [f32]>,
    workspace: &mut [u8],
) -> Result<(), AttentionError> {
    let lse_len = lse.as_ref().map(|lse| lse.len());
    check(input, &out, lse_len)?;
    let heads = &input.heads;
    let needed = forward_workspace_bytes(heads, context.threads());
    if workspace.len() < needed {
        return Err(AttentionError::Workspace { needed, given: workspace.len() });
    }
    let layout = Layout::of(heads);
    let scratch = Shared(scratch::align(workspace));
    let out_row = out.row_stride;
    let out = Shared(out.data.as_mut_ptr());
    let lse = lse.map(|lse| Shared(lse.as_mut_ptr()));
    let tiles: usize = input.segments.iter().map(|s| s.queries.div_ceil(TILE)).sum();
    context.for_each(tiles * heads.key, |thread, task| {
        let (segment, first) = locate(input.segments, task / heads.key);
        let tile = Tile {
            input,
            layout,
            segment,
            head: task % heads.key,
            first,
            count: TILE.min(input.segments[segment].queries - first),
            // SAFETY: the workspace holds a part for each thread.
            scratch: unsafe { scratch.get().add(thread * layout.words) },
            out: out.get(),
            out_row,
            lse: lse.map(Shared::get),
        };
        // SAFETY: views were checked; tiles write disjoint rows and heads.
        unsafe { dispatch(context.isa(), tile) };
    });
    Ok(())
}

/// `(segment, first query)` of a tile. A segment's last tile, which sees the most
/// keys, comes first.
fn locate(segments: &[Segment], mut tile: usize) -> (usize, usize) {
    for (index, segment) in segments.iter().enumerate() {
        let tiles = segment.queries.div_ceil(TILE);
        if tile < tiles {
            return (index, (tiles - 1 - tile) * TILE);
        }
        tile -= tiles;
    }
    unreachable!("a tile past the last segment")
}

fn check(
    input: &Forward<'_>,
    out: &RowsMut<'_>,
    lse_len: Option<usize>,
) -> Result<(), AttentionError> {
    check_inputs(input)?;
    let heads = &input.heads;
    let out_rows = rows_in("out", out.data.len(), out.row_stride, heads.query * heads.dim)?;
    check_queries(input.segments, "out", out_rows)?;
    if let Some(len) = lse_len {
        check_queries(input.segments, "lse", len / heads.query)?;
    }
    let narrow = heads.key * heads.dim;
    let k_rows = rows_in("k", input.k.data.len(), input.k.row_stride, narrow)?;
    let v_rows = rows_in("v", input.v.data.len(), input.v.row_stride, narrow)?;
    for (segment, s) in input.segments.iter().enumerate().filter(|(_, s)| s.queries > 0) {
        let keys = (visible(s.position, input.window).0, s.keys());
        check_keys(input.blocks, "k", segment, keys, k_rows)?;
        check_keys(input.blocks, "v", segment, keys, v_rows)?;
    }
    Ok(())
}

/// What forward and backward share: heads, window, queries, disjoint segments.
pub(super) fn check_inputs(input: &Forward<'_>) -> Result<(), AttentionError> {
    let heads = &input.heads;
    heads.check()?;
    if input.window == Some(0) {
        return Err(AttentionError::Window);
    }
    let mut free = 0;
    for (segment, s) in input.segments.iter().enumerate().filter(|(_, s)| s.queries > 0) {
        if s.query_row < free {
            return Err(AttentionError::SharedQueries { segment, row: s.query_row });
        }
        free = s.query_row.saturating_add(s.queries);
    }
    let wide = heads.query * heads.dim;
    let q_rows = rows_in("q", input.q.data.len(), input.q.row_stride, wide)?;
    check_queries(input.segments, "q", q_rows)
}

/// The queries of one tile in the heads of one group.
struct Tile<'a> {
    input: &'a Forward<'a>,
    layout: Layout,
    segment: usize,
    head: usize,
    first: usize,
    count: usize,
    scratch: *mut f32,
    out: *mut f32,
    out_row: usize,
    lse: Option<*mut f32>,
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let position = self.position(0);
        let first_key = visible(position, self.input.window).0;
        let keys = position + self.count;
        let blocks = first_key / BLOCK..keys.div_ceil(BLOCK);
        let first_span = blocks.start / SPAN;
        // One span needs no second set of sums.
        let spans = (blocks.end - 1) / SPAN - first_span + 1;
        // SAFETY: the scratch memory was laid out for the heads.
        unsafe {
            for row in 0..self.input.heads.group() * self.count {
                self.row_state(row, LANES + 1).write(f32::NEG_INFINITY);
            }
            self.load_queries::<V>();
            for span in first_span..first_span + spans {
                self.begin_span::<V>();
                let end = blocks.end.min((span + 1) * SPAN);
                for block in blocks.start.max(span * SPAN)..end {
                    // With few queries a block is read for the first time here, and
                    // reading it is most of the work.
                    if self.count < ROWS && block + 1 < blocks.end {
                        self.ask_for_block::<V>(block + 1, keys);
                    }
                    self.block::<V>(block, keys);
                }
                if spans > 1 {
                    self.merge_span::<V>();
                }
            }
            self.finish::<V>(spans > 1);
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn position(&self, query: usize) -> usize {
        self.input.segments[self.segment].position + self.first + query
    }

    /// Row of query `i` in the query-side views.
    #[inline(always)]
    fn query_row(&self, i: usize) -> usize {
        self.input.segments[self.segment].query_row + self.first + i
    }

    /// Head of row group `g`.
    #[inline(always)]
    fn query_head(&self, g: usize) -> usize {
        self.head * self.input.heads.group() + g
    }

    /// State word `word` of `row`; words of one kind are contiguous over rows, but
    /// for the lane sums.
    #[inline(always)]
    unsafe fn row_state(&self, row: usize, word: usize) -> *mut f32 {
        let rows = self.input.heads.group() * TILE + LANES;
        let at = if word == LANE_SUMS { row * LANES } else { word * rows + row };
        // SAFETY: inside the state.
        unsafe { self.scratch.add(self.layout.state + at) }
    }

    #[inline(always)]
    unsafe fn load_queries<V: Vector>(&self) {
        let Forward { heads, q, .. } = *self.input;
        for g in 0..heads.group() {
            let column = self.query_head(g) * heads.dim;
            // SAFETY: the rows were checked.
            unsafe {
                let from = q.data.as_ptr().add(self.query_row(0) * q.row_stride + column);
                let to = self.scratch.add(self.layout.qt + g * heads.dim * TILE);
                transpose::<V>(from, q.row_stride, self.count, heads.dim, to);
            }
        }
    }

    #[inline(always)]
    unsafe fn begin_span<V: Vector>(&self) {
        let padded = self.input.heads.padded();
        let rows = self.input.heads.group() * self.count;
        // SAFETY: inside the scratch memory.
        unsafe {
            for row in 0..rows {
                V::zero().store(self.row_state(row, LANE_SUMS));
                self.row_state(row, LANES).write(f32::NEG_INFINITY);
            }
            let acc = self.scratch.add(self.layout.rows);
            for at in 0..rows * padded / LANES {
                V::zero().store(acc.add(at * LANES));
            }
        }
    }

    /// Brings the rows of a block nearer while the one before is computed.
    #[inline(always)]
    unsafe fn ask_for_block<V: Vector>(&self, block: usize, keys: usize) {
        let Forward { heads, k, v, .. } = *self.input;
        let count = (keys - block * BLOCK).min(BLOCK);
        let row = self.input.blocks.first_row(self.segment, block);
        for rows in [k, v] {
            let first = row * rows.row_stride + self.head * heads.dim;
            for i in 0..count {
                for d in (0..heads.dim).step_by(LANES) {
                    let at = rows.data.as_ptr().wrapping_add(first + i * rows.row_stride + d);
                    // SAFETY: a prefetch never faults.
                    unsafe { V::prefetch_far(at.cast()) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn block<V: Vector>(&self, block: usize, keys: usize) {
        let Forward { heads, k, v, .. } = *self.input;
        let first_key = block * BLOCK;
        let count = (keys - first_key).min(BLOCK);
        let row = self.input.blocks.first_row(self.segment, block);
        let column = self.head * heads.dim;
        // SAFETY: the rows were checked.
        unsafe {
            let from = k.data.as_ptr().add(row * k.row_stride + column);
            transpose::<V>(from, k.row_stride, count, heads.dim, self.scratch);
            let from = v.data.as_ptr().add(row * v.row_stride + column);
            let to = self.scratch.add(self.layout.v);
            copy::<V>(from, v.row_stride, (count, count), (heads.dim, heads.padded()), to);
            // Where every query sees every key, all rows are one product.
            let (position, last) = (self.position(0), self.position(self.count - 1));
            let whole = visible(last, self.input.window).0 <= first_key
                && first_key + count <= position + 1;
            let at_once = if whole { TILE } else { ROWS };
            for g in 0..heads.group() {
                for i in (0..self.count).step_by(at_once) {
                    self.rows::<V>(g, i, at_once.min(self.count - i), (first_key, count));
                }
            }
        }
    }

    /// Some consecutive queries of one head against a block of `keys` keys.
    #[inline(always)]
    unsafe fn rows<V: Vector>(
        &self,
        g: usize,
        i: usize,
        rows: usize,
        (first_key, keys): (usize, usize),
    ) {
        let Forward { heads, window, .. } = *self.input;
        let row = g * self.count + i;
        let seen = Seen { position: self.position(i), window, first_key, keys };
        let (low, high) = seen.by_any(rows);
        if low >= high {
            return;
        }
        // SAFETY: the scratch memory was laid out for the heads.
        unsafe {
            let scores = self.scratch.add(self.layout.scores);
            let vectors = high.div_ceil(LANES);
            let product = Product {
                rows,
                vectors,
                steps: heads.dim,
                left: left::<ByStep>(self.scratch.add(self.layout.qt + g * heads.dim * TILE + i)),
                right: Right { p: self.scratch, step: BLOCK },
                start: Start::Zero,
                to: scores,
                to_row: BLOCK,
            };
            product.run::<V>();
            let mut alpha = [0.0; TILE];
            for r in (0..rows).step_by(LANES) {
                let some = LANES.min(rows - r);
                let scores = scores.add(r * BLOCK);
                let seen = seen.after(r);
                let alpha = alpha.as_mut_ptr().add(r);
                self.softmax::<V>(row + r, some, seen, vectors, scores, alpha);
            }
            let padded = heads.padded();
            let v = self.scratch.add(self.layout.v + low * padded);
            let product = Product {
                rows,
                vectors: padded / LANES,
                steps: high - low,
                left: left::<ByRow>(scores.add(low)),
                right: Right { p: v, step: padded },
                start: Start::Scaled(alpha.as_ptr()),
                to: self.scratch.add(self.layout.rows + row * padded),
                to_row: padded,
            };
            product.run::<V>();
        }
    }

    /// Turns the scores of up to sixteen rows into probabilities in place, updates m
    /// and the lane sums and writes each row's alpha.
    #[inline(always)]
    unsafe fn softmax<V: Vector>(
        &self,
        row: usize,
        rows: usize,
        seen: Seen,
        vectors: usize,
        scores: *mut f32,
        alphas: *mut f32,
    ) {
        let scale = self.input.scale;
        // SAFETY: the scores and the state are inside the scratch memory.
        unsafe {
            let mut most = [V::splat(f32::NEG_INFINITY); LANES];
            for (r, most) in most.iter_mut().enumerate().take(rows) {
                let (from, to) = seen.by(r);
                for c in 0..vectors {
                    let at = scores.add(r * BLOCK + c * LANES);
                    let s = V::load(at).mul(V::splat(scale));
                    let s = mask::<V>(s, c, from, to);
                    s.store(at);
                    *most = most.max(s);
                }
            }
            let m_at = self.row_state(row, LANES);
            let m = V::load_first(m_at, rows);
            let m_new = m.max(max_of_each(&mut most));
            // A row that has seen nothing yet keeps -inf; anything finite in its
            // place makes its exponentials +0.
            let none = V::splat(f32::NEG_INFINITY);
            let base = m_new.select_equal(none, V::zero(), m_new);
            let alpha = exp(m.sub(base));
            alpha.store_first(alphas, rows);
            m_new.store_first(m_at, rows);
            let (alpha, base) = (alpha.to_array(), base.to_array());
            for r in 0..rows {
                let sums = self.row_state(row + r, LANE_SUMS);
                let mut l = V::load(sums).mul(V::splat(alpha[r]));
                for c in 0..vectors {
                    let at = scores.add(r * BLOCK + c * LANES);
                    let p = exp(V::load(at).sub(V::splat(base[r])));
                    p.store(at);
                    l = l.add(p);
                }
                l.store(sums);
            }
        }
    }

    /// Adds the span's sums to the totals.
    #[inline(always)]
    unsafe fn merge_span<V: Vector>(&self) {
        let padded = self.input.heads.padded();
        // SAFETY: inside the scratch memory.
        unsafe {
            for row in 0..self.input.heads.group() * self.count {
                let (m, l) = self.span(row);
                if m == f32::NEG_INFINITY {
                    continue;
                }
                let (total_m, total_l) =
                    (self.row_state(row, LANES + 1), self.row_state(row, LANES + 2));
                let acc = self.scratch.add(self.layout.rows + row * padded);
                let total = self.scratch.add(self.layout.total + row * padded);
                if *total_m == f32::NEG_INFINITY {
                    total_m.write(m);
                    total_l.write(l);
                    total.copy_from_nonoverlapping(acc, padded);
                    continue;
                }
                let old = *total_m;
                let new = if old > m { old } else { m };
                let a = exp(V::splat(old - new));
                let b = exp(V::splat(m - new));
                let sum = V::splat(*total_l).fma(a, V::splat(l).mul(b)).to_array()[0];
                total_m.write(new);
                total_l.write(sum);
                for d in (0..padded).step_by(LANES) {
                    let scaled = V::load(acc.add(d)).mul(b);
                    V::load(total.add(d)).fma(a, scaled).store(total.add(d));
                }
            }
        }
    }

    /// `(m, l)` of a row's span.
    #[inline(always)]
    unsafe fn span(&self, row: usize) -> (f32, f32) {
        // SAFETY: inside the state.
        unsafe {
            let lanes = self.row_state(row, LANE_SUMS).cast::<[f32; LANES]>().read();
            (*self.row_state(row, LANES), fold(&lanes))
        }
    }

    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, merged: bool) {
        let heads = self.input.heads;
        let padded = heads.padded();
        for g in 0..heads.group() {
            for i in 0..self.count {
                let row = g * self.count + i;
                let sums = if merged { self.layout.total } else { self.layout.rows };
                // SAFETY: inside the scratch memory and the outputs, which were checked.
                unsafe {
                    let (m, l) = if merged {
                        (*self.row_state(row, LANES + 1), *self.row_state(row, LANES + 2))
                    } else {
                        self.span(row)
                    };
                    let inv = V::splat(1.0 / l);
                    let at = self.query_row(i) * self.out_row + self.query_head(g) * heads.dim;
                    let (acc, out) = (self.scratch.add(sums + row * padded), self.out.add(at));
                    for d in (0..heads.dim).step_by(LANES) {
                        let value = V::load(acc.add(d)).mul(inv).add(V::zero());
                        value.store_first(out.add(d), LANES.min(heads.dim - d));
                    }
                    if let Some(lse) = self.lse {
                        let log = ln(V::splat(l)).to_array()[0];
                        let at = self.query_row(i) * heads.query + self.query_head(g);
                        lse.add(at).write(m + log);
                    }
                }
            }
        }
    }
}

/// Lane `i`: the largest lane of vector `i`.
#[inline(always)]
unsafe fn max_of_each<V: Vector>(vectors: &mut [V; LANES]) -> V {
    // SAFETY: as the caller's.
    unsafe {
        V::transpose(vectors);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                vectors[i] = vectors[i].max(vectors[i + width]);
            }
            width /= 2;
        }
        vectors[0]
    }
}

/// -inf in the lanes of vector `c` that lie outside keys `[from, to)` of the block.
#[inline(always)]
pub(super) unsafe fn mask<V: Vector>(s: V, c: usize, from: usize, to: usize) -> V {
    let first = c * LANES;
    if from <= first && first + LANES <= to {
        return s;
    }
    // SAFETY: as the caller's; the table has sixteen lanes.
    unsafe {
        let none = V::splat(f32::NEG_INFINITY);
        let lane = V::load(LANE.as_ptr()).add(V::splat(first as f32));
        let s = lane.select_less(V::splat(to as f32), s, none);
        lane.select_less(V::splat(from as f32), none, s)
    }
}

/// The number of each lane.
static LANE: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// The mid-split tree over sixteen lanes.
#[inline(always)]
pub(crate) fn fold(lanes: &[f32; LANES]) -> f32 {
    let mut sums = *lanes;
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
    }
    sums[0]
}
