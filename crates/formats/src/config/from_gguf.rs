//! The configuration in GGUF metadata.
//!
//! Source: `gguf-py/gguf/constants.py` (keys) and `convert_hf_to_gguf.py` (meanings) of llama.cpp.

use super::rope::yarn_mscale;
use super::{Architecture, Error, ModelConfig, RopeScaling};
use crate::{Dtype, gguf};

/// Metadata of one architecture: keys are written without the architecture's prefix.
struct Keys<'a> {
    metadata: &'a gguf::Metadata,
    prefix: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn missing(&self, key: &str) -> Error {
        gguf::Error::MissingKey { key: self.name(key) }.into()
    }

    fn usize(&self, key: &str) -> Result<Option<usize>, Error> {
        let name = self.name(key);
        let Some(wide) = self.metadata.u64(&name)? else {
            return Ok(None);
        };
        let narrow = usize::try_from(wide).map_err(|_| gguf::Error::OverLimit {
            what: "a size in the metadata",
            found: wide,
            limit: usize::MAX as u64,
        })?;
        Ok(Some(narrow))
    }

    fn require_usize(&self, key: &str) -> Result<usize, Error> {
        self.usize(key)?.ok_or_else(|| self.missing(key))
    }

    fn f64(&self, key: &str) -> Result<Option<f64>, Error> {
        Ok(self.metadata.f64(&self.name(key))?)
    }

    fn require_f64(&self, key: &str) -> Result<f64, Error> {
        self.f64(key)?.ok_or_else(|| self.missing(key))
    }

    fn unsupported(&self, key: &str, found: impl ToString, supported: &'static str) -> Error {
        Error::Unsupported { key: self.name(key), found: found.to_string(), supported }
    }
}

pub(super) fn from_gguf(
    header: &gguf::Header,
    rope_freqs: Option<&[f32]>,
) -> Result<ModelConfig, Error> {
    let metadata = &header.metadata;
    let architecture = architecture(metadata)?;
    let keys = Keys { metadata, prefix: architecture.model_type() };
    let has = |name: &str| header.tensors.iter().any(|tensor| tensor.name == name);
    let hidden_size = keys.require_usize("embedding_length")?;
    let num_attention_heads = keys.require_usize("attention.head_count")?;
    let head_dim = head_dim(&keys, hidden_size, num_attention_heads)?;
    refuse_unsupported(&keys, head_dim)?;
    let rope_theta = keys.f64("rope.freq_base")?.unwrap_or(10_000.0);
    let context_length = keys.require_usize("context_length")?;
    ModelConfig {
        architecture,
        vocab_size: vocab_size(header)?,
        hidden_size,
        intermediate_size: keys.require_usize("feed_forward_length")?,
        num_hidden_layers: keys.require_usize("block_count")?,
        num_attention_heads,
        num_key_value_heads: keys.usize("attention.head_count_kv")?.unwrap_or(num_attention_heads),
        head_dim,
        rms_norm_eps: keys.require_f64("attention.layer_norm_rms_epsilon")?,
        rope_theta,
        rope_scaling: rope_scaling(&keys, rope_theta, head_dim, context_length, rope_freqs)?,
        max_position_embeddings: context_length,
        tie_word_embeddings: !has("output.weight"),
        attention_bias: has("blk.0.attn_q.bias"),
        attention_output_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_up.bias"),
        bos_token_id: metadata.u32("tokenizer.ggml.bos_token_id")?,
        eos_token_ids: eos_token_ids(metadata)?,
        dtype: Dtype::F32,
        raw: None,
    }
    .checked()
}

fn architecture(metadata: &gguf::Metadata) -> Result<Architecture, Error> {
    const KEY: &str = "general.architecture";
    let Some(name) = metadata.str(KEY)? else {
        return Err(gguf::Error::MissingKey { key: KEY.to_owned() }.into());
    };
    Architecture::from_model_type(name)
        .ok_or_else(|| Error::UnknownArchitecture { key: KEY, found: name.to_owned() })
}

