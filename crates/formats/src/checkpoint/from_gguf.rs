//! Opening a GGUF file as if it were a Hugging Face folder.

use std::path::Path;

use super::{Checkpoint, RowOrder, TensorInfo};
use crate::gguf::names::{ROPE_FREQS, Rotary, rotary, to_hugging_face};
use crate::{Architecture, FormatError, ModelConfig, gguf};

pub(super) fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let file = gguf::File::open(path)?;
    let others = gguf::split::open_others(&file)?;
    let rope_freqs = match file.tensor(ROPE_FREQS) {
        Some(tensor) => Some(file.read_small_f32(tensor)?),
        None => None,
    };
    let (source, mut header) = file.into_parts();
    let mut parts = vec![(source, header.tensors.len())];
    for other in others {
        let (source, part) = other.into_parts();
        parts.push((source, part.tensors.len()));
        header.tensors.extend(part.tensors);
    }
    let config = ModelConfig::from_gguf(&header, rope_freqs.as_deref())
        .map_err(|source| FormatError::Config { path: path.to_owned(), source })?;
    let mut checkpoint = Checkpoint::new(path, config);
    let mut tensors = header.tensors.into_iter();
    for (source, count) in parts {
        checkpoint.files.push(source);
        for tensor in tensors.by_ref().take(count) {
            push(&mut checkpoint, tensor)?;
        }
    }
    checkpoint.metadata = Some(header.metadata);
    Ok(checkpoint)
}

/// Adds a tensor of the file added last, under its Hugging Face name.
fn push(checkpoint: &mut Checkpoint, tensor: gguf::Tensor) -> Result<(), FormatError> {
    if tensor.name == ROPE_FREQS {
        return Ok(());
    }
    let Some(name) = to_hugging_face(&tensor.name) else {
        return Err(FormatError::UnknownTensor {
            path: checkpoint.path.clone(),
            name: tensor.name,
            architecture: checkpoint.config.architecture,
        });
    };
    let order = row_order(checkpoint, &name, &tensor)?;
    let info = TensorInfo { name, dtype: tensor.dtype, shape: tensor.shape, bytes: tensor.bytes };
    checkpoint.push(info, tensor.offset, order);
    Ok(())
}

/// llama.cpp's converter interleaves the rotary halves of q and k, for the llama architecture only
/// (`LlamaModel.permute` in `convert_hf_to_gguf.py`); transformers undoes it
/// (`LlamaTensorProcessor._reverse_permute_weights`), and so do the reads of this crate.
fn row_order(
    checkpoint: &Checkpoint,
    name: &str,
    tensor: &gguf::Tensor,
) -> Result<RowOrder, FormatError> {
    let config = &checkpoint.config;
    if config.architecture != Architecture::Llama {
        return Ok(RowOrder::AsShown);
    }
    let heads = match rotary(name) {
        None => return Ok(RowOrder::AsShown),
        Some(Rotary::Query) => config.num_attention_heads,
        Some(Rotary::Key) => config.num_key_value_heads,
    };
    // The order is defined only for whole heads, so the shape is checked here and not later.
    if tensor.shape.first() != Some(&(heads * config.head_dim)) {
        let mut expected = tensor.shape.clone();
        if let Some(first) = expected.first_mut() {
            *first = heads * config.head_dim;
        }
        return Err(FormatError::WrongShape {
            path: checkpoint.path.clone(),
            name: name.to_owned(),
            expected,
            found: tensor.shape.clone(),
        });
    }
    Ok(RowOrder::Interleaved { heads })
}
