//! Causal attention: a program's segment table as the kernel's segments, and the two
//! passes of a context rank.

use std::ops::Range;

use arena::{ExecError, Frame};
use program::ops::{Attention, AttentionBackward, Keys};
use program::{BufferId, Program};

use super::lanes::{Elementwise, for_elements, store};
use super::{exhausted, workspace};
use crate::attention::{
    AttentionError, BLOCK, Backward, Contiguous, Forward, Gradients, Heads, KeyBlocks, Paged, Rows,
    RowsMut, Segment, backward, backward_workspace_bytes, delta, forward, forward_workspace_bytes,
};
use crate::context::{Context, Shared};
use crate::simd::Vector;
use crate::workspace::{Workspace, bytes_of};

/// Columns of the segment table.
const COLUMNS: usize = 4;

/// The live segments with queries.
struct Segments<'a> {
    list: &'a [Segment],
    /// Row of each one's key 0, or its first entry of the block table.
    first_keys: &'a [usize],
}

/// Workspace of [`Segments::read`].
fn segments_bytes(table_rows: usize) -> usize {
    bytes_of::<Segment>(table_rows) + bytes_of::<usize>(table_rows)
}

fn outside(what: &'static str, index: usize, limit: usize) -> Result<(), ExecError> {
    if index < limit { Ok(()) } else { Err(ExecError::RowOutside { what, index, limit }) }
}

impl<'a> Segments<'a> {
    /// Reads the table and checks it against the rows that queries and keys have.
    fn read(
        op: &'static str,
        frame: &Frame<'_>,
        table: BufferId,
        query_rows: usize,
        workspace: &mut Workspace<'a>,
    ) -> Result<Self, ExecError> {
        // SAFETY: the operation does not write the table.
        let table = unsafe { frame.u32(table) };
        let rows = || {
            table
                .chunks_exact(COLUMNS)
                .map(|row| [0, 1, 2, 3].map(|i| row[i] as usize))
                .filter(|&[_, queries, ..]| queries > 0)
        };
        let most = table.len() / COLUMNS;
        let list = rows().map(|[query_row, queries, position, _]| Segment {
            query_row,
            queries,
            position,
        });
        let list = workspace.collect(most, list).map_err(exhausted(op))?;
        let first_keys =
            workspace.collect(most, rows().map(|row| row[3])).map_err(exhausted(op))?;
        for segment in list.iter() {
            let last = segment.query_row + segment.queries - 1;
            outside("query row of a segment", last, query_rows)?;
        }
        Ok(Segments { list, first_keys })
    }

    /// Checks that keys in consecutive rows lie in `key_rows` rows.
    fn check_rows(&self, key_rows: usize) -> Result<(), ExecError> {
        for (segment, &first) in self.list.iter().zip(self.first_keys) {
            outside("key row of a segment", first + Segments::keys(segment) - 1, key_rows)?;
        }
        Ok(())
    }

    /// Checks that keys in pages lie in the table, and the pages in `key_rows` rows.
    fn check_pages(&self, table: &[u32], key_rows: usize) -> Result<(), ExecError> {
        for (segment, &first) in self.list.iter().zip(self.first_keys) {
            let keys = Segments::keys(segment);
            let end = first + keys.div_ceil(BLOCK);
            outside("block table entry of a segment", end - 1, table.len())?;
            for (block, &page) in table[first..end].iter().enumerate() {
                let last = (keys - block * BLOCK).min(BLOCK) - 1;
                outside("key row of a segment", page as usize * BLOCK + last, key_rows)?;
            }
        }
        Ok(())
    }

    /// Keys that a segment's queries may see.
    fn keys(segment: &Segment) -> usize {
        segment.position + segment.queries
    }
}

/// A call that the kernel refused.
fn refused(op: &'static str) -> impl Fn(AttentionError) -> ExecError {
    move |error| {
        let why = match error {
            AttentionError::Heads { .. } => "query heads are no multiple of key/value heads",
            AttentionError::Window => "a window of 0 keys leaves nothing to attend to",
            AttentionError::SharedQueries { .. } => {
                "segments share query rows or are out of order: list them by their first row"
            }
            AttentionError::SharedKeys { .. } => {
                "segments share key rows or are out of order: list them by their first key row"
            }
            AttentionError::Workspace { .. } => super::SMALL_WORKSPACE,
            _ => "its buffers do not fit its heads and segments",
        };
        ExecError::Unsupported { op, why }
    }
}

fn rows<'a>(frame: &Frame<'a>, id: BufferId) -> Rows<'a> {
    // SAFETY: the caller passes buffers that the operation reads and does not write.
    Rows { data: unsafe { frame.f32(id) }, row_stride: frame.cols(id) }
}

/// The rows from `first` on.
fn from_row<'a>(rows: &Rows<'a>, first: usize) -> Rows<'a> {
    Rows { data: &rows.data[first * rows.row_stride..], ..*rows }
}