/// The rows of the embedding, which is what the model computes with; the tokenizer's list may be
/// shorter.
fn vocab_size(header: &gguf::Header) -> Result<usize, Error> {
    let embedding = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    match embedding.map(|tensor| tensor.shape.as_slice()) {
        Some([rows, _]) => Ok(*rows),
        _ => Err(Error::MissingKey { key: "token_embd.weight (a matrix)".to_owned() }),
    }
}

fn eos_token_ids(metadata: &gguf::Metadata) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    // The end of a turn, where it differs from the end of a text, also ends what is generated.
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        if let Some(id) = metadata.u32(key)?
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn head_dim(keys: &Keys<'_>, hidden_size: usize, heads: usize) -> Result<usize, Error> {
    let key_length = keys.usize("attention.key_length")?;
    let head_dim = match key_length {
        Some(length) => length,
        None if heads > 0 && hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(Error::NotAMultiple {
                key: "embedding_length",
                found: hidden_size,
                divisor_key: "attention.head_count",
                divisor: heads,
            });
        }
    };
    let value_length = keys.usize("attention.value_length")?.unwrap_or(head_dim);
    if value_length != head_dim {
        let supported = "a value width equal to the key width";
        return Err(keys.unsupported("attention.value_length", value_length, supported));
    }
    Ok(head_dim)
}

fn refuse_unsupported(keys: &Keys<'_>, head_dim: usize) -> Result<(), Error> {
    if let Some(experts) = keys.usize("expert_count")?
        && experts > 0
    {
        return Err(keys.unsupported("expert_count", experts, "a dense model"));
    }
    if let Some(window) = keys.usize("attention.sliding_window")?
        && window > 0
    {
        let supported = "full attention in every layer";
        return Err(keys.unsupported("attention.sliding_window", window, supported));
    }
    let rotated = keys.usize("rope.dimension_count")?.unwrap_or(head_dim);
    if rotated != head_dim {
        return Err(keys.unsupported("rope.dimension_count", rotated, "the whole head's width"));
    }
    Ok(())
}

fn rope_scaling(
    keys: &Keys<'_>,
    rope_theta: f64,
    head_dim: usize,
    context_length: usize,
    rope_freqs: Option<&[f32]>,
) -> Result<RopeScaling, Error> {
    let kind_key = keys.name("rope.scaling.type");
    let kind = match keys.metadata.str(&kind_key)? {
        Some(kind) => kind,
        // The key of files from before `rope.scaling.type`.
        None if keys.f64("rope.scale_linear")?.is_some_and(|scale| scale != 1.0) => "linear",
        None => "none",
    };
    let factor = match keys.f64("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.f64("rope.scale_linear")?,
    };
    let require_factor = || factor.ok_or_else(|| keys.missing("rope.scaling.factor"));
    let original = keys.usize("rope.scaling.original_context_length")?;
    match (kind, rope_freqs) {
        ("none", None) => Ok(RopeScaling::None),
        ("none", Some(divisors)) => llama3(rope_theta, head_dim, divisors),
        ("linear", None) => Ok(RopeScaling::Linear { factor: require_factor()? }),
        ("yarn", None) => yarn(keys, require_factor()?, original.unwrap_or(context_length)),
        (_, None) => Err(keys.unsupported("rope.scaling.type", kind, "none, linear or yarn")),
        (_, Some(_)) => Err(keys.unsupported(
            "rope.scaling.type",
            kind,
            "none, beside the tensor rope_freqs.weight,",
        )),
    }
}

