//! f32 to stored bytes, bit for bit as the reference (`gguf-py/gguf/quants.py` of llama.cpp): every product and sum is
//! rounded on its own, none is fused.

use half::{bf16, f16};

use crate::Dtype;

/// Why a run of numbers cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A NaN or an infinity, which no block can hold.
    #[error(
        "number {at} is {value}: weights must be finite; the checkpoint is damaged or training diverged"
    )]
    NotFinite {
        /// Its index in the run.
        at: usize,
        /// The number.
        value: f32,
    },
    /// A number, or a block's scale, over the largest f16.
    #[error("number {at} is {value}, too large for the f16 of {dtype} (at most 65504): use bf16")]
    TooLarge {
        /// Its index in the run.
        at: usize,
        /// The number.
        value: f32,
        /// The storage format.
        dtype: Dtype,
    },
}

/// Whether [`quantize`] writes a type.
pub const fn is_writable(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Q8_0 | Dtype::Q4_0)
}

/// Appends the stored form of `numbers` to `out`.
///
/// # Errors
/// [`QuantizeError`], with nothing of the last block appended.
///
/// # Panics
/// Where `numbers` are no whole number of blocks, or `dtype` is not [writable](is_writable): both are checked by the
/// callers, which know the tensor.
pub fn quantize(dtype: Dtype, numbers: &[f32], out: &mut Vec<u8>) -> Result<(), QuantizeError> {
    assert!(is_writable(dtype), "{dtype} is not written");
    let block = dtype.block_elements();
    assert!(numbers.len().is_multiple_of(block), "{} numbers of {dtype}", numbers.len());
    if let Some(at) = numbers.iter().position(|n| !n.is_finite()) {
        return Err(QuantizeError::NotFinite { at, value: numbers[at] });
    }
    out.reserve(numbers.len() / block * dtype.block_bytes());
    match dtype {
        Dtype::F32 => out.extend_from_slice(bytemuck::cast_slice(numbers)),
        Dtype::Bf16 => {
            out.extend(numbers.iter().flat_map(|&n| bf16::from_f32(n).to_le_bytes()));
        }
        Dtype::F16 => {
            for (at, &value) in numbers.iter().enumerate() {
                let half = half(value).ok_or(QuantizeError::TooLarge { at, value, dtype })?;
                out.extend_from_slice(&half.to_le_bytes());
            }
        }
        Dtype::Q8_0 => blocks(numbers, out, dtype, q8_0)?,
        Dtype::Q4_0 => blocks(numbers, out, dtype, q4_0)?,
        _ => unreachable!("checked to be writable above"),
    }
    Ok(())
}

/// The nearest f16, unless that is infinite.
fn half(value: f32) -> Option<f16> {
    Some(f16::from_f32(value)).filter(|half| half.is_finite())
}

/// Stores block by block; `encode` gives a block's scale and packed numbers.
fn blocks<const BYTES: usize>(
    numbers: &[f32],
    out: &mut Vec<u8>,
    dtype: Dtype,
    encode: impl Fn(&[f32; 32]) -> (f32, [u8; BYTES]),
) -> Result<(), QuantizeError> {
    for (index, block) in numbers.as_chunks::<32>().0.iter().enumerate() {
        let (scale, packed) = encode(block);
        let Some(scale) = half(scale) else {
            let within = largest(block);
            return Err(QuantizeError::TooLarge {
                at: index * 32 + within,
                value: block[within],
                dtype,
            });
        };
        out.extend_from_slice(&scale.to_le_bytes());
        out.extend_from_slice(&packed);
    }
    Ok(())
}

/// The first of the numbers of largest magnitude.
fn largest(block: &[f32; 32]) -> usize {
    let mut at = 0;
    for (i, n) in block.iter().enumerate() {
        if n.abs() > block[at].abs() {
            at = i;
        }
    }
    at
}

/// 1 / d, or 0 for 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// d is the largest magnitude / 127; numbers are rounded to nearest, ties away from zero.
fn q8_0(block: &[f32; 32]) -> (f32, [u8; 32]) {
    let d = block[largest(block)].abs() / 127.0;
    let inverse = inverse(d);
    (d, std::array::from_fn(|i| (block[i] * inverse).round() as i8 as u8))
}

/// d is the number of largest magnitude / -8; numbers are cut after adding 8.5. The low halves of the bytes are numbers
/// 0–15, the high ones 16–31.
fn q4_0(block: &[f32; 32]) -> (f32, [u8; 16]) {
    let d = block[largest(block)] / -8.0;
    let inverse = inverse(d);
    let nibble = |n: f32| ((n * inverse + 8.5) as u8).min(15);
    (d, std::array::from_fn(|i| nibble(block[i]) | nibble(block[i + 16]) << 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_block_holds_are_refused() {
        let mut numbers = [1.0f32; 64];
        numbers[40] = f32::NAN;
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8_0, Dtype::Q4_0] {
            let error = quantize(dtype, &numbers, &mut Vec::new()).unwrap_err();
            assert!(matches!(error, QuantizeError::NotFinite { at: 40, .. }), "{dtype}");
            assert!(quantize(dtype, &[1.0; 64], &mut Vec::new()).is_ok());
        }
        let refused =
            |numbers: &[f32], dtype| quantize(dtype, numbers, &mut Vec::new()).unwrap_err();
        for (value, dtype) in
            [(-1e5, Dtype::F16), (-1e7, Dtype::F16), (-1e7, Dtype::Q8_0), (-1e7, Dtype::Q4_0)]
        {
            numbers[40] = value;
            assert_eq!(refused(&numbers, dtype), QuantizeError::TooLarge { at: 40, value, dtype });
            assert!(quantize(Dtype::Bf16, &numbers, &mut Vec::new()).is_ok());
        }
        // The scale of the block is a 127th of it.
        numbers[40] = -1e5;
        assert!(quantize(Dtype::Q8_0, &numbers, &mut Vec::new()).is_ok());
    }

    #[test]
    #[should_panic(expected = "is not written")]
    fn other_types_are_not_written() {
        let _ = quantize(Dtype::Q6K, &[0.0; 256], &mut Vec::new());
    }
}
