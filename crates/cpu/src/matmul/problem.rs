//! A product and its checks.

use super::{ElemsMut, MAX_TERMS, MatmulError, Operand, OutView};

/// One stretch of a chain: `k` steps of `a[i, :] · b[j, :]`.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    /// Logical `[m, k]`.
    pub a: Operand<'a>,
    /// Logical `[n, k]`.
    pub b: Operand<'a>,
    /// Steps, at least 1.
    pub k: usize,
}

/// What the value is combined with before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Init<'a> {
    /// Nothing: `out = val`.
    None,
    /// `out = val + bias[j]`, `n` values.
    Bias(&'a [f32]),
    /// `out = out_old + val`.
    Accumulate,
    /// The chain of the only leaf starts from `out_old`: chunks of `k` in several
    /// calls give the bits of one call. Needs one leaf, no tail, `alpha` 1 and an
    /// f32 output.
    Chain,
}

/// A product, as the module describes it.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// The leaves, each a list of terms.
    pub leaves: &'a [&'a [Term<'a>]],
    /// Terms of the tail; empty for none.
    pub tail: &'a [Term<'a>],
    /// Multiplies the sum; 1 multiplies nothing.
    pub alpha: f32,
    /// What the value is combined with.
    pub init: Init<'a>,
}

impl<'a> Product<'a> {
    /// All terms, the tail's last.
    pub(super) fn terms(&self) -> impl Iterator<Item = &'a Term<'a>> {
        self.leaves.iter().flat_map(|leaf| leaf.iter()).chain(self.tail)
    }
}

pub(super) fn check(product: &Product<'_>, out: &OutView<'_>) -> Result<(), MatmulError> {
    if product.leaves.is_empty() {
        return Err(MatmulError::NoLeaf);
    }
    if let Some(leaf) = product.leaves.iter().position(|leaf| leaf.is_empty()) {
        return Err(MatmulError::EmptyLeaf(leaf));
    }
    let terms = product.terms().count();
    if terms > MAX_TERMS {
        return Err(MatmulError::TooManyTerms(terms));
    }
    for (index, term) in product.terms().enumerate() {
        if term.k == 0 {
            return Err(MatmulError::EmptyTerm(index));
        }
        check_operand(&term.a, product.m, term.k, index, 'A')?;
        check_operand(&term.b, product.n, term.k, index, 'B')?;
    }
    match product.init {
        Init::Bias(bias) if bias.len() != product.n => {
            return Err(MatmulError::Bias { given: bias.len(), n: product.n });
        }
        Init::Chain => {
            let alone = product.leaves.len() == 1 && product.tail.is_empty();
            if !alone || product.alpha != 1.0 || !matches!(out.data, ElemsMut::F32(_)) {
                return Err(MatmulError::Chain);
            }
        }
        _ => {}
    }
    check_output(product, out)
}

fn check_operand(
    operand: &Operand<'_>,
    rows: usize,
    k: usize,
    term: usize,
    name: char,
) -> Result<(), MatmulError> {
    let Operand { row_stride, col_stride, .. } = *operand;
    if row_stride != 1 && col_stride != 1 {
        return Err(MatmulError::Strides { term, operand: name, row_stride, col_stride });
    }
    if rows == 0 {
        return Ok(());
    }
    let needed = end(operand.offset, &[(rows, row_stride), (k, col_stride)]);
    let given = operand.data.len();
    if needed > given {
        return Err(MatmulError::OutOfBounds { term, operand: name, needed, given });
    }
    Ok(())
}

fn check_output(product: &Product<'_>, out: &OutView<'_>) -> Result<(), MatmulError> {
    if product.m == 0 || product.n == 0 {
        return Ok(());
    }
    if out.row_stride < product.n && product.m > 1 {
        return Err(MatmulError::OutputOverlaps { row_stride: out.row_stride, n: product.n });
    }
    let needed = end(out.offset, &[(product.m, out.row_stride), (product.n, 1)]);
    if needed > out.len() {
        return Err(MatmulError::OutputOutOfBounds { needed, given: out.len() });
    }
    Ok(())
}

/// One past the last element of a view; saturates, so that no overflow can pass.
fn end(offset: usize, dims: &[(usize, usize)]) -> usize {
    dims.iter()
        .fold(offset, |at, &(count, stride)| at.saturating_add((count - 1).saturating_mul(stride)))
        .saturating_add(1)
}
