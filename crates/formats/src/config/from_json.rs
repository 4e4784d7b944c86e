//! `config.json`, in the form of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and
//! of transformers 5 (`rope_parameters`, `dtype`).

use std::path::Path;

use serde_json::{Map, Value, json};

use super::keys::Keys;
use super::{Architecture, Error, ModelConfig, RopeScaling};
use crate::source::ByteFile;
use crate::{Dtype, FormatError};

/// The largest JSON configuration, bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The rotary base where the file names none (transformers' `default_theta`).
const DEFAULT_ROPE_THETA: f64 = 10_000.0;
/// The head width of qwen3 where the file names none (`Qwen3Config.head_dim`).
const QWEN3_HEAD_DIM: usize = 128;

/// Reads a file that holds a JSON object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, FormatError> {
    let file = ByteFile::open(path)?;
    let wrong = |source| FormatError::Config { path: path.to_owned(), source };
    if file.len() > MAX_CONFIG_BYTES {
        return Err(wrong(Error::TooLarge { found: file.len(), limit: MAX_CONFIG_BYTES }));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|source| wrong(Error::NotJson(source)))
}

pub(super) fn from_json(raw: Map<String, Value>) -> Result<ModelConfig, Error> {
    let keys = Keys::new(&raw);
    let architecture = architecture(keys)?;
    refuse_unsupported(keys, architecture)?;
    let hidden_size = keys.require_usize("hidden_size")?;
    let num_attention_heads = keys.require_usize("num_attention_heads")?;
    let head_dim = match keys.usize("head_dim")? {
        Some(head_dim) => head_dim,
        None => default_head_dim(architecture, hidden_size, num_attention_heads)?,
    };
    let max_position_embeddings = keys.require_usize("max_position_embeddings")?;
    let (rope_theta, rope_scaling) = rope(keys, max_position_embeddings)?;
    let attention_bias = keys.bool("attention_bias")?.unwrap_or(false);
    let config = ModelConfig {
        architecture,
        vocab_size: keys.require_usize("vocab_size")?,
        hidden_size,
        intermediate_size: keys.require_usize("intermediate_size")?,
        num_hidden_layers: keys.require_usize("num_hidden_layers")?,
        num_attention_heads,
        num_key_value_heads: keys.usize("num_key_value_heads")?.unwrap_or(num_attention_heads),
        head_dim,
        rms_norm_eps: keys.require_f64("rms_norm_eps")?,
        rope_theta,
        rope_scaling,
        max_position_embeddings,
        tie_word_embeddings: keys.bool("tie_word_embeddings")?.unwrap_or(false),
        attention_bias: architecture == Architecture::Qwen2 || attention_bias,
        attention_output_bias: architecture != Architecture::Qwen2 && attention_bias,
        mlp_bias: architecture == Architecture::Llama && keys.bool("mlp_bias")?.unwrap_or(false),
        bos_token_id: token_ids(keys, "bos_token_id")?.first().copied(),
        eos_token_ids: token_ids(keys, "eos_token_id")?,
        dtype: dtype(keys)?,
        raw: None,
    }
    .checked()?;
    Ok(ModelConfig { raw: Some(raw), ..config })
}

fn architecture(keys: Keys<'_>) -> Result<Architecture, Error> {
    let name = keys.require_str("model_type")?;
    let Some(architecture) = Architecture::from_model_type(name) else {
        return Err(Error::UnknownArchitecture { key: "model_type", found: name.to_owned() });
    };
    if let Some(classes) = keys.array("architectures")?
        && !classes.is_empty()
        && !classes.iter().any(|class| class.as_str() == Some(architecture.class_name()))
    {
        let found =
            classes.iter().map(|c| c.as_str().unwrap_or("?")).collect::<Vec<_>>().join(", ");
        return Err(Error::UnknownArchitecture { key: "architectures", found });
    }
    Ok(architecture)
}

/// Refuses everything that would change the arithmetic and that is not built.
fn refuse_unsupported(keys: Keys<'_>, architecture: Architecture) -> Result<(), Error> {
    if let Some(act) = keys.str("hidden_act")?
        && act != "silu"
    {
        return Err(keys.unsupported("hidden_act", &json!(act), "silu"));
    }
    for key in ["quantization_config", "compression_config"] {
        if let Some(value) = keys.get(key) {
            return Err(keys.unsupported(key, value, "float weights in safetensors, or GGUF,"));
        }
    }
    if let Some(dropout) = keys.f64("attention_dropout")?
        && dropout != 0.0
    {
        return Err(keys.unsupported("attention_dropout", &json!(dropout), "0"));
    }
    if let Some(partial) = keys.f64("partial_rotary_factor")?
        && partial != 1.0
    {
        return Err(keys.unsupported("partial_rotary_factor", &json!(partial), "1"));
    }
    refuse_sliding_window(keys, architecture)
}

