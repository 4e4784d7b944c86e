//! The segment table of attention: which keys each query row sees.

use arena::{ExecError, Frame};
use program::BufferId;
use program::ops::{Keys, PAGE};
use std::ops::Range;

/// Columns of the table.
const COLUMNS: usize = 4;

fn outside(what: &'static str, index: usize, limit: usize) -> Result<(), ExecError> {
    if index < limit { Ok(()) } else { Err(ExecError::RowOutside { what, index, limit }) }
}

/// Consecutive queries of one sequence.
pub(crate) struct Segment {
    /// Row of the first query.
    first_row: usize,
    /// Queries.
    pub(crate) rows: usize,
    /// Position of the first query in its sequence.
    position: usize,
    /// Row of the first key of each of the sequence's blocks.
    blocks: Blocks,
}

/// Where a sequence's keys are.
enum Blocks {
    /// In consecutive rows from this one.
    Rows(usize),
    /// In these pages.
    Pages(Vec<usize>),
}

impl Segment {
    /// Reads a table, checked against the rows that queries and keys have.
    pub(crate) fn load(
        frame: &Frame<'_>,
        table: BufferId,
        keys: &Keys,
        query_rows: usize,
        key_rows: usize,
    ) -> Result<Vec<Segment>, ExecError> {
        let table = frame.load_u32(table);
        let pages = match keys {
            Keys::Rows => None,
            Keys::Paged { table } => Some(frame.load_u32(*table)),
        };
        let mut segments = Vec::new();
        for row in table.chunks_exact(COLUMNS) {
            let [first_row, rows, position, first] = [0, 1, 2, 3].map(|i| row[i] as usize);
            // A row of the table that stands for no query says nothing.
            if rows == 0 {
                continue;
            }
            outside("query row of a segment", first_row + rows - 1, query_rows)?;
            let keys = position + rows;
            let blocks = match &pages {
                None => Blocks::Rows(first),
                Some(pages) => {
                    let end = first + keys.div_ceil(PAGE);
                    outside("block table entry of a segment", end - 1, pages.len())?;
                    Blocks::Pages(pages[first..end].iter().map(|&page| page as usize).collect())
                }
            };
            let segment = Segment { first_row, rows, position, blocks };
            for block in 0..keys.div_ceil(PAGE) {
                let last = keys.min((block + 1) * PAGE) - 1;
                outside("key row of a segment", segment.key(last), key_rows)?;
            }
            segments.push(segment);
        }
        Ok(segments)
    }

    /// Row of query `i`.
    pub(crate) fn query(&self, i: usize) -> usize {
        self.first_row + i
    }

    /// Row of the sequence's key `j`.
    pub(crate) fn key(&self, j: usize) -> usize {
        match &self.blocks {
            Blocks::Rows(first) => first + j,
            Blocks::Pages(pages) => pages[j / PAGE] * PAGE + j % PAGE,
        }
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
