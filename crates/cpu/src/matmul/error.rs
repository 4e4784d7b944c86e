//! The ways a product can be wrong.

/// Why [`super::matmul`] refused a product.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatmulError {
    /// There is no leaf.
    #[error("the product has no leaf: give at least one")]
    NoLeaf,
    /// A leaf holds no term.
    #[error("leaf {0} has no term: leave it out or give it one")]
    EmptyLeaf(usize),
    /// A term's `k` is zero.
    #[error("term {0} has k = 0: leave it out")]
    EmptyTerm(usize),
    /// More than [`super::MAX_TERMS`].
    #[error("the product has {0} terms, more than {max}", max = super::MAX_TERMS)]
    TooManyTerms(usize),
    /// Neither stride of an operand is 1.
    #[error("term {term}, operand {operand}: strides {row_stride} and {col_stride}: one must be 1")]
    Strides {
        /// Index of the term, leaves first, then the tail.
        term: usize,
        /// `A` or `B`.
        operand: char,
        /// Elements from row to row.
        row_stride: usize,
        /// Elements from column to column.
        col_stride: usize,
    },
    /// An operand reaches past its elements.
    #[error("term {term}, operand {operand}: reads {needed} elements of {given}")]
    OutOfBounds {
        /// Index of the term, leaves first, then the tail.
        term: usize,
        /// `A` or `B`.
        operand: char,
        /// One past the last element read.
        needed: usize,
        /// Elements there are.
        given: usize,
    },
    /// The output reaches past its elements.
    #[error("the output writes {needed} elements of {given}")]
    OutputOutOfBounds {
        /// One past the last element written.
        needed: usize,
        /// Elements there are.
        given: usize,
    },
    /// Rows of the output overlap.
    #[error("rows of the output are {row_stride} apart but {n} long")]
    OutputOverlaps {
        /// Elements from row to row.
        row_stride: usize,
        /// Elements of a row.
        n: usize,
    },
    /// The bias is not one value for each column.
    #[error("the bias has {given} values for {n} columns")]
    Bias {
        /// Values given.
        given: usize,
        /// Columns.
        n: usize,
    },
    /// [`super::Init::Chain`] needs one leaf, no tail, `alpha` 1 and an f32 output.
    #[error("a chain continues only one leaf with no tail and alpha 1, in an f32 output")]
    Chain,
    /// The workspace is smaller than planned.
    #[error("the workspace has {given} bytes, {needed} are needed: ask workspace_bytes")]
    Workspace {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
}