fn refuse_sliding_window(keys: Keys<'_>, architecture: Architecture) -> Result<(), Error> {
    const SUPPORTED: &str = "full attention in every layer";
    if let Some(types) = keys.array("layer_types")? {
        if let Some(other) = types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            return Err(keys.unsupported("layer_types", other, SUPPORTED));
        }
        // Where present, this list decides, whatever the older keys say.
        return Ok(());
    }
    let Some(window) = keys.usize("sliding_window")? else {
        return Ok(());
    };
    let used = match architecture {
        Architecture::Llama => true,
        Architecture::Qwen2 | Architecture::Qwen3 => {
            // Layers from max_window_layers on would slide (28 is the classes' default).
            keys.bool("use_sliding_window")?.unwrap_or(false)
                && keys.usize("max_window_layers")?.unwrap_or(28)
                    < keys.require_usize("num_hidden_layers")?
        }
    };
    if used {
        return Err(keys.unsupported("sliding_window", &json!(window), SUPPORTED));
    }
    Ok(())
}

fn default_head_dim(
    architecture: Architecture,
    hidden_size: usize,
    num_attention_heads: usize,
) -> Result<usize, Error> {
    if architecture == Architecture::Qwen3 {
        return Ok(QWEN3_HEAD_DIM);
    }
    if num_attention_heads == 0 || !hidden_size.is_multiple_of(num_attention_heads) {
        return Err(Error::NotAMultiple {
            key: "hidden_size",
            found: hidden_size,
            divisor_key: "num_attention_heads",
            divisor: num_attention_heads,
        });
    }
    Ok(hidden_size / num_attention_heads)
}

fn rope(keys: Keys<'_>, max_position_embeddings: usize) -> Result<(f64, RopeScaling), Error> {
    // A non-empty rope_scaling wins over rope_parameters, as in convert_rope_params_to_dict.
    let scaling = keys.object("rope_scaling")?.filter(|keys| !keys.is_empty());
    let parameters = match scaling {
        Some(scaling) => Some(scaling),
        None => keys.object("rope_parameters")?,
    };
    let top_theta = keys.f64("rope_theta")?;
    let Some(parameters) = parameters else {
        return Ok((top_theta.unwrap_or(DEFAULT_ROPE_THETA), RopeScaling::None));
    };
    let theta = parameters.f64("rope_theta")?.or(top_theta).unwrap_or(DEFAULT_ROPE_THETA);
    let original = keys.usize("original_max_position_embeddings")?;
    let scaling = RopeScaling::from_keys(parameters, max_position_embeddings, original)?;
    Ok((theta, scaling))
}

/// The `eos_token_id` of a `config.json` or `generation_config.json`: one id, a list, or none.
///
/// # Errors
/// [`Error::WrongType`] where it is something else.
pub fn eos_token_ids(raw: &Map<String, Value>) -> Result<Vec<u32>, Error> {
    token_ids(Keys::new(raw), "eos_token_id")
}

fn token_ids(keys: Keys<'_>, key: &str) -> Result<Vec<u32>, Error> {
    let Some(value) = keys.get(key) else {
        return Ok(Vec::new());
    };
    let wrong = || keys.wrong(key, "a token id or a list of token ids", value);
    let one =
        |value: &Value| value.as_u64().and_then(|wide| u32::try_from(wide).ok()).ok_or_else(wrong);
    let mut ids = Vec::new();
    for id in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
        let id = one(id)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn dtype(keys: Keys<'_>) -> Result<Dtype, Error> {
    let (key, found) = match keys.str("dtype")? {
        Some(found) => ("dtype", found),
        None => match keys.str("torch_dtype")? {
            Some(found) => ("torch_dtype", found),
            None => return Ok(Dtype::F32),
        },
    };
    let name = found.strip_prefix("torch.").unwrap_or(found);
    [Dtype::F32, Dtype::F16, Dtype::Bf16]
        .into_iter()
        .find(|dtype| dtype.torch_name() == Some(name))
        .ok_or_else(|| keys.unsupported(key, &json!(found), "float32, float16 or bfloat16"))
}
