//! A stored step, computed again and compared to the byte.

use std::path::Path;

use engine::Engine;
use serde::Serialize;

use crate::batch::Packed;
use crate::compare::differing_bytes_of;
use crate::error::{RlError, at};
use crate::grpo;
use crate::loss::Coefs;
use crate::pairs;
use crate::run::Progress;
use crate::settings::{Method, Resolved};
use crate::store::{Sample, StepRecord};

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// The step, from 1.
    pub step: usize,
    /// Samples of the step.
    pub samples: usize,
    /// Advantages that came out otherwise.
    pub differing_advantages: usize,
    /// Updates of the step.
    pub updates: usize,
    /// Coefficients computed again.
    pub coefficients: usize,
    /// Bytes of them that differ.
    pub differing_coefficient_bytes: usize,
    /// Updates whose measures (loss, divergence, ratios) came out otherwise.
    pub differing_measures: usize,
    /// Log-probs, where weights were at hand.
    pub log_probs: Option<LogProbs>,
}

/// Log-probs of the first update, by the weights that generated the step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LogProbs {
    /// Values compared: of the policy, over the whole vocabulary where it keeps a part, and of the reference.
    pub compared: usize,
    /// Bytes that differ.
    pub differing_bytes: usize,
}

impl Replayed {
    /// Whether anything was there to be compared: a step that taught nothing and whose weights are gone has nothing.
    pub fn compared(&self) -> bool {
        self.coefficients > 0 || self.log_probs.as_ref().is_some_and(|l| l.compared > 0)
    }

    /// Whether everything came out as it was stored.
    pub fn same(&self) -> bool {
        let log_probs = self.log_probs.as_ref().map_or(0, |l| l.differing_bytes);
        self.differing_advantages == 0
            && self.differing_coefficient_bytes == 0
            && self.differing_measures == 0
            && log_probs == 0
    }
}

/// Computes advantages, coefficients and measures of a stored step again, without a model.
pub fn coefficients(method: &Method, record: &StepRecord) -> Replayed {
    let mut found = Replayed {
        step: record.step,
        samples: record.samples.len(),
        updates: record.updates.len(),
        ..Replayed::default()
    };
    let mut samples = record.samples.clone();
    if let Method::Grpo(g) = method {
        for sample in &mut samples {
            (sample.advantage, sample.charged) = (None, None);
        }
        grpo::advantages(&mut samples, g);
        let bits = |s: &Sample| (s.advantage.map(f64::to_bits), s.charged.map(f64::to_bits));
        let pairs = samples.iter().zip(&record.samples);
        found.differing_advantages = pairs.filter(|(a, b)| bits(a) != bits(b)).count();
    }
    for update in &record.updates {
        let coefs: Vec<Coefs> = match method {
            Method::Grpo(g) => {
                let full = (!update.full_logp.is_empty()).then_some(&update.full_logp[..]);
                let (coefs, measured) = grpo::coefs(&samples, g, &update.logp, full);
                found.differing_measures += usize::from(update.measured != Some(measured));
                coefs
            }
            Method::Dpo(dpo) => {
                let (coefs, measured) = pairs::coefs(&samples, dpo, &update.logp);
                found.differing_measures += usize::from(update.pairs != Some(measured));
                coefs
            }
        };
        for (i, coefs) in coefs.iter().enumerate() {
            for (again, stored) in [
                (&coefs.policy, &update.coef),
                (&coefs.full, &update.coef_full),
                (&coefs.entropy, &update.coef_entropy),
            ] {
                let none = Vec::new();
                let stored = stored.get(i).unwrap_or(&none);
                found.coefficients += again.len();
                found.differing_coefficient_bytes += differing_bytes_of(again, stored);
            }
        }
    }
    found
}

/// Whether the weights that generated a step are at hand: the first step's are the initial ones, a later step's those of
/// the checkpoint after the step before it.
pub fn has_weights(folder: &Path, step: usize) -> bool {
    step == 1 || train::checkpoint_at(folder, step - 1).is_dir()
}

/// Scores a stored step again by the weights that generated it. The engine, planned for scoring on one rank (and by the
/// reference, where the run has one), has its base weights loaded and its adapter fresh.
///
/// # Errors
/// A checkpoint that cannot be read; whatever scoring gives.
pub fn log_probs(
    folder: &Path,
    resolved: &Resolved,
    record: &StepRecord,
    engine: &mut Engine<'_>,
) -> Result<LogProbs, RlError> {
    let step = record.step;
    if step > 1 {
        let checkpoint = train::checkpoint_at(folder, step - 1);
        let loaded = train::load_checkpoint::<Progress>(&checkpoint, engine, step - 1);
        loaded?;
    }
    let train = &resolved.train;
    let (tokens, sequences) = (train.micro_tokens.value, train.micro_sequences.value);
    let packed = Packed::new(&record.samples, |_| true, tokens, sequences);
    let mut found = LogProbs::default();
    for index in 0..packed.len() {
        let batch = packed.batch(index, &record.samples, None);
        let measured = engine.measure(&batch).map_err(at(step, "scoring"))?;
        let reference = (engine.blueprint.job.score_base.is_some())
            .then(|| engine.score_base(&batch).map_err(at(step, "reference log-probs")))
            .transpose()?;
        let only = Packed { micro_batches: vec![packed.micro_batches[index].clone()] };
        let again = [Some(measured.logp), measured.full_logp, reference];
        for (which, again) in again.into_iter().enumerate() {
            let Some(again) = again else { continue };
            let lists = only.split(&record.samples, &[again]);
            for &i in &only.micro_batches[0] {
                let sample = &record.samples[i];
                let stored = [&sample.logp[..], sample.full(), &sample.reference[..]][which];
                // A completion that was not graded took no part in training: nothing was asked of the reference.
                if stored.is_empty() {
                    continue;
                }
                found.compared += stored.len();
                found.differing_bytes += differing_bytes_of(&lists[i], stored);
            }
        }
    }
    Ok(found)
}
