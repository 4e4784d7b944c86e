//! What a step is remembered by.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Hashes of one trained parameter after an update: SHA-256 of the bytes, f32 little-endian, padding included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Gradient of the step, before clipping.
    pub gradient: String,
    /// First moment.
    pub first_moment: String,
    /// Second moment.
    pub second_moment: String,
    /// Value.
    pub value: String,
    /// Whether the gradient is all zeros.
    pub zero_gradient: bool,
}

/// One update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step, from 1.
    pub step: usize,
    /// SHA-256 of every completion's tokens.
    pub tokens: String,
    /// Tokens generated.
    pub generated: usize,
    /// Completions that ended at a stop token.
    pub natural_stops: usize,
    /// SHA-256 of every generated token's log-prob, from rollout.
    pub rollout_log_probs: String,
    /// The same from training's forward pass, before the update.
    pub train_log_probs: String,
    /// Bytes that differ between the two.
    pub differing_log_prob_bytes: usize,
    /// SHA-256 of every advantage.
    pub advantages: String,
    /// Active tokens.
    pub active: usize,
    /// The loss.
    pub loss: f64,
    /// Its bits, in hexadecimal.
    pub loss_bits: String,
    /// Bits of the gradient norm.
    pub grad_norm_bits: String,
    /// Bits of what the gradient was multiplied by.
    pub grad_scale_bits: String,
    /// Trained parameters.
    pub parameters: Vec<Parameter>,
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: impl IntoIterator<Item = u8>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same of floats.
pub(crate) fn sha256_floats(values: &[f32]) -> String {
    sha256(values.iter().flat_map(|value| value.to_le_bytes()))
}

impl Step {
    /// Everything that must be equal, in the order in which it comes about: what, and its value.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = vec![
            ("tokens".to_string(), self.tokens.clone()),
            ("rollout log-probs".into(), self.rollout_log_probs.clone()),
            ("advantages".into(), self.advantages.clone()),
            ("active tokens".into(), self.active.to_string()),
            ("training log-probs".into(), self.train_log_probs.clone()),
            ("loss".into(), self.loss_bits.clone()),
        ];
        let of = |what: &str, get: fn(&Parameter) -> &String| {
            let field = move |p: &Parameter| (format!("{what} of {}", p.name), get(p).clone());
            self.parameters.iter().map(field).collect::<Vec<_>>()
        };
        fields.extend(of("gradient", |p| &p.gradient));
        fields.push(("gradient norm".into(), self.grad_norm_bits.clone()));
        fields.push(("gradient scale".into(), self.grad_scale_bits.clone()));
        fields.extend(of("first moment", |p| &p.first_moment));
        fields.extend(of("second moment", |p| &p.second_moment));
        fields.extend(of("value", |p| &p.value));
        fields
    }
}
