//! The ways an attention call can be wrong.

/// Why an attention call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// A head count or size is zero, or the query heads are no multiple of the key heads.
    #[error(
        "{query} query heads, {key} key heads of size {dim}: sizes must be positive and query heads \
         a multiple of key heads"
    )]
    Heads {
        /// Query heads.
        query: usize,
        /// Key heads.
        key: usize,
        /// Size of a head.
        dim: usize,
    },
    /// The window is zero: a query would see nothing.
    #[error("a window of 0 keys leaves nothing to attend to: use at least 1")]
    Window,
    /// Rows of a view overlap.
    #[error("rows of {view} are {row_stride} apart but {columns} long")]
    RowStride {
        /// Which view.
        view: &'static str,
        /// Elements from row to row.
        row_stride: usize,
        /// Elements of a row.
        columns: usize,
    },
    /// A segment reaches past a view.
    #[error("segment {segment} needs row {row} of {view}, which has {rows} rows")]
    Row {
        /// Index of the segment.
        segment: usize,
        /// Which view.
        view: &'static str,
        /// The row needed.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
    /// Two segments hold the same query row, or segments are out of order.
    #[error("segment {segment} starts at query row {row}, before the end of an earlier segment")]
    SharedQueries {
        /// Index of the segment.
        segment: usize,
        /// Its first row.
        row: usize,
    },
    /// Two segments hold the same key row, or key rows are out of order.
    #[error("segment {segment} has keys at row {row}, before the end of an earlier block")]
    SharedKeys {
        /// Index of the segment.
        segment: usize,
        /// The row.
        row: usize,
    },
    /// The range of keys starts inside a block.
    #[error("segment {segment}: keys from {first}: must start at a multiple of {block}", block = super::BLOCK)]
    KeyRange {
        /// Index of the segment.
        segment: usize,
        /// First key.
        first: usize,
    },
    /// As many key ranges as segments are needed.
    #[error("{ranges} key ranges for {segments} segments")]
    KeyRanges {
        /// Ranges given.
        ranges: usize,
        /// Segments.
        segments: usize,
    },
    /// The workspace is smaller than planned.
    #[error("the workspace has {given} bytes, {needed} are needed: ask the workspace function")]
    Workspace {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
}