/// `out = softmax(q·kᵀ·scale)·v` over each query's visible keys; see
/// [`crate::attention`] for the order.
pub(crate) fn attention(
    context: &Context,
    op: &Attention,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "Attention";
    let mut workspace = workspace(frame);
    let key_rows = frame.rows(op.k);
    let segments = Segments::read(NAME, frame, op.segments, frame.rows(op.q), &mut workspace)?;
    let (consecutive, paged);
    let blocks: &dyn KeyBlocks = match op.keys {
        Keys::Rows => {
            segments.check_rows(key_rows)?;
            consecutive = Contiguous(segments.first_keys);
            &consecutive
        }
        Keys::Paged { table } => {
            // SAFETY: the operation does not write the table.
            let table = unsafe { frame.u32(table) };
            segments.check_pages(table, key_rows)?;
            paged = Paged { table, first: segments.first_keys };
            &paged
        }
    };
    let input = Forward {
        heads: Heads { query: op.heads, key: op.kv_heads, dim: op.head_dim },
        scale: op.scale,
        window: op.window,
        q: rows(frame, op.q),
        k: rows(frame, op.k),
        v: rows(frame, op.v),
        segments: segments.list,
        blocks,
    };
    // SAFETY: outputs are no inputs, and these are their only users.
    let (out, lse) = unsafe { (frame.f32_mut(op.out), op.lse.map(|lse| frame.f32_mut(lse))) };
    let out = RowsMut { data: out, row_stride: frame.cols(op.out) };
    forward(context, &input, out, lse, workspace.rest()).map_err(refused(NAME))
}

/// Workspace of [`attention`].
pub(crate) fn attention_bytes(op: &Attention, program: &Program, context: &Context) -> usize {
    let heads = Heads { query: op.heads, key: op.kv_heads, dim: op.head_dim };
    segments_bytes(program.buffer(op.segments).rows)
        + forward_workspace_bytes(&heads, context.threads())
}

/// Gradients of attention: in one pass where this rank holds every token, else in one
/// over its queries and one over its keys, with the same bits.
pub(crate) fn attention_backward(
    context: &Context,
    op: &AttentionBackward,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "AttentionBackward";
    let mut workspace = workspace(frame);
    let (all, own) = (frame.rows(op.q), frame.rows(op.dq));
    let key_rows = frame.rows(op.k);
    let segments = Segments::read(NAME, frame, op.segments, all, &mut workspace)?;
    segments.check_rows(key_rows)?;
    let heads = Heads { query: op.heads, key: op.kv_heads, dim: op.head_dim };
    let (dout, out) = (rows(frame, op.dout), rows(frame, op.out));
    let deltas: &mut [f32] = workspace.take(all * op.heads).map_err(exhausted(NAME))?;
    delta(context, &heads, &dout, &out, deltas).map_err(refused(NAME))?;
    let input = Backward {
        forward: Forward {
            heads,
            scale: op.scale,
            window: op.window,
            q: rows(frame, op.q),
            k: rows(frame, op.k),
            v: rows(frame, op.v),
            segments: segments.list,
            blocks: &Contiguous(segments.first_keys),
        },
        dout,
        lse: rows(frame, op.lse).data,
        delta: deltas,
        keys: None,
    };
    let gradient = |id| {
        // SAFETY: gradients are no inputs, and this is each one's only user.
        RowsMut { data: unsafe { frame.f32_mut(id) }, row_stride: frame.cols(id) }
    };
    let (dq, dk, dv) = (gradient(op.dq), gradient(op.dk), gradient(op.dv));
    let covered: usize = segments.list.iter().map(|segment| segment.queries).sum();
    let seen: usize = segments.list.iter().map(Segments::keys).sum();
    if covered < all || seen < key_rows {
        // Rows of no segment have a gradient too: +0.
        for gradient in [&mut *dq.data, &mut *dk.data, &mut *dv.data] {
            clear(context, gradient);
        }
    }
    if own == all {
        let gradients = Gradients { dq: Some(dq), dkv: Some((dk, dv)) };
        return backward(context, &input, gradients, workspace.rest()).map_err(refused(NAME));
    }
    if own == 0 {
        return Ok(());
    }
    let mine = op.first_row..op.first_row + own;
    assert!(mine.end <= all, "a rank's rows are rows of the micro-batch");
    query_pass(context, &input, &segments, &mine, dq, workspace.lend())?;
    key_pass(context, &input, &segments, &mine, (dk, dv), workspace)
}

/// +0 in every element.
fn clear(context: &Context, elements: &mut [f32]) {
    #[derive(Clone, Copy)]
    struct Zero(Shared<f32>);
    impl Elementwise for Zero {
        #[inline(always)]
        unsafe fn at<V: Vector>(self, at: usize, n: usize) {
            // SAFETY: the caller's word.
            unsafe { store(V::zero(), self.0, at, n) };
        }
    }
    // SAFETY: the elements are there.
    unsafe { for_elements(context, elements.len(), Zero(Shared(elements.as_mut_ptr()))) };
}

