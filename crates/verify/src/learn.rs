//! The training side of a step: reference log-probs, coefficients, gradients, the update.

use crate::disorder;
use crate::error::VerifyError;
use crate::perturb::Rule;
use crate::rank::Run;
use crate::sample::{Sample, micro_batches, sequence, split};
use crate::seen::{Step, sha256_floats};
use engine::{Engine, EngineError, MicroBatch, TokenMeasures};
use rl::loss::{Coefs, Measured, PolicyLoss, Tokens};

/// A rank's trainer.
pub(crate) struct Learner<'r> {
    pub(crate) run: &'r Run<'r>,
    pub(crate) trainer: Engine<'r>,
    /// The weights before the first update, where the loss has a divergence from them that the trainer cannot score.
    pub(crate) reference: Option<Engine<'r>>,
}

/// A list of values for each sample.
type Lists = Vec<Vec<f32>>;

impl Learner<'_> {
    /// Everything between rollouts and new weights; what is seen goes into `seen`.
    pub(crate) fn step(
        &mut self,
        seen: &mut Step,
        samples: &mut [Sample],
    ) -> Result<(), VerifyError> {
        let run = self.run;
        if run.settings.kl_coef != 0.0 {
            self.score_reference(samples)?;
            let all: Vec<f32> = samples.iter().flat_map(|s| s.reference.clone()).collect();
            seen.reference_log_probs = sha256_floats(&all);
        }
        let rolled = |s: &Sample| (s.logp.clone(), s.full_logp.clone());
        let (logp, full): (Lists, Lists) = samples.iter().map(rolled).unzip();
        let coefs = self.coefs(samples, &logp, &full);
        let (mut logp, full) = self.train(samples, &coefs)?;
        if run.rule == Some(Rule::NonFinite) {
            logp[0][0] = f32::NAN;
        }
        compare(seen, samples, &logp, &full);
        let (_, measured) = loss(run).coefs(&tokens(samples, &logp, &full));
        tell(seen, &measured)?;
        let before: Vec<Vec<f32>> = match run.rule {
            Some(Rule::LostUpdate) => run.trained().map(|id| self.trainer.read_param(id)).collect(),
            _ => Vec::new(),
        };
        let report = self.trainer.update(&run.settings.hyper, seen.step as u64)?;
        for (id, values) in run.trained().zip(&before) {
            self.trainer.write_param(id, values);
        }
        for (what, value) in
            [("gradient norm", report.grad_norm), ("gradient scale", report.grad_scale)]
        {
            finite(seen.step, what, f64::from(value))?;
        }
        seen.grad_norm_bits = format!("{:08x}", report.grad_norm.to_bits());
        seen.grad_scale_bits = format!("{:08x}", report.grad_scale.to_bits());
        Ok(())
    }

    /// Log-probs of every token by the model before the first update.
    fn score_reference(&mut self, samples: &mut [Sample]) -> Result<(), VerifyError> {
        let none = vec![Coefs::default(); samples.len()];
        let batches = self.batches(samples, &none);
        let engine = self.reference.as_mut().unwrap_or(&mut self.trainer);
        let scored = each(engine, batches.len(), |engine, index| {
            Ok(TokenMeasures {
                logp: engine.score_base(&batches[index])?,
                ..TokenMeasures::default()
            })
        })?;
        let found = split(samples, &scored.0);
        for (sample, reference) in samples.iter_mut().zip(found) {
            sample.reference = reference;
        }
        Ok(())
    }

    /// Gradients of every micro-batch; the log-probs that training found, of the policy and over the whole vocabulary.
    fn train(
        &mut self,
        samples: &[Sample],
        coefs: &[Coefs],
    ) -> Result<(Lists, Lists), VerifyError> {
        let rule = self.run.rule;
        let mut batches = self.batches(samples, coefs);
        disorder::reorder(rule, &mut batches);
        let total = batches.len();
        let (mut logp, full) = each(&mut self.trainer, total, |engine, index| {
            engine.train_and_measure(&batches[index], index, total)
        })?;
        disorder::restore(rule, &batches, &mut logp);
        let full = match full {
            None => logp.clone(),
            Some(mut full) => {
                disorder::restore(rule, &batches, &mut full);
                full
            }
        };
        Ok((split(samples, &logp), split(samples, &full)))
    }

    fn batches(&self, samples: &[Sample], coefs: &[Coefs]) -> Vec<MicroBatch> {
        let run = self.run;
        let truncated = run.settings.head().truncated;
        micro_batches(samples, run.settings.accumulation, |index, sample| {
            let mut sample = sample.clone();
            for (kept, id) in sample.kept.iter_mut().zip(&sample.ids) {
                *kept = disorder::kept(run.rule, *kept, *id);
            }
            let prompt = &run.work.prompts[sample.prompt];
            sequence(prompt, &sample, truncated, &coefs[index])
        })
    }

    /// d loss / d log-prob of every token: on-policy, so that the ratio is exactly 1.
    fn coefs(&self, samples: &[Sample], logp: &[Vec<f32>], full: &[Vec<f32>]) -> Vec<Coefs> {
        let run = self.run;
        let each = match run.rule {
            Some(Rule::LossCount) => samples.len() / run.settings.accumulation,
            _ => samples.len(),
        };
        let mut coefs: Vec<Coefs> = tokens(samples, logp, full)
            .chunks(each)
            .flat_map(|tokens| loss(run).coefs(tokens).0)
            .collect();
        if !run.settings.head().truncated {
            // The policy is the whole vocabulary's: one coefficient a token.
            for coefs in &mut coefs {
                let full = std::mem::take(&mut coefs.full);
                coefs.policy.iter_mut().zip(full).for_each(|(policy, full)| *policy += full);
            }
        }
        coefs
    }
}

