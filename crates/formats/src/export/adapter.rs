//! An adapter as a GGUF file that llama.cpp applies to a model as it loads (`--lora`).
//!
//! Source: `convert_lora_to_gguf.py` (form) and `llama-adapter.cpp` (meaning) of llama.cpp.

use std::path::Path;

use super::model::interleaved_heads;
use super::{ExportError, uninterleaved};
use crate::gguf::names::from_hugging_face;
use crate::gguf::{self, Metadata, Value};
use crate::output::OutputTensor;
use crate::peft::{Adapter, Module};
use crate::{FormatError, ModelConfig};

/// A module's factors under their names in the file.
struct Factors {
    name: String,
    a: Vec<f32>,
    b: Vec<f32>,
}

/// Writes an adapter for a model of this configuration, in f32. Gives the file's size in bytes.
///
/// llama.cpp scales by alpha / rank with one alpha for the file. It is the first module's; a module whose scale differs
/// (by its own alpha, or by rsLoRA with its own rank) has the difference multiplied into its B.
///
/// # Errors
/// [`FormatError::Export`] where a module has no place, then as [`gguf::write`].
pub fn write_adapter(
    path: &Path,
    adapter: &Adapter,
    config: &ModelConfig,
) -> Result<u64, FormatError> {
    let refuse = |source| FormatError::Export { path: adapter.path().to_owned(), source };
    let alpha = adapter.modules().first().map_or(0.0, |m| m.scale * m.rank as f64);
    let mut factors = Vec::new();
    for module in adapter.modules() {
        let weight = format!("{}.weight", module.name);
        if module.name == "lm_head" && config.tie_word_embeddings {
            return Err(refuse(ExportError::TiedHead));
        }
        let Some(name) = from_hugging_face(&weight) else {
            let architecture = config.architecture;
            return Err(refuse(ExportError::NoPlace { name: module.name.clone(), architecture }));
        };
        let heads = interleaved_heads(config, &weight, module.out_features).map_err(refuse)?;
        factors.push(read(adapter, module, name, alpha, heads)?);
    }
    let mut tensors = Vec::new();
    for (module, Factors { name, a, b }) in adapter.modules().iter().zip(&factors) {
        let Module { rank, in_features, out_features, .. } = *module;
        tensors.push(OutputTensor::f32(format!("{name}.lora_a"), [rank, in_features], a));
        tensors.push(OutputTensor::f32(format!("{name}.lora_b"), [out_features, rank], b));
    }
    let metadata: Metadata = [
        ("general.architecture", Value::String(config.architecture.model_type().into())),
        ("general.type", Value::String("adapter".into())),
        ("adapter.type", Value::String("lora".into())),
        ("adapter.lora.alpha", Value::F32(alpha as f32)),
        ("general.file_type", Value::U32(0)),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    gguf::write(path, &metadata, tensors)
}

fn read(
    adapter: &Adapter,
    module: &Module,
    name: String,
    alpha: f64,
    heads: Option<usize>,
) -> Result<Factors, FormatError> {
    let mut a = vec![0f32; module.rank * module.in_features];
    let mut shown = vec![0f32; module.out_features * module.rank];
    adapter.read_a(module, &mut a)?;
    adapter.read_b(module, &mut shown)?;
    let ratio = module.scale * module.rank as f64 / alpha;
    if ratio != 1.0 {
        shown.iter_mut().for_each(|b| *b = (f64::from(*b) * ratio) as f32);
    }
    let b = match heads {
        None => shown,
        // The rows of B are rows of the matrix, in whose order the file has them.
        Some(heads) => (0..module.out_features)
            .flat_map(|row| {
                let row = uninterleaved(row, module.out_features, heads);
                &shown[row * module.rank..][..module.rank]
            })
            .copied()
            .collect(),
    };
    Ok(Factors { name, a, b })
}
