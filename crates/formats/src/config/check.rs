//! Limits on sizes, and the ways in which sizes must fit each other.

use super::{Error, ModelConfig};

/// The largest `vocab_size`.
pub const MAX_VOCAB_SIZE: usize = 1 << 24;
/// The largest `hidden_size`.
pub const MAX_HIDDEN_SIZE: usize = 1 << 18;
/// The largest `intermediate_size`.
pub const MAX_INTERMEDIATE_SIZE: usize = 1 << 20;
/// The most `num_hidden_layers`.
pub const MAX_LAYERS: usize = 1 << 12;
/// The most `num_attention_heads`.
pub const MAX_HEADS: usize = 1 << 12;
/// The largest `head_dim`.
pub const MAX_HEAD_DIM: usize = 1 << 12;
/// The largest `max_position_embeddings`, tokens.
pub const MAX_POSITIONS: usize = 1 << 28;

impl ModelConfig {
    /// Checks all sizes; every constructor ends here.
    pub(super) fn checked(self) -> Result<Self, Error> {
        in_range("vocab_size", self.vocab_size, MAX_VOCAB_SIZE)?;
        in_range("hidden_size", self.hidden_size, MAX_HIDDEN_SIZE)?;
        in_range("intermediate_size", self.intermediate_size, MAX_INTERMEDIATE_SIZE)?;
        in_range("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS)?;
        in_range("num_attention_heads", self.num_attention_heads, MAX_HEADS)?;
        in_range("num_key_value_heads", self.num_key_value_heads, MAX_HEADS)?;
        in_range("head_dim", self.head_dim, MAX_HEAD_DIM)?;
        in_range("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return Err(Error::NotAMultiple {
                key: "num_attention_heads",
                found: self.num_attention_heads,
                divisor_key: "num_key_value_heads",
                divisor: self.num_key_value_heads,
            });
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(Error::Unsupported {
                key: "head_dim".to_owned(),
                found: self.head_dim.to_string(),
                supported: "an even width, which RoPE rotates in pairs,",
            });
        }
        positive("rms_norm_eps", self.rms_norm_eps, 1.0)?;
        positive("rope_theta", self.rope_theta, 1e12)?;
        self.rope_scaling.check()?;
        Ok(self)
    }
}

fn in_range(key: &str, found: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        key: key.to_owned(),
        found: found.to_string(),
        least: "1".to_owned(),
        most: most.to_string(),
    })
}

/// Checks `0 < found <= most`.
pub(super) fn positive(key: &str, found: f64, most: f64) -> Result<(), Error> {
    if found > 0.0 && found <= most {
        return Ok(());
    }
    Err(Error::OutOfRange {
        key: key.to_owned(),
        found: found.to_string(),
        least: "above 0".to_owned(),
        most: most.to_string(),
    })
}