/// Runs a replica's micro-batches; what every replica's found, a value a token of each.
fn each(
    engine: &mut Engine<'_>,
    total: usize,
    mut run: impl FnMut(&mut Engine<'_>, usize) -> Result<TokenMeasures, EngineError>,
) -> Result<(Lists, Option<Lists>), EngineError> {
    let mut found = Vec::new();
    for index in engine.micro_batches_of(total) {
        found.push(run(engine, index)?);
    }
    let logp = found.iter().map(|measures| measures.logp.clone()).collect();
    let full: Option<Lists> = found.into_iter().map(|measures| measures.full_logp).collect();
    let logp = engine.gather_micro_batches(total, logp)?;
    Ok((logp, full.map(|full| engine.gather_micro_batches(total, full)).transpose()?))
}

fn loss(run: &Run<'_>) -> PolicyLoss {
    run.settings.loss()
}

fn tokens<'a>(
    samples: &'a [Sample],
    logp: &'a [Vec<f32>],
    full: &'a [Vec<f32>],
) -> Vec<Tokens<'a>> {
    let of = |(i, sample): (usize, &'a Sample)| Tokens {
        advantage: f64::from(sample.advantage),
        logp: &logp[i],
        old: &sample.logp,
        full: &full[i],
        reference: (!sample.reference.is_empty()).then_some(&sample.reference[..]),
    };
    samples.iter().enumerate().map(of).collect()
}

/// Counts the bytes in which log-probs of training differ from rollout's.
fn compare(seen: &mut Step, samples: &[Sample], logp: &[Vec<f32>], full: &[Vec<f32>]) {
    let differing = |trained: &[Vec<f32>], rolled: fn(&Sample) -> &[f32]| {
        let rolled = samples.iter().flat_map(rolled).flat_map(|v| v.to_le_bytes());
        let trained = trained.iter().flatten().flat_map(|v| v.to_le_bytes());
        trained.zip(rolled).filter(|(a, b)| a != b).count()
    };
    seen.differing_log_prob_bytes =
        differing(logp, |s| &s.logp) + differing(full, |s| &s.full_logp);
    seen.train_log_probs = sha256_floats(&logp.concat());
    seen.train_full_log_probs = sha256_floats(&full.concat());
}

/// What the loss came to, at the log-probs that training found.
fn tell(seen: &mut Step, measured: &Measured) -> Result<(), VerifyError> {
    for (what, value) in
        [("loss", measured.loss), ("divergence", measured.kl), ("ratio", measured.ratio_mean)]
    {
        finite(seen.step, what, value)?;
    }
    seen.loss = measured.loss;
    seen.loss_bits = format!("{:016x}", measured.loss.to_bits());
    seen.kl = measured.kl;
    seen.kl_bits = format!("{:016x}", measured.kl.to_bits());
    seen.ratio_bits = format!("{:016x}", measured.ratio_mean.to_bits());
    Ok(())
}

fn finite(step: usize, what: &'static str, value: f64) -> Result<(), VerifyError> {
    if value.is_finite() { Ok(()) } else { Err(VerifyError::NonFinite { step, what, value }) }
}
