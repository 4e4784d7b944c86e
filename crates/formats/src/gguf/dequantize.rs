//! Stored bytes to f32, number for number as the reference (`gguf-py/gguf/quants.py` of llama.cpp,
//! which gives the bits of ggml's `dequantize_row_*`): every product and sum is rounded on its own,
//! none is fused.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Dtype;

/// Converts stored bytes to f32.
///
/// `bytes` holds whole blocks of `dtype`; `out` has one element for each stored number.
///
/// # Panics
/// Where the lengths do not agree, or where `dtype` is not [readable](Dtype::is_readable): both are
/// checked by the callers, which know the tensor.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert!(dtype.is_readable(), "{dtype} has no numbers to read");
    let blocks = bytes.len() / dtype.block_bytes();
    assert!(
        bytes.len().is_multiple_of(dtype.block_bytes())
            && out.len() == blocks * dtype.block_elements(),
        "{} bytes of {dtype} do not make {} numbers",
        bytes.len(),
        out.len()
    );
    match dtype {
        Dtype::F32 => {
            each(bytes, out, |b: &[u8; 4], o: &mut [f32; 1]| o[0] = f32::from_le_bytes(*b))
        }
        Dtype::F16 => halves(bytes, out),
        Dtype::Bf16 => {
            each(bytes, out, |b: &[u8; 2], o: &mut [f32; 1]| {
                o[0] = bf16::from_le_bytes(*b).to_f32()
            });
        }
        Dtype::Q4_0 => each(bytes, out, q4_0),
        Dtype::Q4_1 => each(bytes, out, q4_1),
        Dtype::Q5_0 => each(bytes, out, q5_0),
        Dtype::Q5_1 => each(bytes, out, q5_1),
        Dtype::Q8_0 => each(bytes, out, q8_0),
        Dtype::Q4K => each(bytes, out, q4_k),
        Dtype::Q5K => each(bytes, out, q5_k),
        Dtype::Q6K => each(bytes, out, q6_k),
        _ => unreachable!("checked to be readable above"),
    }
}

/// Applies a block's decoder to every block.
fn each<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (outs, _) = out.as_chunks_mut::<N>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// f16 to f32 in groups, for which `half` has the processor's conversions.
fn halves(bytes: &[u8], out: &mut [f32]) {
    const GROUP: usize = 64;
    for (bytes, out) in bytes.chunks(2 * GROUP).zip(out.chunks_mut(GROUP)) {
        let mut group = [f16::ZERO; GROUP];
        let group = &mut group[..out.len()];
        for (half, bytes) in group.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        group.convert_to_f32_slice(out);
    }
}

/// The f16 at `bytes[at..at + 2]`.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// d: f16, then 16 bytes of two 4-bit numbers: the low halves are numbers 0–15, the high ones
/// 16–31.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..].iter().enumerate() {
        out[i] = d * f32::from((q & 0x0f) as i8 - 8);
        out[i + 16] = d * f32::from((q >> 4) as i8 - 8);
    }
}

/// d, m: f16, then 4-bit numbers as in Q4_0, unsigned.
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &q) in block[4..].iter().enumerate() {
        out[i] = d * f32::from(q & 0x0f) + m;
        out[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// The fifth bits of 32 numbers, one bit each from the lowest on.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// d: f16, 4 bytes of fifth bits, then 4-bit numbers as in Q4_0.
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let high = fifth_bits(block, 2);
    for (i, &q) in block[6..].iter().enumerate() {
        let low = (q & 0x0f) | (((high >> i) & 1) as u8) << 4;
        let top = (q >> 4) | (((high >> (i + 16)) & 1) as u8) << 4;
        out[i] = d * f32::from(low as i8 - 16);
        out[i + 16] = d * f32::from(top as i8 - 16);
    }
}

/// d, m: f16, 4 bytes of fifth bits, then 4-bit numbers as in Q4_0, unsigned.
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high = fifth_bits(block, 4);
    for (i, &q) in block[8..].iter().enumerate() {
        let low = (q & 0x0f) | (((high >> i) & 1) as u8) << 4;
        let top = (q >> 4) | (((high >> (i + 16)) & 1) as u8) << 4;
        out[i] = d * f32::from(low) + m;
        out[i + 16] = d * f32::from(top) + m;
    }
}

/// d: f16, then 32 signed bytes.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (o, &q) in out.iter_mut().zip(&block[2..]) {
        *o = f32::from(q as i8) * d;
    }
}

/// The 6-bit (scale, minimum) of group `i` of 8, packed in 12 bytes.
fn scale_and_min(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 0x3f, packed[i + 4] & 0x3f)
    } else {
        let both = packed[i + 4];
        ((both & 0x0f) | (packed[i - 4] >> 2) & 0x30, (both >> 4) | (packed[i] >> 2) & 0x30)
    }
}

/// d, dmin: f16, 12 bytes of scales and minima of 8 groups of 32, then 4-bit numbers: each 32 bytes
/// hold one group in the low halves and the next in the high ones.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let shift = 4 * (group % 2);
        for (o, &q) in out.iter_mut().zip(&quants[group / 2 * 32..]) {
            *o = scale * f32::from((q >> shift) & 0x0f) - min;
        }
    }
}

/// As Q4_K with 32 bytes of fifth bits before the 4-bit numbers: bit g of byte i belongs to number
/// i of group g.
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, high, quants) = (&block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let shift = 4 * (group % 2);
        let quants = &quants[group / 2 * 32..];
        for (i, o) in out.iter_mut().enumerate() {
            let q = (quants[i] >> shift) & 0x0f | ((high[i] >> group) & 1) << 4;
            *o = scale * f32::from(q) - min;
        }
    }
}

/// 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales of 16 numbers each, d: f16.
/// Each half of 128 numbers takes 64 low bytes (numbers 0–63 in the low halves, 64–127 in the high
/// ones) and 32 high bytes (two bits for each of the four runs of 32).
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let d = half_at(block, 208);
    for (run, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (run / 4, run % 4);
        let low = &low[half * 64 + quarter % 2 * 32..];
        let high = &high[half * 32..];
        for (i, o) in out.iter_mut().enumerate() {
            let q = (low[i] >> (quarter / 2 * 4)) & 0x0f | ((high[i] >> (quarter * 2)) & 3) << 4;
            let scale = d * f32::from(scales[run * 2 + i / 16] as i8);
            *o = scale * f32::from(q as i8 - 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "do not make")]
    fn lengths_must_agree() {
        dequantize(Dtype::Q8_0, &[0; 34], &mut [0.0; 31]);
    }

    #[test]
    #[should_panic(expected = "no numbers to read")]
    fn integers_are_not_read() {
        dequantize(Dtype::I64, &[0; 8], &mut [0.0; 1]);
    }
}
