//! Writing models and adapters as GGUF, for llama.cpp and what is built on it.

mod adapter;
mod error;
mod metadata;
mod model;

pub use adapter::write_adapter;
pub use error::ExportError;
pub use model::{Model, Written, write_model};

use crate::Dtype;

/// Rows that are read at a time.
const TILE_ROWS: usize = 64;

/// The row of the Hugging Face order that stands at row `stored` of llama.cpp's order for q and k of the llama
/// architecture, where each head's rotary halves are interleaved (`LlamaModel.permute` in `convert_hf_to_gguf.py`).
fn uninterleaved(stored: usize, rows: usize, heads: usize) -> usize {
    let head_rows = rows / heads;
    let (head, within) = (stored / head_rows, stored % head_rows);
    head * head_rows + within % 2 * (head_rows / 2) + within / 2
}

/// `general.file_type`: llama.cpp's name for what most matrices are stored as (`enum llama_ftype`).
fn file_type(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Q4_0 => 2,
        Dtype::Q8_0 => 7,
        Dtype::Bf16 => 32,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::uninterleaved;

    #[test]
    fn rows_go_where_the_converter_puts_them() {
        // weights.reshape(heads, 2, rows // heads // 2, …).swapaxes(1, 2).reshape(…) of rows 0..rows, from numpy.
        let order: Vec<usize> = (0..8).map(|row| uninterleaved(row, 8, 2)).collect();
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7]);
        let order: Vec<usize> = (0..6).map(|row| uninterleaved(row, 6, 1)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5]);
    }
}
