//! Reading an adapter's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{AdapterConfig, CONFIG_FILE, Error, Origin, PREFIX, WEIGHTS_FILE};
use crate::config::read_object;
use crate::safetensors::{Header, Tensor};
use crate::source::ByteFile;
use crate::{FormatError, gguf};

/// A linear layer that an adapter changes: `W + scale · B·A`.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// The layer's name in the model, such as `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// Rows of A, columns of B.
    pub rank: usize,
    /// Columns of A: inputs of the layer.
    pub in_features: usize,
    /// Rows of B: outputs of the layer.
    pub out_features: usize,
    /// What the product is multiplied by.
    pub scale: f64,
    a: Tensor,
    b: Tensor,
}

/// An open adapter: configuration and header are in memory, weights are not.
#[derive(Debug)]
pub struct Adapter {
    config: AdapterConfig,
    origin: Option<Origin>,
    file: ByteFile,
    modules: Vec<Module>,
}

impl Adapter {
    /// Opens a folder with `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// [`FormatError::Io`], [`FormatError::Config`] where the configuration is not JSON,
    /// [`FormatError::Safetensors`], and [`FormatError::Adapter`] for all that is wrong or
    /// unsupported in the adapter itself.
    pub fn open(folder: &Path) -> Result<Self, FormatError> {
        let config_path = folder.join(CONFIG_FILE);
        let config = AdapterConfig::from_json(&read_object(&config_path)?)
            .map_err(|source| FormatError::Adapter { path: config_path, source })?;
        let file = ByteFile::open(&folder.join(WEIGHTS_FILE))?;
        let path = || file.path().to_owned();
        let header = Header::read(file.stream(), file.len())
            .map_err(|source| FormatError::Safetensors { path: path(), source })?;
        let modules = modules(header, &config)
            .map_err(|source| FormatError::Adapter { path: path(), source })?;
        Ok(Self { config, origin: Origin::read(folder)?, file, modules })
    }

    /// The configuration.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// The adapter's weights file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// What it was trained on; `None` where it does not say, as in adapters of other programs.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The layers that the adapter changes, in order of their names.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Reads A of a module, `[rank, in_features]`.
    ///
    /// # Errors
    /// [`FormatError::Adapter`] where `out` has the wrong length or a value is not finite, [`FormatError::Io`].
    pub fn read_a(&self, module: &Module, out: &mut [f32]) -> Result<(), FormatError> {
        self.read(&module.a, out)
    }

    /// Reads B of a module, `[out_features, rank]`.
    ///
    /// # Errors
    /// As [`Adapter::read_a`].
    pub fn read_b(&self, module: &Module, out: &mut [f32]) -> Result<(), FormatError> {
        self.read(&module.b, out)
    }

    fn read(&self, tensor: &Tensor, out: &mut [f32]) -> Result<(), FormatError> {
        let needed: usize = tensor.shape.iter().product();
        if needed != out.len() {
            let (name, found) = (tensor.name.clone(), out.len());
            let path: PathBuf = self.file.path().to_owned();
            let source = Error::WrongBufferLength { name, needed, found };
            return Err(FormatError::Adapter { path, source });
        }
        // A factor is small beside its layer, so it is read at once.
        let mut bytes = vec![0; tensor.bytes as usize];
        self.file.read_at(tensor.offset, &mut bytes)?;
        gguf::dequantize(tensor.dtype, &bytes, out);
        match out.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(index) => {
                let (name, found) = (tensor.name.clone(), out[index]);
                let source = Error::NotFinite { name, found, index };
                Err(FormatError::Adapter { path: self.file.path().to_owned(), source })
            }
        }
    }
}

/// Pairs the A and B of each module and checks them.
fn modules(header: Header, config: &AdapterConfig) -> Result<Vec<Module>, Error> {
    let mut pairs: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
    for tensor in header.tensors {
        let Some((module, factor)) = split_name(&tensor.name) else {
            return Err(Error::UnknownTensor { name: tensor.name });
        };
        if !tensor.dtype.is_readable() {
            return Err(Error::UnreadableDtype { name: tensor.name, dtype: tensor.dtype });
        }
        pairs.entry(module).or_default()[factor] = Some(tensor);
    }
    if pairs.is_empty() {
        return Err(Error::Empty);
    }
    pairs.into_iter().map(|(name, pair)| pair_up(name, pair, config)).collect()
}

/// (module, 0 for A or 1 for B) of a tensor's name.
fn split_name(name: &str) -> Option<(String, usize)> {
    let name = name.strip_prefix(PREFIX)?;
    if let Some(module) = name.strip_suffix(".lora_A.weight") {
        return Some((module.to_owned(), 0));
    }
    name.strip_suffix(".lora_B.weight").map(|module| (module.to_owned(), 1))
}

fn pair_up(
    name: String,
    pair: [Option<Tensor>; 2],
    config: &AdapterConfig,
) -> Result<Module, Error> {
    let (a, b) = match pair {
        [Some(a), Some(b)] => (a, b),
        [None, _] => {
            return Err(Error::HalfModule { module: name, missing: "lora_A" });
        }
        [_, None] => {
            return Err(Error::HalfModule { module: name, missing: "lora_B" });
        }
    };
    let rank = config.rank_of(&name);
    match (a.shape.as_slice(), b.shape.as_slice()) {
        (&[a_rank, in_features], &[out_features, b_rank]) if a_rank == rank && b_rank == rank => {
            let scale = config.scale_of(&name);
            Ok(Module { name, rank, in_features, out_features, scale, a, b })
        }
        _ => Err(Error::WrongShape { module: name, a: a.shape, b: b.shape, rank }),
    }
}
