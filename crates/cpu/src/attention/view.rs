//! Heads, rows and segments: where queries, keys and values lie.

use super::{AttentionError, BLOCK};

/// Head counts and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads, a multiple of `key`.
    pub query: usize,
    /// Key/value heads.
    pub key: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl Heads {
    /// Query heads for each key head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.query / self.key
    }

    /// Elements of a head rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.dim.next_multiple_of(16)
    }

    pub(super) fn check(&self) -> Result<(), AttentionError> {
        let Self { query, key, dim } = *self;
        if query == 0 || key == 0 || dim == 0 || query % key != 0 {
            return Err(AttentionError::Heads { query, key, dim });
        }
        Ok(())
    }
}

/// Rows of heads: head `h` of row `r` is at `r * row_stride + h * dim`. A column
/// range of a wider buffer is the buffer from its first column on.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Elements from a row to the next.
    pub row_stride: usize,
}

/// [`Rows`] to write.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// The elements.
    pub data: &'a mut [f32],
    /// Elements from a row to the next.
    pub row_stride: usize,
}

/// Rows that a view of `len` elements holds whole.
pub(super) fn rows_in(
    view: &'static str,
    len: usize,
    row_stride: usize,
    columns: usize,
) -> Result<usize, AttentionError> {
    if row_stride < columns {
        return Err(AttentionError::RowStride { view, row_stride, columns });
    }
    Ok(if len < columns { 0 } else { (len - columns) / row_stride + 1 })
}

/// Queries of one sequence, consecutive in position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Row of the first query in `q`, `out` and `lse`.
    pub query_row: usize,
    /// Queries.
    pub queries: usize,
    /// Position of the first query in its sequence; query i sees keys up to its own
    /// position.
    pub position: usize,
}

impl Segment {
    /// Keys that the last query sees.
    pub(super) fn keys(&self) -> usize {
        self.position + self.queries
    }
}

/// Where the keys of a sequence lie: blocks of [`BLOCK`] consecutive rows.
pub trait KeyBlocks: Sync {
    /// Row of the first key of `block` of the sequence of `segment`.
    fn first_row(&self, segment: usize, block: usize) -> usize;
}

/// Every sequence in consecutive rows; the row of each segment's key 0.
#[derive(Clone, Copy, Debug)]
pub struct Contiguous<'a>(pub &'a [usize]);

impl KeyBlocks for Contiguous<'_> {
    fn first_row(&self, segment: usize, block: usize) -> usize {
        self.0[segment] + block * BLOCK
    }
}

/// Every sequence in pages of [`BLOCK`] rows.
#[derive(Clone, Copy, Debug)]
pub struct Paged<'a> {
    /// Pages of every sequence, in order.
    pub table: &'a [u32],
    /// Entry of each segment's first page.
    pub first: &'a [usize],
}

impl KeyBlocks for Paged<'_> {
    fn first_row(&self, segment: usize, block: usize) -> usize {
        self.table[self.first[segment] + block] as usize * BLOCK
    }
}

/// Checks that the queries of every segment lie in `rows` rows.
pub(super) fn check_queries(
    segments: &[Segment],
    view: &'static str,
    rows: usize,
) -> Result<(), AttentionError> {
    for (segment, s) in segments.iter().enumerate().filter(|(_, s)| s.queries > 0) {
        let row = s.query_row.saturating_add(s.queries - 1);
        if row >= rows {
            return Err(AttentionError::Row { segment, view, row, rows });
        }
    }
    Ok(())
}

/// Checks that keys `[first, end)` of a segment lie in `rows` rows.
pub(super) fn check_keys(
    blocks: &dyn KeyBlocks,
    view: &'static str,
    segment: usize,
    (first, end): (usize, usize),
    rows: usize,
) -> Result<(), AttentionError> {
    for block in first / BLOCK..end.div_ceil(BLOCK) {
        let last = (end - block * BLOCK).min(BLOCK) - 1;
        let row = blocks.first_row(segment, block).saturating_add(last);
        if row >= rows {
            return Err(AttentionError::Row { segment, view, row, rows });
        }
    }
    Ok(())
}

/// Keys `[first, end)` that the query at `position` sees.
#[inline(always)]
pub(super) fn visible(position: usize, window: Option<usize>) -> (usize, usize) {
    let end = position + 1;
    (window.map_or(0, |w| end.saturating_sub(w)), end)
}

/// Which keys of a block the queries from a position on see.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Position of query 0.
    pub(super) position: usize,
    pub(super) window: Option<usize>,
    /// First key of the block.
    pub(super) first_key: usize,
    /// Keys of the block.
    pub(super) keys: usize,
}

impl Seen {
    /// The same where query `i` is the first.
    #[inline(always)]
    pub(super) fn after(self, i: usize) -> Self {
        Self { position: self.position + i, ..self }
    }

    /// Keys `[from, to)` of the block that query `i` sees.
    #[inline(always)]
    pub(super) fn by(&self, i: usize) -> (usize, usize) {
        let (first, end) = visible(self.position + i, self.window);
        let inside = |key: usize| key.saturating_sub(self.first_key).min(self.keys);
        (inside(first), inside(end))
    }

    /// The least range that holds the keys that any of `queries` queries sees: those
    /// of neighbours overlap or touch.
    #[inline(always)]
    pub(super) fn by_any(&self, queries: usize) -> (usize, usize) {
        (self.by(0).0, self.by(queries - 1).1)
    }
}
