//! A step's updates: reference log-probs, coefficients, the training pass and its check, the optimizer.

use arena::ExecError;
use engine::{Engine, EngineError, TokenMeasures};

use super::Run;
use crate::batch::Packed;
use crate::compare::{Compared, First};
use crate::error::{RlError, at};
use crate::event::RlEvent;
use crate::grpo;
use crate::loss::Coefs;
use crate::pairs;
use crate::settings::{Dpo, Grpo, Method};
use crate::store::{Sample, StepRecord, Update};

/// Per-token values of every sample.
type Lists = Vec<Vec<f32>>;

/// What a pass over every micro-batch found, a list a sample.
struct Found {
    logp: Lists,
    full: Option<Lists>,
    entropy: Option<Lists>,
}

impl Run<'_, '_> {
    /// Learns from a step's samples; for ranks that train.
    pub(super) fn learn(
        &mut self,
        record: &mut StepRecord,
        event: &mut RlEvent,
        done: u64,
    ) -> Result<(), RlError> {
        let resolved = self.resolved;
        let train = &resolved.train;
        let (tokens, sequences) = (train.micro_tokens.value, train.micro_sequences.value);
        let Some(engine) = &mut self.engines.trainer else { return Ok(()) };
        let pairs = matches!(resolved.method, Method::Dpo(_));
        let samples = &record.samples;
        let packed =
            Packed::new(samples, |i| pairs || samples[i].reward.is_some(), tokens, sequences);
        event.tokens = packed.tokens(samples);
        if packed.len() == 0 {
            return Ok(());
        }
        let mut pass = Pass { engine, packed, step: event.step };
        let hyper = train.hyper(event.lr);
        match &resolved.method {
            Method::Grpo(g) => learn_groups(&mut pass, g, record, event, &hyper, done),
            Method::Dpo(dpo) => learn_pairs(&mut pass, dpo, record, event, &hyper, done),
        }
    }
}

/// Passes over the micro-batches of a step.
struct Pass<'e, 'r> {
    engine: &'e mut Engine<'r>,
    packed: Packed,
    step: usize,
}

fn learn_groups(
    pass: &mut Pass<'_, '_>,
    g: &Grpo,
    record: &mut StepRecord,
    event: &mut RlEvent,
    hyper: &engine::Hyper,
    done: u64,
) -> Result<(), RlError> {
    let samples = &mut record.samples;
    if g.kl_coef.value != 0.0 {
        pass.reference(samples)?;
    }
    let groups = grpo::advantages(samples, g);
    (event.groups, event.uniform) = (groups.groups, groups.uniform);
    event.reward_kl = groups.charged_kl;
    let truncated = g.head().truncated;
    for number in 0..g.updates.value {
        let (logp, full) = if number == 0 {
            let full = truncated.then(|| samples.iter().map(|s| s.full().to_vec()).collect());
            (samples.iter().map(|s| s.logp.clone()).collect(), full)
        } else {
            let found = pass.score(samples)?;
            (found.logp, found.full)
        };
        let (coefs, measured) = grpo::coefs(samples, g, &logp, full.as_deref());
        let (teaches, of_rollout) = (grpo::teaches(&coefs), number == 0);
        let found = match (teaches, of_rollout) {
            (true, _) => pass.train(samples, &coefs)?,
            // Nothing to learn; what training makes of the rollout is compared all the same.
            (false, true) => pass.score(samples)?,
            (false, false) => break,
        };
        let mut compared = Compared::new();
        let took_part = pass.packed.took_part(samples.len());
        compared.add(&found.logp, &logp, &took_part);
        if let Some(full) = &full {
            compared.add(found.full.as_deref().unwrap_or_default(), full, &took_part);
        }
        pass.check(&compared, of_rollout.then_some(&mut *event), number)?;
        if !teaches {
            break;
        }
        let counted = grpo::counted(samples, g);
        let taken = |lists: &Lists| -> Lists {
            lists.iter().zip(&counted).filter(|(_, c)| **c).map(|(l, _)| l.clone()).collect()
        };
        let mut loss = measured.loss;
        if let Some(entropy) = &found.entropy {
            let entropy = taken(entropy);
            let lists: Vec<&[f32]> = entropy.iter().map(Vec::as_slice).collect();
            let (part, mean) = g.loss().entropy(&lists);
            loss += part;
            event.entropy = Some(mean);
        }
        pass.update(hyper, done, event)?;
        event.loss = loss;
        event.measured = Some(measured);
        record.updates.push(stored(logp, full, &coefs, Some(measured), None));
    }
    Ok(())
}

fn learn_pairs(
    pass: &mut Pass<'_, '_>,
    dpo: &Dpo,
    record: &mut StepRecord,
    event: &mut RlEvent,
    hyper: &engine::Hyper,
    done: u64,
) -> Result<(), RlError> {
    let samples = &mut record.samples;
    pass.reference(samples)?;
    let logp = pass.score(samples)?.logp;
    for (sample, logp) in samples.iter_mut().zip(&logp) {
        sample.logp.clone_from(logp);
    }
    let (coefs, measured) = pairs::coefs(samples, dpo, &logp);
    let found = pass.train(samples, &coefs)?;
    let mut compared = Compared::new();
    compared.add(&found.logp, &logp, &pass.packed.took_part(samples.len()));
    pass.check(&compared, None, 0)?;
    pass.update(hyper, done, event)?;
    event.loss = measured.loss;
    event.pairs = Some(measured);
    record.updates.push(stored(logp, None, &coefs, None, Some(measured)));
    Ok(())
}

