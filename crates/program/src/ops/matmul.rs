//! Matrix product with leaves: every linear map, forward and backward.

use crate::buffer::BufferId;
use std::ops::Range;

/// A matrix operand: a buffer, optionally a range of its rows or columns, optionally transposed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferId,
    /// Row range; `None` is every live row.
    pub rows: Option<Range<usize>>,
    /// Column range; `None` is every column.
    pub cols: Option<Range<usize>>,
    /// Whether the operand is the transpose of that piece.
    pub transposed: bool,
}

impl Operand {
    /// The whole buffer.
    pub fn whole(buffer: BufferId) -> Self {
        Operand { buffer, rows: None, cols: None, transposed: false }
    }

    /// The transpose of the whole buffer.
    pub fn transposed(buffer: BufferId) -> Self {
        Operand { transposed: true, ..Self::whole(buffer) }
    }

    /// The same operand limited to a row range of the buffer.
    pub fn with_rows(self, rows: Range<usize>) -> Self {
        Operand { rows: Some(rows), ..self }
    }

    /// The same operand limited to a column range of the buffer.
    pub fn with_cols(self, cols: Range<usize>) -> Self {
        Operand { cols: Some(cols), ..self }
    }
}

/// One product of a chain: `a` is `[m, k]`, `b` is `[n, k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    /// Left operand, `[m, k]` after its transposition.
    pub a: Operand,
    /// Right operand, `[n, k]` after its transposition (a weight as stored: `[out, in]`).
    pub b: Operand,
}

/// What the product is added to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Init {
    /// Nothing: the output is overwritten.
    Zero,
    /// A row vector `[1, n]`, added after the sums: `out = sum + bias`.
    Bias(BufferId),
    /// The output's old value: `out = out + sum`.
    Accumulate,
}

/// `out[i,j] = init + alpha · (tree(leaves) + tail)`, with `leaf[i,j] = Σ_k a[i,k]·b[j,k]`.
///
/// Order: each leaf is one chain of fused multiply-adds from +0 over `k` ascending, its terms in order; leaves are
/// added in f32 by the balanced mid-split tree; then, if there is a tail, its chain's value is added; the sum is
/// multiplied by `alpha` unless `alpha` is 1; `init` is added; one rounding to the output's type. `k` of an operand
/// over tokens runs over live tokens only.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// What the product is, for people: `q_proj`, `gate_proj dx`, …
    pub label: String,
    /// Output, `[m, n]`.
    pub out: BufferId,
    /// The leaves; at least one, each with at least one term.
    pub leaves: Vec<Vec<Term>>,
    /// A chain of its own, added to the tree's result; may be empty.
    pub tail: Vec<Term>,
    /// Scale of the sum.
    pub alpha: f32,
    /// What is added.
    pub init: Init,
}

impl MatMul {
    /// Every term, leaves first.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        self.leaves.iter().flatten().chain(&self.tail)
    }
}
