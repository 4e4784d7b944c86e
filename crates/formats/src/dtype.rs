//! Storage formats of tensors: plain numbers and GGUF's quantized blocks.

use std::fmt;

/// How the numbers of a tensor are stored in a file.
///
/// The last axis of a tensor is stored in blocks of [`Dtype::block_elements`] numbers, each block
/// taking [`Dtype::block_bytes`] bytes. Plain types have blocks of one number. Names and layouts
/// are those of safetensors (`dtype`) and of ggml (`ggml_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The variants are the formats' own names.
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    C64,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl Dtype {
    /// Every storage format.
    pub const ALL: [Self; 25] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F8E8M0,
        Self::C64,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Numbers in one block of the last axis.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
            _ => 1,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 | Self::C64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::F8E8M0 | Self::I8 | Self::U8 | Self::Bool => 1,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Whether tensors of this type can be read as f32 or bf16 numbers.
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16) || self.is_quantized()
    }

    /// Whether this is one of GGUF's block formats.
    pub const fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }

    /// The name that safetensors headers use, or `None` for GGUF's block formats.
    pub const fn safetensors_name(self) -> Option<&'static str> {
        Some(match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E8M0 => "F8_E8M0",
            Self::C64 => "C64",
            Self::I64 => "I64",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
            Self::U64 => "U64",
            Self::U32 => "U32",
            Self::U16 => "U16",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
            _ => return None,
        })
    }

    /// The type that a safetensors header names.
    pub fn from_safetensors_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.safetensors_name() == Some(name))
    }

    /// The number that GGUF files use (`enum ggml_type`), or `None` for types that GGUF lacks.
    pub const fn ggml_id(self) -> Option<u32> {
        Some(match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::I8 => 24,
            Self::I16 => 25,
            Self::I32 => 26,
            Self::I64 => 27,
            Self::F64 => 28,
            Self::Bf16 => 30,
            _ => return None,
        })
    }

    /// The type that a GGUF tensor's type number names.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.ggml_id() == Some(id))
    }

    /// The name of the type in PyTorch and so in `config.json` (`torch_dtype`), for the float
    /// types.
    pub const fn torch_name(self) -> Option<&'static str> {
        Some(match self {
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            _ => return None,
        })
    }

    /// Bytes that `elements` numbers along the last axis take, or `None` where they are no whole
    /// number of blocks or the product overflows.
    pub(crate) fn bytes_of(self, elements: u64) -> Option<u64> {
        let block = self.block_elements() as u64;
        if !elements.is_multiple_of(block) {
            return None;
        }
        (elements / block).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            plain => plain.safetensors_name().unwrap_or("?"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_one_to_one() {
        for dtype in Dtype::ALL {
            if let Some(name) = dtype.safetensors_name() {
                assert_eq!(Dtype::from_safetensors_name(name), Some(dtype));
            }
            if let Some(id) = dtype.ggml_id() {
                assert_eq!(Dtype::from_ggml_id(id), Some(dtype));
            }
            assert!(dtype.safetensors_name().is_some() || dtype.ggml_id().is_some());
        }
        assert_eq!(Dtype::from_safetensors_name("F4"), None);
        assert_eq!(Dtype::from_ggml_id(16), None);
    }

    #[test]
    fn bytes_are_counted_in_whole_blocks() {
        assert_eq!(Dtype::Q4_1.bytes_of(576), Some(18 * 20));
        assert_eq!(Dtype::Q4K.bytes_of(255), None);
        assert_eq!(Dtype::F64.bytes_of(u64::MAX), None);
    }
}
