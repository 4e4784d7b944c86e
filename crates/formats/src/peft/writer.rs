//! Writing an adapter's folder.

use std::collections::HashSet;
use std::path::Path;

use super::{AdapterConfig, CONFIG_FILE, Error, ORIGIN_FILE, Origin, PREFIX, WEIGHTS_FILE};
use crate::FormatError;
use crate::safetensors::{self, OutputTensor};
use crate::write::{StagedFolder, atomic_json};

/// The factors of a module to write.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// The layer's name in the model, such as `model.layers.0.self_attn.q_proj`.
    pub module: &'a str,
    /// Inputs of the layer.
    pub in_features: usize,
    /// Outputs of the layer.
    pub out_features: usize,
    /// A, `[rank, in_features]`, row by row.
    pub a: &'a [f32],
    /// B, `[out_features, rank]`, row by row.
    pub b: &'a [f32],
}

/// Writes an adapter to `folder`, which must not exist or be empty: it appears whole, or not at
/// all. The rank of each module is the one that `config` gives it. `origin` is kept in a file of its own, which peft
/// does not read.
///
/// # Errors
/// [`FormatError::Adapter`] where configuration and factors do not fit,
/// [`FormatError::TargetNotEmpty`], [`FormatError::Io`].
pub fn write(
    folder: &Path,
    config: &AdapterConfig,
    origin: Option<&Origin>,
    modules: &[Factors<'_>],
) -> Result<(), FormatError> {
    let tensors = tensors(config, modules)
        .map_err(|source| FormatError::Adapter { path: folder.to_owned(), source })?;
    let staged = StagedFolder::create(folder)?;
    atomic_json(&staged.path().join(CONFIG_FILE), &config.to_json())?;
    if let Some(origin) = origin {
        atomic_json(&staged.path().join(ORIGIN_FILE), origin)?;
    }
    safetensors::write(&staged.path().join(WEIGHTS_FILE), &[("format", "pt")], tensors)?;
    staged.commit()
}

fn tensors<'a>(
    config: &AdapterConfig,
    modules: &[Factors<'a>],
) -> Result<Vec<OutputTensor<'a>>, Error> {
    config.check()?;
    if modules.is_empty() {
        return Err(Error::Empty);
    }
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(2 * modules.len());
    for factors in modules {
        let Factors { module, in_features, out_features, a, b } = *factors;
        if !names.insert(module) {
            return Err(Error::DuplicateModule { module: module.to_owned() });
        }
        let rank = config.rank_of(module);
        let parts = [("lora_A", [rank, in_features], a), ("lora_B", [out_features, rank], b)];
        for (factor, shape, numbers) in parts {
            let name = format!("{PREFIX}{module}.{factor}.weight");
            let needed = shape[0].saturating_mul(shape[1]);
            if needed != numbers.len() {
                return Err(Error::WrongBufferLength { name, needed, found: numbers.len() });
            }
            tensors.push(OutputTensor::f32(name, shape, numbers));
        }
    }
    Ok(tensors)
}
