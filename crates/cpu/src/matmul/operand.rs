//! Strided views of inputs and outputs.

use half::bf16;

/// Elements of an input.
#[derive(Clone, Copy, Debug)]
pub enum Elems<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// bfloat16, widened exactly when read.
    Bf16(&'a [bf16]),
}

impl Elems<'_> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(e) => e.len(),
            Self::Bf16(e) => e.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A logical matrix `[rows, k]`: element `(r, c)` is at
/// `offset + r * row_stride + c * col_stride`. One of the strides is 1.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The elements it lies in.
    pub data: Elems<'a>,
    /// Element of `(0, 0)`.
    pub offset: usize,
    /// Elements from a row to the next.
    pub row_stride: usize,
    /// Elements from a column (`k`) to the next.
    pub col_stride: usize,
}

impl<'a> Operand<'a> {
    /// Rows stored one after another, `k` contiguous.
    #[must_use]
    pub fn rows(data: Elems<'a>, row_stride: usize) -> Self {
        Self { data, offset: 0, row_stride, col_stride: 1 }
    }

    /// The transpose of a matrix stored by rows: `k` runs over its stored rows.
    #[must_use]
    pub fn columns(data: Elems<'a>, stored_row_stride: usize) -> Self {
        Self { data, offset: 0, row_stride: 1, col_stride: stored_row_stride }
    }

    /// The same view from a later element.
    #[must_use]
    pub fn at(self, offset: usize) -> Self {
        Self { offset: self.offset + offset, ..self }
    }

    pub(super) fn raw(&self) -> Source {
        let (base, bf16) = match self.data {
            Elems::F32(e) => (e.as_ptr().cast(), false),
            Elems::Bf16(e) => (e.as_ptr().cast(), true),
        };
        let (offset, row, col) = (self.offset, self.row_stride, self.col_stride);
        Source { base, bf16, offset, row, col }
    }
}

/// An operand as a pointer, its bounds already checked.
#[derive(Clone, Copy)]
pub(super) struct Source {
    base: *const u8,
    pub(super) bf16: bool,
    offset: usize,
    pub(super) row: usize,
    pub(super) col: usize,
}

impl Source {
    /// Address of element `(row, k)` as f32.
    #[inline(always)]
    pub(super) fn f32_at(&self, row: usize, k: usize) -> *const f32 {
        debug_assert!(!self.bf16);
        self.base.cast::<f32>().wrapping_add(self.offset + row * self.row + k * self.col)
    }

    /// Address of element `(row, k)` as bf16 bits.
    #[inline(always)]
    pub(super) fn bf16_at(&self, row: usize, k: usize) -> *const u16 {
        debug_assert!(self.bf16);
        self.base.cast::<u16>().wrapping_add(self.offset + row * self.row + k * self.col)
    }
}

impl Source {
    /// Address of element `(row, k)` and bytes from a row to the next.
    #[inline(always)]
    pub(super) fn bytes_at(&self, row: usize, k: usize) -> (*const u8, usize) {
        let size = if self.bf16 { 2 } else { 4 };
        let at = self.offset + row * self.row + k * self.col;
        (self.base.wrapping_add(at * size), self.row * size)
    }
}

/// Elements of an output.
#[derive(Debug)]
pub enum ElemsMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// bfloat16: rounded to nearest even, once, when stored.
    Bf16(&'a mut [bf16]),
}

/// The output `[m, n]`: element `(i, j)` is at `offset + i * row_stride + j`.
#[derive(Debug)]
pub struct OutView<'a> {
    /// The elements it lies in.
    pub data: ElemsMut<'a>,
    /// Element of `(0, 0)`.
    pub offset: usize,
    /// Elements from a row to the next, at least `n`.
    pub row_stride: usize,
}

impl<'a> OutView<'a> {
    /// Rows of f32 one after another.
    #[must_use]
    pub fn f32(data: &'a mut [f32], row_stride: usize) -> Self {
        Self { data: ElemsMut::F32(data), offset: 0, row_stride }
    }

    /// Rows of bf16 one after another.
    #[must_use]
    pub fn bf16(data: &'a mut [bf16], row_stride: usize) -> Self {
        Self { data: ElemsMut::Bf16(data), offset: 0, row_stride }
    }

    pub(super) fn len(&self) -> usize {
        match &self.data {
            ElemsMut::F32(e) => e.len(),
            ElemsMut::Bf16(e) => e.len(),
        }
    }

    pub(super) fn raw(&mut self) -> Target {
        let row = self.row_stride;
        match &mut self.data {
            ElemsMut::F32(e) => {
                Target { base: e[self.offset..].as_mut_ptr().cast(), bf16: false, row }
            }
            ElemsMut::Bf16(e) => {
                Target { base: e[self.offset..].as_mut_ptr().cast(), bf16: true, row }
            }
        }
    }
}

/// An output as a pointer, its bounds already checked.
#[derive(Clone, Copy)]
pub(super) struct Target {
    base: *mut u8,
    pub(super) bf16: bool,
    row: usize,
}

// SAFETY: tasks write disjoint elements.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    #[inline(always)]
    pub(super) fn f32_at(&self, i: usize, j: usize) -> *mut f32 {
        self.base.cast::<f32>().wrapping_add(i * self.row + j)
    }

    #[inline(always)]
    pub(super) fn bf16_at(&self, i: usize, j: usize) -> *mut u16 {
        self.base.cast::<u16>().wrapping_add(i * self.row + j)
    }
}
