//! Reading rows as numbers, tile by tile: whatever the storage format, no more than one tile of it
//! is in memory beside the caller's buffer.

use std::ops::Range;

use half::bf16;

use super::{Checkpoint, Location, RowOrder, TensorInfo};
use crate::gguf::dequantize;
use crate::source::ByteFile;
use crate::{Dtype, FormatError};

/// The most numbers that are converted at once, a multiple of every block: with their bytes and as
/// f32 they stay in a core's cache.
const TILE_ELEMENTS: usize = 1 << 13;

/// A number that rows can be read as.
trait Element: bytemuck::Pod {
    /// The storage format of which this is the very form.
    const STORED_AS: Dtype;

    /// Converts whole blocks. `scratch` is as long as `out`.
    fn convert(dtype: Dtype, bytes: &[u8], scratch: &mut [f32], out: &mut [Self]);
}

impl Element for f32 {
    const STORED_AS: Dtype = Dtype::F32;

    fn convert(dtype: Dtype, bytes: &[u8], _scratch: &mut [f32], out: &mut [Self]) {
        dequantize(dtype, bytes, out);
    }
}

impl Element for bf16 {
    const STORED_AS: Dtype = Dtype::Bf16;

    fn convert(dtype: Dtype, bytes: &[u8], scratch: &mut [f32], out: &mut [Self]) {
        dequantize(dtype, bytes, scratch);
        for (narrow, &wide) in out.iter_mut().zip(scratch.iter()) {
            // Rounds to nearest, ties to even.
            *narrow = bf16::from_f32(wide);
        }
    }
}

/// Reads runs of rows that lie one after another in the file.
struct Runs<'a> {
    file: &'a ByteFile,
    dtype: Dtype,
    /// First byte of the tensor, from the file's start.
    begin: u64,
    row_bytes: u64,
    /// A tile as stored, and as f32; both empty where nothing is converted.
    stored: Vec<u8>,
    numbers: Vec<f32>,
}

impl<'a> Runs<'a> {
    /// Prepares for runs of `elements` numbers, whole rows.
    fn new<T: Element>(
        checkpoint: &'a Checkpoint,
        tensor: &TensorInfo,
        location: Location,
        elements: usize,
    ) -> Self {
        let dtype = tensor.dtype;
        let bytes = |elements: usize| elements / dtype.block_elements() * dtype.block_bytes();
        let tile = if dtype == T::STORED_AS { 0 } else { elements.min(TILE_ELEMENTS) };
        Self {
            file: &checkpoint.files[location.file],
            dtype,
            begin: location.offset,
            row_bytes: bytes(tensor.row_elements()) as u64,
            stored: vec![0; bytes(tile)],
            numbers: vec![0.0; tile],
        }
    }

    /// Reads from row `first` of the file on until `out`, which is not empty, is full.
    fn read<T: Element>(&mut self, first: usize, out: &mut [T]) -> Result<(), FormatError> {
        let mut offset = self.begin + first as u64 * self.row_bytes;
        if self.dtype == T::STORED_AS {
            return self.file.read_at(offset, bytemuck::cast_slice_mut(out));
        }
        for out in out.chunks_mut(self.numbers.len()) {
            let blocks = out.len() / self.dtype.block_elements();
            let stored = &mut self.stored[..blocks * self.dtype.block_bytes()];
            self.file.read_at(offset, stored)?;
            T::convert(self.dtype, stored, &mut self.numbers[..out.len()], out);
            offset += stored.len() as u64;
        }
        Ok(())
    }
}

impl Checkpoint {
    /// Reads rows of a tensor as f32. A vector is one row. `out` takes the rows one after another.
    ///
    /// # Errors
    /// [`FormatError::MissingTensor`], [`FormatError::RowsOutOfRange`],
    /// [`FormatError::WrongBufferLength`], [`FormatError::UnreadableDtype`], or [`FormatError::Io`]
    /// where the file cannot be read (any more).
    pub fn read_rows_f32(
        &self,
        name: &str,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), FormatError> {
        self.read_rows(name, rows, out)
    }

    /// Reads rows of a tensor as bf16, rounded to nearest, ties to even. See
    /// [`Checkpoint::read_rows_f32`].
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows_f32`].
    pub fn read_rows_bf16(
        &self,
        name: &str,
        rows: Range<usize>,
        out: &mut [bf16],
    ) -> Result<(), FormatError> {
        self.read_rows(name, rows, out)
    }

    fn read_rows<T: Element>(
        &self,
        name: &str,
        rows: Range<usize>,
        out: &mut [T],
    ) -> Result<(), FormatError> {
        let Some(&at) = self.index.get(name) else {
            return Err(FormatError::MissingTensor {
                path: self.path.clone(),
                name: name.to_owned(),
            });
        };
        let (tensor, location) = (&self.tensors[at], self.locations[at]);
        self.check_request(tensor, location, &rows, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let width = tensor.row_elements();
        match location.order {
            RowOrder::AsShown => {
                Runs::new::<T>(self, tensor, location, out.len()).read(rows.start, out)
            }
            RowOrder::Interleaved { heads } if tensor.shape.len() == 1 => {
                let mut stored = vec![T::zeroed(); width];
                Runs::new::<T>(self, tensor, location, width).read(0, &mut stored)?;
                for (shown, number) in out.iter_mut().enumerate() {
                    *number = stored[interleaved(shown, width, heads)];
                }
                Ok(())
            }
            RowOrder::Interleaved { heads } => {
                let mut runs = Runs::new::<T>(self, tensor, location, width);
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    runs.read(interleaved(row, tensor.rows(), heads), out)?;
                }
                Ok(())
            }
        }
    }

    fn check_request(
        &self,
        tensor: &TensorInfo,
        location: Location,
        rows: &Range<usize>,
        found: usize,
    ) -> Result<(), FormatError> {
        let name = || tensor.name.clone();
        if rows.start > rows.end || rows.end > tensor.rows() {
            return Err(FormatError::RowsOutOfRange {
                name: name(),
                rows: tensor.rows(),
                begin: rows.start,
                end: rows.end,
            });
        }
        let needed = rows.len() * tensor.row_elements();
        if needed != found {
            return Err(FormatError::WrongBufferLength { name: name(), needed, found });
        }
        if !tensor.dtype.is_readable() {
            return Err(FormatError::UnreadableDtype {
                path: self.files[location.file].path().to_owned(),
                name: name(),
                dtype: tensor.dtype,
            });
        }
        Ok(())
    }
}

/// The row of the file that holds row `shown` of the Hugging Face order, for `rows` rows of `heads`
/// heads whose rotary halves are interleaved.
fn interleaved(shown: usize, rows: usize, heads: usize) -> usize {
    let head_rows = rows / heads;
    let (head, within) = (shown / head_rows, shown % head_rows);
    let half = head_rows / 2;
    head * head_rows + 2 * (within % half) + within / half
}

#[cfg(test)]
mod tests {
    use super::interleaved;

    #[test]
    fn interleaving_is_undone_as_transformers_does() {
        // weights.reshape(2, 2, 2, …).swapaxes(2, 1).reshape(8, …) of rows 0..8, from numpy.
        let order: Vec<usize> = (0..8).map(|row| interleaved(row, 8, 2)).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let order: Vec<usize> = (0..6).map(|row| interleaved(row, 6, 1)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
    }
}
