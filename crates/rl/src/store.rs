//! What a step did, in full: `rollouts/step-000001.json`, enough to compute it again.

use std::path::Path;

use engine::Kept;
use record::{RecordError, durable};
use serde::{Deserialize, Serialize};

use crate::dpo::DpoMeasured;
use crate::error::RlError;
use crate::loss::Measured;

/// The folder of stored steps in a run's folder.
const ROLLOUTS: &str = "rollouts";

/// The largest file of a step that is read, bytes.
const STEP_BYTES_LIMIT: u64 = 1 << 30;

/// One completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the prompt in the data.
    pub prompt: usize,
    /// Where the prompt comes from.
    pub origin: String,
    /// Tokens of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Tokens of the completion.
    pub ids: Vec<u32>,
    /// Its text, as graded.
    pub text: String,
    /// Why it ended.
    pub ending: String,
    /// Policy log-prob of each token when it was chosen; of pairs, when they were scored.
    pub logp: Vec<f32>,
    /// Log-prob over the whole vocabulary of each token; empty where the policy keeps every candidate.
    pub full_logp: Vec<f32>,
    /// The last candidate that each token was chosen from, `null` for every candidate; empty where all keep all.
    pub kept: Vec<Option<(f32, u32)>>,
    /// Log-prob of each token by the reference; empty where none is asked.
    pub reference: Vec<f32>,
    /// The grader's reward.
    pub reward: Option<f64>,
    /// Why there is none.
    pub fault: Option<String>,
    /// What the divergence took from the reward.
    pub charged: Option<f64>,
    /// The advantage; absent where the sample was dropped.
    pub advantage: Option<f64>,
}

impl Sample {
    /// The kept sets for training; empty where all keep all.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let of =
            |kept: &Option<(f32, u32)>| kept.map_or(Kept::ALL, |(logit, id)| Kept { logit, id });
        self.kept.iter().map(of).collect()
    }

    /// Log-probs over the whole vocabulary.
    pub(crate) fn full(&self) -> &[f32] {
        if self.full_logp.is_empty() { &self.logp } else { &self.full_logp }
    }
}

/// One update's coefficients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Policy log-probs that the coefficients were made of, a list a sample.
    pub logp: Vec<Vec<f32>>,
    /// The same over the whole vocabulary; empty where they are the same.
    pub full_logp: Vec<Vec<f32>>,
    /// d loss / d policy log-prob of each token, a list a sample.
    pub coef: Vec<Vec<f32>>,
    /// d loss / d log-prob over the whole vocabulary; empty lists where the loss has no divergence, and where the policy
    /// keeps every candidate: then it is part of `coef`.
    pub coef_full: Vec<Vec<f32>>,
    /// d loss / d entropy; empty lists where the loss has no bonus.
    pub coef_entropy: Vec<Vec<f32>>,
    /// What the loss measured.
    pub measured: Option<Measured>,
    /// What pairs measured.
    pub pairs: Option<DpoMeasured>,
}

/// A stored step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, from 1.
    pub step: usize,
    /// Completions: groups one after the other, or of pairs the chosen and the rejected in turn.
    pub samples: Vec<Sample>,
    /// Updates, in order.
    pub updates: Vec<Update>,
}

fn name(step: usize) -> String {
    format!("step-{step:06}.json")
}

/// Makes room for stored steps in a run's folder.
pub(crate) fn create(folder: &Path) -> Result<(), RlError> {
    let path = folder.join(ROLLOUTS);
    let create = |source| RecordError::Io { action: "create", path: path.clone(), source };
    Ok(std::fs::create_dir_all(&path).map_err(create)?)
}

/// Writes a step as compact JSON: rollouts are large.
pub(crate) fn write(folder: &Path, record: &StepRecord) -> Result<(), RlError> {
    let (folder, name) = (folder.join(ROLLOUTS), name(record.step));
    let mut text = serde_json::to_vec(record).map_err(|error| RlError::Stored {
        path: folder.join(&name),
        reason: format!("it cannot be written as JSON: {error}"),
    })?;
    text.push(b'\n');
    Ok(durable::write(&folder, &name, &text)?)
}

/// Reads a stored step.
///
/// # Errors
/// [`RlError::Stored`] where it is not there; [`RlError::Train`] where it cannot be read.
pub fn read_step(folder: &Path, step: usize) -> Result<StepRecord, RlError> {
    let path = folder.join(ROLLOUTS).join(name(step));
    if !path.exists() {
        let reason = format!("step {step} is not stored there; stored steps are in {ROLLOUTS}/");
        return Err(RlError::Stored { path: folder.to_owned(), reason });
    }
    Ok(durable::read_json_within(&path, STEP_BYTES_LIMIT)?)
}
