//! Matrix product with leaves: a program's product as the kernel's.

use arena::{ExecError, Frame};
use program::ops::{Init, MatMul, Operand, Term};
use program::{Axis, DType, Program};

use super::{exhausted, refused, row_as_f32, workspace};
use crate::bounds::Bounds;
use crate::context::Context;
use crate::matmul as kernel;
use crate::matmul::{Elems, ElemsMut, MAX_TERMS, OutView, Product, Shape};
use crate::workspace::bytes_of;

/// A term of zeros: stands for a term over no tokens, whose chain is +0.
const NOTHING: kernel::Term<'static> = {
    let zero =
        kernel::Operand { data: Elems::F32(&[0.0]), offset: 0, row_stride: 0, col_stride: 1 };
    kernel::Term { a: zero, b: zero, k: 1 }
};

/// An operand as a view of its buffer: `(view, rows, k)`.
fn view<'a>(operand: &Operand, frame: &Frame<'a>) -> (kernel::Operand<'a>, usize, usize) {
    let id = operand.buffer;
    let stride = frame.cols(id);
    let rows = operand.rows.clone().unwrap_or(0..frame.rows(id));
    let cols = operand.cols.clone().unwrap_or(0..stride);
    // SAFETY: a product reads its operands and writes its output, another buffer.
    let data = match unsafe { frame.elems(id) } {
        arena::Elems::F32(data) => Elems::F32(data),
        arena::Elems::Bf16(data) => Elems::Bf16(data),
    };
    let view = if operand.transposed {
        kernel::Operand::columns(data, stride)
    } else {
        kernel::Operand::rows(data, stride)
    };
    let view = view.at(rows.start * stride + cols.start);
    if operand.transposed { (view, cols.len(), rows.len()) } else { (view, rows.len(), cols.len()) }
}

fn term<'a>(term: &Term, frame: &Frame<'a>, m: usize, n: usize) -> kernel::Term<'a> {
    let (a, a_rows, k) = view(&term.a, frame);
    let (b, b_rows, b_k) = view(&term.b, frame);
    assert!(a_rows == m && b_rows == n && k == b_k, "[{m}, k] times [{n}, k]");
    if k == 0 { NOTHING } else { kernel::Term { a, b, k } }
}

/// `out = init + alpha · (tree(leaves) + tail)`.
pub(crate) fn matmul(context: &Context, op: &MatMul, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (m, n) = (frame.rows(op.out), frame.cols(op.out));
    let count = op.terms().count();
    if count > MAX_TERMS || op.leaves.len() > MAX_TERMS {
        return Err(refused("MatMul")(kernel::MatmulError::TooManyTerms(count)));
    }
    let mut terms = [NOTHING; MAX_TERMS];
    for (to, from) in terms.iter_mut().zip(op.terms()) {
        *to = term(from, frame, m, n);
    }
    let mut leaves: [&[kernel::Term<'_>]; MAX_TERMS] = [&[]; MAX_TERMS];
    let mut rest = &terms[..count];
    for (to, from) in leaves.iter_mut().zip(&op.leaves) {
        (*to, rest) = rest.split_at(from.len());
    }
    let mut workspace = workspace(frame);
    let init = match op.init {
        Init::Zero => kernel::Init::None,
        Init::Accumulate => kernel::Init::Accumulate,
        Init::Bias(bias) => {
            let bias = row_as_f32(frame, bias, &mut workspace).map_err(exhausted("MatMul"))?;
            kernel::Init::Bias(bias)
        }
    };
    let product =
        Product { m, n, leaves: &leaves[..op.leaves.len()], tail: rest, alpha: op.alpha, init };
    let data = match frame.buffer(op.out).dtype {
        // SAFETY: the output is no operand, and nothing else uses it while the
        // operation runs.
        DType::Bf16 => ElemsMut::Bf16(unsafe { frame.bf16_mut(op.out) }),
        // SAFETY: as above.
        _ => ElemsMut::F32(unsafe { frame.f32_mut(op.out) }),
    };
    let out = OutView { data, offset: 0, row_stride: n };
    kernel::matmul(context, &product, out, workspace.rest()).map_err(refused("MatMul"))
}

/// Workspace of [`matmul`] for any number of live rows.
pub(crate) fn matmul_bytes(op: &MatMul, program: &Program, bounds: &Bounds) -> usize {
    let out = program.buffer(op.out);
    let arithmetic = bounds.arithmetic();
    let padded = |k| arithmetic.padded(k);
    let mut fixed = 0;
    let mut over_tokens = 0;
    for term in op.terms() {
        let a = program.buffer(term.a.buffer);
        let rows = term.a.rows.clone().unwrap_or(0..a.rows).len();
        let cols = term.a.cols.clone().unwrap_or(0..a.cols).len();
        if !term.a.transposed {
            fixed += padded(cols);
        } else if term.a.rows.is_some() || a.axis == Axis::Fixed {
            fixed += padded(rows);
        } else {
            over_tokens += padded(rows);
        }
    }
    let bias = match op.init {
        Init::Bias(bias) => bytes_of::<f32>(program.buffer(bias).cols),
        Init::Zero | Init::Accumulate => 0,
    };
    let (k, leaves) = (fixed + over_tokens, op.leaves.len());
    let shape = Shape { arithmetic, m: out.rows, n: out.cols, k, leaves };
    let most = match (out.axis, over_tokens) {
        (Axis::Fixed, 0) => bounds.fixed(shape),
        (Axis::Fixed, _) => bounds.any_k(shape),
        (_, 0) => bounds.any_m(shape),
        (_, _) => bounds.any_m(shape).max(bounds.any_k(shape)),
    };
    bias + most
}
