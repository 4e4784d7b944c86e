//! The segment table of attention: which keys each query row sees.

use arena::{ExecError, Frame};
use program::BufferId;
use std::ops::Range;

/// Columns of the table.
const COLUMNS: usize = 4;

/// Consecutive queries of one sequence.
pub(crate) struct Segment {
    /// Row of the first query.
    first_row: usize,
    /// Queries.
    pub(crate) rows: usize,
    /// Position of the first query in its sequence.
    position: usize,
    /// Row of the sequence's key 0.
    key_row: usize,
}

impl Segment {
    /// Reads a table, checked against the rows that queries and keys have.
    pub(crate) fn load(
        frame: &Frame<'_>,
        table: BufferId,
        query_rows: usize,
        key_rows: usize,
    ) -> Result<Vec<Segment>, ExecError> {
        let table = frame.load_u32(table);
        let segments = table.chunks_exact(COLUMNS).map(|row| {
            let [first_row, rows, position, key_row] = [0, 1, 2, 3].map(|i| row[i] as usize);
            Segment { first_row, rows, position, key_row }
        });
        // A row of the table that stands for no query says nothing.
        let segments: Vec<Segment> = segments.filter(|s| s.rows > 0).collect();
        for segment in &segments {
            let last_query = segment.query(segment.rows - 1);
            if last_query >= query_rows {
                let what = "query row of a segment";
                return Err(ExecError::RowOutside { what, index: last_query, limit: query_rows });
            }
            let last_key = segment.key(segment.keys() - 1);
            if last_key >= key_rows {
                let what = "key row of a segment";
                return Err(ExecError::RowOutside { what, index: last_key, limit: key_rows });
            }
        }
        Ok(segments)
    }

    /// Row of query `i`.
    pub(crate) fn query(&self, i: usize) -> usize {
        self.first_row + i
    }

    /// Row of the sequence's key `j`.
    pub(crate) fn key(&self, j: usize) -> usize {
        self.key_row + j
    }

    /// Position of query `i` in its sequence.
    pub(crate) fn query_position(&self, i: usize) -> usize {
        self.position + i
    }

    /// Keys that query `i` sees, as positions: up to its own, the last `window` of them.
    pub(crate) fn visible(&self, i: usize, window: Option<usize>) -> Range<usize> {
        let end = self.query_position(i) + 1;
        window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Keys that the segment's queries may see.
    pub(crate) fn keys(&self) -> usize {
        self.query_position(self.rows)
    }
}
