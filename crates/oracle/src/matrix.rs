//! A copy of a float buffer's live rows.

use arena::Frame;
use program::BufferId;

/// Live rows of a buffer, row-major, as f32.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Vec<f32>,
}

impl Matrix {
    /// Copies a buffer's live rows.
    pub(crate) fn load(frame: &Frame<'_>, id: BufferId) -> Matrix {
        Matrix { rows: frame.rows(id), cols: frame.cols(id), data: frame.load_f32(id) }
    }

    /// +0 in the shape of a buffer's live rows.
    pub(crate) fn zeros_like(frame: &Frame<'_>, id: BufferId) -> Matrix {
        let (rows, cols) = (frame.rows(id), frame.cols(id));
        Matrix { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// Writes a buffer's live rows, rounded once to its type.
    pub(crate) fn store(&self, frame: &Frame<'_>, id: BufferId) {
        frame.store_f32(id, &self.data);
    }

    pub(crate) fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row * self.cols + col]
    }

    pub(crate) fn set(&mut self, row: usize, col: usize, value: f32) {
        self.data[row * self.cols + col] = value;
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }
}
