//! What a step is remembered by.

use crate::error::VerifyError;
use fabric::Seat;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Hashes of one trained parameter after an update: SHA-256 of the bytes, f32 little-endian, padding included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// A trained parameter before the first update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Initial {
    /// Its name.
    pub name: String,
    /// Hash of its value, as in [`Parameter`].
    pub value: String,
}

/// What a rank saw in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Trained parameters before the first update.
    pub(crate) initial: Vec<Initial>,
    /// The updates.
    pub(crate) steps: Vec<Step>,
}

impl Seen {
    /// What the first rank saw, on every rank: each process judges it alike.
    pub(crate) fn of_first_rank(&self, seat: &mut Seat<'_>) -> Result<Seen, VerifyError> {
        let unread = |error: serde_json::Error| VerifyError::Seen { reason: error.to_string() };
        let mine = match seat.index() {
            0 => serde_json::to_vec(self).map_err(unread)?,
            _ => Vec::new(),
        };
        let all = seat.all_gather("what the first rank saw", &mine)?;
        serde_json::from_slice(all.first().map_or(&[], Vec::as_slice)).map_err(unread)
    }
}

/// A run to compare with: what it was of, and what it saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Hash of model, prompts, settings and version: runs of another identity are not compared.
    pub identity: String,
    /// Trained parameters before the first update.
    pub initial: Vec<Initial>,
    /// The updates.
    pub steps: Vec<Step>,
}

/// One update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step, from 1.
    pub step: usize,
    /// SHA-256 of every completion's tokens.
    pub tokens: String,
    /// Tokens generated.
    pub generated: usize,
    /// Completions that ended at a stop token.
    pub natural_stops: usize,
    /// SHA-256 of every generated token's log-prob by the policy (temperature, renormalised over the kept candidates), from
    /// rollout.
    pub rollout_log_probs: String,
    /// The same over the whole vocabulary.
    pub rollout_full_log_probs: String,
    /// By the policy, from training's forward pass, before the update.
    pub train_log_probs: String,
    /// The same over the whole vocabulary.
    pub train_full_log_probs: String,
    /// Bytes that differ between rollout and training, of both.
    pub differing_log_prob_bytes: usize,
    /// SHA-256 of every generated token's log-prob by the reference model; empty where the loss has no divergence from it.
    pub reference_log_probs: String,
    /// SHA-256 of every advantage.
    pub advantages: String,
    /// Active tokens.
    pub active: usize,
    /// The loss.
    pub loss: f64,
    /// Its bits, in hexadecimal.
    pub loss_bits: String,
    /// The mean divergence a token from the reference model (estimator k3); 0 where the loss has none.
    pub kl: f64,
    /// Its bits.
    pub kl_bits: String,
    /// Bits of the mean ratio of training's probability to rollout's: of exactly 1.
    pub ratio_bits: String,
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
            ("rollout log-probs over the vocabulary".into(), self.rollout_full_log_probs.clone()),
            ("advantages".into(), self.advantages.clone()),
            ("active tokens".into(), self.active.to_string()),
            ("reference log-probs".into(), self.reference_log_probs.clone()),
            ("training log-probs".into(), self.train_log_probs.clone()),
            ("training log-probs over the vocabulary".into(), self.train_full_log_probs.clone()),
            ("ratio".into(), self.ratio_bits.clone()),
            ("divergence".into(), self.kl_bits.clone()),
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
