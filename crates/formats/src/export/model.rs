//! A model as one GGUF file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use super::{ExportError, TILE_ROWS, file_type, metadata, uninterleaved};
use crate::gguf::names::{ROPE_FREQS, Rotary, from_hugging_face, rotary};
use crate::gguf::{self, Metadata, Value, quantize};
use crate::merged::Weights;
use crate::output::{FillError, OutputTensor};
use crate::{Architecture, Dtype, FormatError, ModelConfig, TensorInfo};

/// What to write.
#[derive(Debug)]
pub struct Model<'a> {
    /// The base, with an adapter merged into it or not.
    pub weights: &'a Weights<'a>,
    /// The name that programs show (`general.name`).
    pub name: &'a str,
    /// The entries of the tokenizer and chat template (`tokenizer.*`).
    pub vocabulary: &'a Metadata,
    /// The storage of matrices. Vectors (norms, biases) stay f32. Where this is Q4_0, the embedding and the head are
    /// Q8_0: their errors reach every token.
    pub dtype: Dtype,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file's size.
    pub bytes: u64,
    /// Tensors by storage type.
    pub tensors: BTreeMap<Dtype, usize>,
}

/// Writes a model, replacing what is at `path` only when all of it is written. `progress` is called for each tensor.
///
/// # Errors
/// [`FormatError::Export`] before anything is written; then as [`gguf::write`], with a number that the type cannot hold
/// as the cause of [`FormatError::Fill`].
pub fn write_model(
    path: &Path,
    model: &Model<'_>,
    progress: &dyn Fn(),
) -> Result<Written, FormatError> {
    let checkpoint = model.weights.checkpoint();
    let refuse = |source| FormatError::Export { path: checkpoint.path().to_owned(), source };
    if !gguf::is_writable(model.dtype) {
        return Err(refuse(ExportError::NotWritable { dtype: model.dtype }));
    }
    let config = checkpoint.config();
    let metadata = metadata_of(model, config).map_err(refuse)?;
    let divisors = metadata::rope_divisors(config);
    let mut tensors = Vec::new();
    if let Some(divisors) = &divisors {
        tensors.push(OutputTensor::f32(ROPE_FREQS, [divisors.len()], divisors));
    }
    for info in model.weights.tensors() {
        tensors.push(tensor(model, info, progress).map_err(refuse)?);
    }
    let mut counts = BTreeMap::new();
    for tensor in &tensors {
        *counts.entry(tensor.dtype).or_insert(0) += 1;
    }
    let bytes = gguf::write(path, &metadata, tensors)?;
    Ok(Written { bytes, tensors: counts })
}

fn metadata_of(model: &Model<'_>, config: &ModelConfig) -> Result<Metadata, ExportError> {
    let architecture = config.architecture.model_type();
    let general = [
        ("general.architecture", Value::String(architecture.into())),
        ("general.type", Value::String("model".into())),
        ("general.name", Value::String(model.name.into())),
        ("general.file_type", Value::U32(file_type(model.dtype))),
        // The version of the block formats, which has been 2 since 2023.
        ("general.quantization_version", Value::U32(2)),
    ];
    let general = general.into_iter().map(|(key, value)| (key.to_owned(), value));
    let vocabulary = model
        .vocabulary
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."))
        .map(|(key, value)| (key.to_owned(), value.clone()));
    let entries = general.chain(metadata::of_config(config)?).chain(vocabulary);
    Ok(entries.collect())
}

/// The storage of one tensor.
fn storage(info: &TensorInfo, wanted: Dtype) -> Dtype {
    let outer = info.name == "lm_head.weight" || info.name == "model.embed_tokens.weight";
    match wanted {
        _ if info.shape.len() < 2 => Dtype::F32,
        Dtype::Q4_0 if outer => Dtype::Q8_0,
        wanted => wanted,
    }
}

/// Heads whose rotary halves llama.cpp interleaves in a tensor of so many rows; `None` where rows stay in order.
pub(super) fn interleaved_heads(
    config: &ModelConfig,
    name: &str,
    rows: usize,
) -> Result<Option<usize>, ExportError> {
    if config.architecture != Architecture::Llama {
        return Ok(None);
    }
    let heads = match rotary(name) {
        None => return Ok(None),
        Some(Rotary::Query) => config.num_attention_heads,
        Some(Rotary::Key) => config.num_key_value_heads,
    };
    let expected = heads * config.head_dim;
    if rows != expected {
        return Err(ExportError::WrongRows { name: name.to_owned(), rows, expected });
    }
    Ok(Some(heads))
}

fn tensor<'a>(
    model: &'a Model<'_>,
    info: &'a TensorInfo,
    progress: &'a dyn Fn(),
) -> Result<OutputTensor<'a>, ExportError> {
    let config = model.weights.checkpoint().config();
    let Some(name) = from_hugging_face(&info.name) else {
        let architecture = config.architecture;
        return Err(ExportError::NoPlace { name: info.name.clone(), architecture });
    };
    let dtype = storage(info, model.dtype);
    let (row, block) = (info.row_elements(), dtype.block_elements());
    if !row.is_multiple_of(block) {
        return Err(ExportError::PartialBlock { name: info.name.clone(), row, block, dtype });
    }
    let heads = interleaved_heads(config, &info.name, info.shape.first().copied().unwrap_or(0))?;
    Ok(OutputTensor::new(name, dtype, info.shape.clone(), move |writer| {
        fill(model.weights, info, dtype, heads, writer)?;
        progress();
        Ok(())
    }))
}

fn fill(
    weights: &Weights<'_>,
    info: &TensorInfo,
    dtype: Dtype,
    heads: Option<usize>,
    writer: &mut dyn Write,
) -> Result<(), FillError> {
    let tensor = weights.tensor(info)?;
    let (rows, width) = (info.rows(), info.row_elements());
    let mut stored = Vec::new();
    if let (Some(heads), 1) = (heads, rows) {
        // A bias: its numbers are what the matrix's rows give.
        let mut shown = vec![0f32; width];
        tensor.read_rows(0..1, &mut shown)?;
        let order = |at| shown[uninterleaved(at, width, heads)];
        let numbers: Vec<f32> = (0..width).map(order).collect();
        quantize(dtype, &numbers, &mut stored)?;
        writer.write_all(&stored)?;
        return Ok(());
    }
    let mut numbers = vec![0f32; TILE_ROWS.min(rows) * width];
    for begin in (0..rows).step_by(TILE_ROWS) {
        let end = (begin + TILE_ROWS).min(rows);
        let numbers = &mut numbers[..(end - begin) * width];
        match heads {
            None => tensor.read_rows(begin..end, numbers)?,
            Some(heads) => {
                for (row, out) in (begin..end).zip(numbers.chunks_exact_mut(width)) {
                    let shown = uninterleaved(row, rows, heads);
                    tensor.read_rows(shown..shown + 1, out)?;
                }
            }
        }
        stored.clear();
        quantize(dtype, numbers, &mut stored)?;
        writer.write_all(&stored)?;
    }
    Ok(())
}