fn yarn(keys: &Keys<'_>, factor: f64, original: usize) -> Result<RopeScaling, Error> {
    for (key, neutral) in
        [("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_log_multiplier", 0.0)]
    {
        if let Some(found) = keys.f64(key)?
            && found != neutral
        {
            return Err(keys.unsupported(key, found, "the key's absence"));
        }
    }
    let given = match keys.f64("rope.scaling.yarn_attn_factor")? {
        Some(given) => Some(given),
        None => keys.f64("rope.scaling.attn_factor")?,
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original,
        // llama.cpp multiplies the given factor by the derived one.
        attention_factor: given.unwrap_or(1.0) * yarn_mscale(factor, 1.0),
        beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        truncate: true,
    })
}

/// Llama 3's scaling from the divisors that the converter computed from it.
///
/// The factor is the divisor of the lowest frequency. The low and high frequency factors are 1 and
/// 4 in every published model; the original context then follows from any divisor between 1 and the
/// factor. All divisors must bear the result out.
fn llama3(rope_theta: f64, head_dim: usize, divisors: &[f32]) -> Result<RopeScaling, Error> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    /// Llama 3's own, where no divisor lies between.
    const ORIGINAL: f64 = 8192.0;
    if divisors.len() != head_dim / 2 {
        return Err(gguf::Error::BadShape {
            name: gguf::names::ROPE_FREQS.to_owned(),
            shape: vec![divisors.len() as u64],
        }
        .into());
    }
    let factor = f64::from(divisors.last().copied().unwrap_or(1.0));
    let wavelength =
        |at: usize| std::f64::consts::TAU * rope_theta.powf(2.0 * at as f64 / head_dim as f64);
    let between = divisors.iter().position(|&d| d > 1.001 && f64::from(d) < factor * 0.999);
    let original = match between {
        None => ORIGINAL,
        Some(at) => {
            let kept = 1.0 / factor;
            let blend = (1.0 / f64::from(divisors[at]) - kept) / (1.0 - kept);
            (wavelength(at) * (LOW + blend * (HIGH - LOW))).round()
        }
    };
    for (at, &found) in divisors.iter().enumerate() {
        let blend = ((original / wavelength(at) - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        let expected = (1.0 / ((1.0 - blend) / factor + blend)) as f32;
        // False for a NaN too.
        let agrees = (found - expected).abs() <= 1e-3 * expected;
        if !agrees {
            return Err(Error::UnknownRopeFreqs { at, found, expected });
        }
    }
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor: LOW,
        high_freq_factor: HIGH,
        // Where it is absurd, the check of the whole configuration says so.
        original_max_position_embeddings: original as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `LlamaModel.generate_extra_tensors` of llama.cpp's converter computes them.
    fn divisors(theta: f64, head_dim: usize, factor: f64, original: f64) -> Vec<f32> {
        let one = |i: usize| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * i as f64 / head_dim as f64);
            if wavelength < original / 4.0 {
                1.0
            } else if wavelength > original {
                factor as f32
            } else {
                let smooth = (original / wavelength - 1.0) / 3.0;
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        };
        (0..head_dim / 2).map(one).collect()
    }

    #[test]
    fn any_original_context_is_recovered() {
        for (theta, head_dim, factor, original) in
            [(5e5, 128, 8.0, 8192), (5e5, 64, 32.0, 8192), (1e4, 16, 8.0, 64), (1e4, 64, 2.5, 4096)]
        {
            let found =
                llama3(theta, head_dim, &divisors(theta, head_dim, factor, original as f64));
            let expected = RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: original,
            };
            assert_eq!(found.unwrap(), expected);
        }
    }

    #[test]
    fn divisors_of_another_form_are_refused() {
        let right = divisors(5e5, 64, 8.0, 8192.0);
        for (at, wrong) in
            [(0, 0.5), (0, f32::NAN), (16, 1.0), (31, 9.0), (31, f32::INFINITY), (31, 0.0)]
        {
            let mut divisors = right.clone();
            divisors[at] = wrong;
            let error = llama3(5e5, 64, &divisors).unwrap_err();
            assert!(matches!(error, Error::UnknownRopeFreqs { .. }), "{at} {wrong}: {error}");
        }
    }
}