/// `dq` of the query rows of `mine`, against all keys: every view starts at the first
/// of them.
fn query_pass(
    context: &Context,
    input: &Backward<'_>,
    segments: &Segments<'_>,
    mine: &Range<usize>,
    dq: RowsMut<'_>,
    mut workspace: Workspace<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "AttentionBackward";
    let most = segments.list.len();
    let clipped = || {
        segments.list.iter().zip(segments.first_keys).filter_map(|(segment, &key_row)| {
            let first = segment.query_row.max(mine.start);
            let end = (segment.query_row + segment.queries).min(mine.end);
            let part = Segment {
                query_row: first.checked_sub(mine.start)?,
                queries: end.checked_sub(first).filter(|&queries| queries > 0)?,
                position: segment.position + (first - segment.query_row),
            };
            Some((part, key_row))
        })
    };
    let list = workspace.collect(most, clipped().map(|(part, _)| part)).map_err(exhausted(NAME))?;
    let key_rows =
        workspace.collect(most, clipped().map(|(_, row)| row)).map_err(exhausted(NAME))?;
    let per_head = mine.start * input.forward.heads.query;
    let own = Backward {
        forward: Forward {
            q: from_row(&input.forward.q, mine.start),
            segments: list,
            blocks: &Contiguous(key_rows),
            ..input.forward
        },
        dout: from_row(&input.dout, mine.start),
        lse: &input.lse[per_head..],
        delta: &input.delta[per_head..],
        keys: None,
    };
    let gradients = Gradients { dq: Some(dq), dkv: None };
    backward(context, &own, gradients, workspace.rest()).map_err(refused(NAME))
}

/// `dk` and `dv` of the key rows of `mine`, from all queries. The kernel takes whole
/// blocks and counts rows over all tokens, so the gradients are made in the workspace
/// and this rank's rows copied.
fn key_pass(
    context: &Context,
    input: &Backward<'_>,
    segments: &Segments<'_>,
    mine: &Range<usize>,
    (dk, dv): (RowsMut<'_>, RowsMut<'_>),
    mut workspace: Workspace<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "AttentionBackward";
    let most = segments.list.len();
    let with_keys = || {
        segments.list.iter().zip(segments.first_keys).filter_map(|(segment, &key_row)| {
            let first = mine.start.saturating_sub(key_row);
            let end = mine.end.saturating_sub(key_row).min(Segments::keys(segment));
            (first < end).then_some((*segment, key_row, first / BLOCK * BLOCK..end))
        })
    };
    let list = workspace.collect(most, with_keys().map(|(s, ..)| s)).map_err(exhausted(NAME))?;
    let key_rows =
        workspace.collect(most, with_keys().map(|(_, row, _)| row)).map_err(exhausted(NAME))?;
    let keys =
        workspace.collect(most, with_keys().map(|(.., keys)| keys)).map_err(exhausted(NAME))?;
    let row_stride = dk.row_stride;
    let count = input.forward.k.data.len() / input.forward.k.row_stride * row_stride;
    let all_dk: &mut [f32] = workspace.take(count).map_err(exhausted(NAME))?;
    let all_dv: &mut [f32] = workspace.take(count).map_err(exhausted(NAME))?;
    clear(context, all_dk);
    clear(context, all_dv);
    let own = Backward {
        forward: Forward { segments: list, blocks: &Contiguous(key_rows), ..input.forward },
        keys: Some(keys),
        ..*input
    };
    let dkv = (RowsMut { data: all_dk, row_stride }, RowsMut { data: all_dv, row_stride });
    let gradients = Gradients { dq: None, dkv: Some(dkv) };
    backward(context, &own, gradients, workspace.rest()).map_err(refused(NAME))?;
    let elements = mine.start * row_stride..mine.end * row_stride;
    dk.data.copy_from_slice(&all_dk[elements.clone()]);
    dv.data.copy_from_slice(&all_dv[elements]);
    Ok(())
}

/// Workspace of [`attention_backward`].
pub(crate) fn attention_backward_bytes(
    op: &AttentionBackward,
    program: &Program,
    context: &Context,
) -> usize {
    let heads = Heads { query: op.heads, key: op.kv_heads, dim: op.head_dim };
    let (all, table) = (program.buffer(op.q).rows, program.buffer(op.segments).rows);
    // The kernel counts the chunks of keys of every segment, the last of each partial:
    // no table of `table` segments over `all` keys has more than this one.
    let segment = |queries| Segment { query_row: 0, queries, position: 0 };
    let mut most = vec![segment(1); table];
    most.push(segment(all));
    let kernel = backward_workspace_bytes(&heads, &most, context.threads());
    let mut bytes = segments_bytes(table) + bytes_of::<f32>(all * op.heads) + kernel;
    if program.buffer(op.dq).rows < all {
        let gradients = 2 * bytes_of::<f32>(program.buffer(op.k).rows * program.buffer(op.dk).cols);
        bytes += segments_bytes(table) + bytes_of::<Range<usize>>(table) + gradients;
    }
    bytes
}