/// Names the sample whose log-prob is not finite.
fn named(
    error: EngineError,
    step: usize,
    what: &'static str,
    packed: &Packed,
    index: usize,
    samples: &[Sample],
) -> RlError {
    match error {
        EngineError::Exec { source: ExecError::NonFiniteLogProb { row, value, .. }, .. } => {
            let sample = packed.sample_of_row(index, row, samples);
            let sample = sample.map_or_else(|| format!("row {row}"), |i| samples[i].origin.clone());
            RlError::NonFinite { step, sample, value }
        }
        other => at(step, what)(other),
    }
}

fn stored(
    logp: Lists,
    full: Option<Lists>,
    coefs: &[Coefs],
    measured: Option<crate::loss::Measured>,
    pairs: Option<crate::dpo::DpoMeasured>,
) -> Update {
    Update {
        logp,
        full_logp: full.unwrap_or_default(),
        coef: coefs.iter().map(|c| c.policy.clone()).collect(),
        coef_full: coefs.iter().map(|c| c.full.clone()).collect(),
        coef_entropy: coefs.iter().map(|c| c.entropy.clone()).collect(),
        measured,
        pairs,
    }
}

impl Pass<'_, '_> {
    /// The base model's log-probs of every sample.
    fn reference(&mut self, samples: &mut [Sample]) -> Result<(), RlError> {
        let packed = &self.packed;
        let found = packed
            .by_sample(self.engine, samples, |engine, index| {
                engine.score_base(&packed.batch(index, samples, None))
            })
            .map_err(at(self.step, "reference log-probs"))?;
        for (sample, reference) in samples.iter_mut().zip(found) {
            sample.reference = reference;
        }
        Ok(())
    }

    /// Log-probs by the policy as it is.
    fn score(&mut self, samples: &[Sample]) -> Result<Found, RlError> {
        self.every(samples, "log-probs", |engine, packed, index| {
            engine.measure(&packed.batch(index, samples, None))
        })
    }

    /// Gradients from coefficients; what the forward passes found.
    fn train(&mut self, samples: &[Sample], coefs: &[Coefs]) -> Result<Found, RlError> {
        let total = self.packed.len();
        self.every(samples, "training", |engine, packed, index| {
            engine.train_and_measure(&packed.batch(index, samples, Some(coefs)), index, total)
        })
    }

    /// Runs this replica's micro-batches and gathers what every replica's found.
    fn every(
        &mut self,
        samples: &[Sample],
        what: &'static str,
        mut run: impl FnMut(&mut Engine<'_>, &Packed, usize) -> Result<TokenMeasures, EngineError>,
    ) -> Result<Found, RlError> {
        let Pass { engine, packed, step } = self;
        let (total, step) = (packed.len(), *step);
        let mut mine = Vec::new();
        for index in engine.micro_batches_of(total) {
            let found = run(engine, packed, index);
            mine.push(found.map_err(|error| named(error, step, what, packed, index, samples))?);
        }
        let engine = &*engine;
        let gather = |values: Option<Vec<Vec<f32>>>| -> Result<Option<Lists>, RlError> {
            let Some(values) = values else { return Ok(None) };
            let all = engine.gather_micro_batches(total, values).map_err(at(step, what))?;
            Ok(Some(packed.split(samples, &all)))
        };
        let logp = mine.iter().map(|m| m.logp.clone()).collect();
        let full = mine.iter().map(|m| m.full_logp.clone()).collect();
        let entropy = mine.iter().map(|m| m.entropy.clone()).collect();
        Ok(Found {
            logp: gather(Some(logp))?.unwrap_or_default(),
            full: gather(full)?,
            entropy: gather(entropy)?,
        })
    }

    /// Ends the run where the training pass found other log-probs than coefficients were made of: the rollout's with
    /// `event`, which is told of the comparison, else the scoring pass's of an update.
    fn check(
        &self,
        compared: &Compared,
        event: Option<&mut RlEvent>,
        number: usize,
    ) -> Result<(), RlError> {
        let step = self.step;
        let Compared { values, differing_bytes: bytes, first, ratio } = *compared;
        let Some(event) = event else {
            return match first {
                None => Ok(()),
                Some(_) => Err(RlError::NotRepeated { step, update: number + 1 }),
            };
        };
        (event.compared, event.differing_bytes, event.ratio_before) = (values, bytes, ratio);
        if let Some(First { sample, token, found: training, expected: rollout }) = first {
            return Err(RlError::Differs { step, bytes, sample, token, training, rollout });
        }
        let [least, most] = ratio;
        if ratio != [1.0; 2] {
            return Err(RlError::Ratio { step, least, most });
        }
        Ok(())
    }

    fn update(
        &mut self,
        hyper: &engine::Hyper,
        done: u64,
        event: &mut RlEvent,
    ) -> Result<(), RlError> {
        event.updates += 1;
        let report = self
            .engine
            .update(hyper, done + event.updates as u64)
            .map_err(at(self.step, "the update"))?;
        event.grad_norm = report.grad_norm;
        event.grad_scale = report.grad_scale;
        Ok(())
    }
}
