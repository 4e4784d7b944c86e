//! A model's configuration, from `config.json` or from GGUF metadata, checked.

mod check;
mod error;
mod from_gguf;
mod from_json;
mod keys;
mod rope;
mod to_json;

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};

pub use check::{
    MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN_SIZE, MAX_INTERMEDIATE_SIZE, MAX_LAYERS, MAX_POSITIONS,
    MAX_VOCAB_SIZE,
};
pub use error::Error;
pub(crate) use from_json::read_object;
pub use from_json::{MAX_CONFIG_BYTES, eos_token_ids};
pub use rope::RopeScaling;
pub(crate) use rope::yarn_mscale;

use crate::{Dtype, FormatError, gguf};

/// A model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3 and models of that form (SmolLM2 and others): `LlamaForCausalLM`.
    Llama,
    /// Qwen 2 and 2.5, dense: `Qwen2ForCausalLM`. Biases on q, k and v.
    Qwen2,
    /// Qwen 3, dense: `Qwen3ForCausalLM`. RMS norms of each head of q and k before RoPE.
    Qwen3,
}

impl Architecture {
    /// Every family.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The `model_type` of `config.json` and the `general.architecture` of GGUF.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class named in `architectures` of `config.json`.
    pub const fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    fn from_model_type(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.model_type() == name)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}

/// A model's configuration under the names of `config.json`.
///
/// Every size has been checked to lie within the limits of this module and to fit the others.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The model family.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of a head; even. Not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How the rotary frequencies are changed for long contexts.
    pub rope_scaling: RopeScaling,
    /// The longest context in tokens.
    pub max_position_embeddings: usize,
    /// Whether `lm_head.weight` is `model.embed_tokens.weight`.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v projections have biases (always in qwen2).
    pub attention_bias: bool,
    /// Whether the o projection has a bias (where `attention_bias` is set in llama and qwen3).
    pub attention_output_bias: bool,
    /// Whether gate, up and down projections have biases.
    pub mlp_bias: bool,
    /// The token that begins a text. It may lie outside the vocabulary, as in some test models.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text, without repeats; those of `generation_config.json` follow the
    /// configuration's own. They may lie outside the vocabulary, as in some test models.
    pub eos_token_ids: Vec<u32>,
    /// The float type that the checkpoint was saved in: f32 where nothing says so, and for GGUF.
    pub dtype: Dtype,
    pub(crate) raw: Option<Map<String, Value>>,
}

impl ModelConfig {
    /// Reads a `config.json`; no weights are needed.
    ///
    /// # Errors
    /// [`FormatError::Io`] where the file cannot be read and [`FormatError::Config`] where it is
    /// wrong or asks for something unsupported.
    pub fn from_json_file(path: &Path) -> Result<Self, FormatError> {
        let raw = read_object(path)?;
        Self::from_json(raw).map_err(|source| FormatError::Config { path: path.to_owned(), source })
    }

    /// Takes a parsed `config.json`.
    ///
    /// # Errors
    /// A variant of [`Error`] for each way in which it can be wrong.
    pub fn from_json(raw: Map<String, Value>) -> Result<Self, Error> {
        from_json::from_json(raw)
    }

    /// Takes the header of a GGUF file. `rope_freqs` holds the numbers of its `rope_freqs.weight`,
    /// if any.
    ///
    /// # Errors
    /// A variant of [`Error`] for each way in which it can be wrong.
    pub fn from_gguf(header: &gguf::Header, rope_freqs: Option<&[f32]>) -> Result<Self, Error> {
        from_gguf::from_gguf(header, rope_freqs)
    }

    /// The `config.json` as it was read; `None` for a GGUF file.
    pub fn raw(&self) -> Option<&Map<String, Value>> {
        self.raw.as_ref()
    }

    /// A `config.json` for weights of this model in `dtype`: the one that was read, unknown keys
    /// included, or one made from the GGUF's metadata; in both the type is set under `torch_dtype`,
    /// which every version of transformers reads.
    pub fn to_json(&self, dtype: Dtype) -> Map<String, Value> {
        to_json::to_json(self, dtype)
    }

    /// Width of all query heads together.
    pub const fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key heads together.
    pub const fn key_value_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}
