//! One step: rollout and grades, learning, weights back to rollout.

use std::time::Instant;

use data::epoch_order;
use engine::{Phase, Sampling};
use rollout::Since;
use train::gates as of_tensors;

use super::{Kept, Progress, Run};
use crate::error::{RlError, at};
use crate::event::{Observer, RlEval, RlEvent};
use crate::grading;
use crate::pairs;
use crate::rollout::{self as rolled, Work};
use crate::settings::{Grpo, Method};
use crate::store::StepRecord;

impl Run<'_, '_> {
    /// One step; its record is complete on the lead rank.
    pub(super) fn step(
        &mut self,
        kept: &mut Option<Kept>,
        progress: &mut Progress,
        lr: f32,
        observer: &mut dyn Observer,
    ) -> Result<(RlEvent, StepRecord), RlError> {
        let begin = Instant::now();
        let (step, steps) = (progress.step + 1, self.resolved.steps());
        let mut event = RlEvent { step, steps, lr, ..RlEvent::default() };
        let mut record = match &self.resolved.method {
            Method::Grpo(g) => self.groups(g, step, &mut event, observer)?,
            Method::Dpo(dpo) => {
                let order = self.chosen(self.data.pairs.len(), dpo.pairs.value, step);
                let samples = pairs::samples(self.data.pairs, &order);
                event.groups = order.len();
                StepRecord { step, samples, updates: vec![] }
            }
        };
        event.samples = record.samples.len();
        let tokens: usize = record.samples.iter().map(|s| s.ids.len()).sum();
        event.length = tokens as f64 / event.samples.max(1) as f64;
        let start = Instant::now();
        self.engines.enter(Phase::Train).map_err(at(step, "waking the trainer"))?;
        self.learn(&mut record, &mut event, progress.updates)?;
        self.gate_tensors(kept, progress, &event)?;
        event.seconds.train = start.elapsed().as_secs_f64();
        progress.add(&event);
        event.updates_done = progress.updates as usize;
        let start = Instant::now();
        let updated = event.updates > 0 && event.grad_norm > 0.0;
        event.weights = self.sync(step, if updated { Since::Updated } else { Since::Anything })?;
        event.seconds.sync = start.elapsed().as_secs_f64();
        event.seconds.total = begin.elapsed().as_secs_f64();
        Ok((event, record))
    }

    /// Gates over trained tensors where a step has updated them: the run's first update, before each checkpoint and at
    /// the end. Gradients are there until the rollout engine takes their room.
    fn gate_tensors(
        &self,
        kept: &mut Option<Kept>,
        progress: &Progress,
        event: &RlEvent,
    ) -> Result<(), RlError> {
        let (step, save_every) = (event.step, self.resolved.train.save_every.value);
        let due = progress.updates == 0 || step.is_multiple_of(save_every) || step == event.steps;
        if !due || event.updates == 0 {
            return Ok(());
        }
        self.engines.served(|trainer| {
            let Some(kept) = kept else { return Ok(()) };
            for gate in [of_tensors::gradients, of_tensors::finite, of_tensors::adapters] {
                let gate = gate(trainer);
                kept.recorder.gate(gate.map_err(RlError::served)?.at(step))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// `count` of `total` items for a step (from 1): shuffled anew each time all have been taken.
    fn chosen(&self, total: usize, count: usize, step: usize) -> Vec<usize> {
        let seed = self.resolved.train.seed.value;
        let first = (step - 1) * count;
        let mut orders = std::collections::HashMap::new();
        (first..first + count)
            .map(|n| {
                let epoch = n / total;
                orders.entry(epoch).or_insert_with(|| epoch_order(total, seed, epoch))[n % total]
            })
            .collect()
    }

    /// Generates and grades the groups of a step.
    fn groups(
        &mut self,
        g: &Grpo,
        step: usize,
        event: &mut RlEvent,
        observer: &mut dyn Observer,
    ) -> Result<StepRecord, RlError> {
        let start = Instant::now();
        self.engines.enter(Phase::Rollout).map_err(at(step, "waking the rollout engine"))?;
        let work = Work {
            prompts: self.data.prompts,
            chosen: self.chosen(self.data.prompts.len(), g.prompts.value, step),
            group: g.group.value,
            first: ((step - 1) * g.samples()) as u64,
            sampling: g.sampling(self.resolved.train.seed.value),
        };
        let mut told = |done, total| observer.rollout(done, total);
        let mut samples = rolled::samples(self.engines, &self.data, g, step, &work, &mut told)?;
        event.seconds.rollout = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let stop = || observer.asked_to_stop();
        grading::grade(self.engines, g, step, self.data.prompts, &mut samples, &stop)?;
        event.seconds.reward = start.elapsed().as_secs_f64();
        let rewards: Vec<f64> = samples.iter().filter_map(|s| s.reward).collect();
        event.reward = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
        event.dropped = samples.len() - rewards.len();
        event.cut = samples.iter().filter(|s| s.ending == "length").count();
        event.empty = samples.iter().filter(|s| s.text.trim().is_empty()).count();
        Ok(StepRecord { step, samples, updates: vec![] })
    }

    /// Grades greedy completions of the held-out prompts after `step` steps, where there are some.
    pub(super) fn evaluate(
        &mut self,
        kept: &mut Option<Kept>,
        step: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), RlError> {
        let Method::Grpo(g) = &self.resolved.method else { return Ok(()) };
        if self.data.eval.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        self.engines.enter(Phase::Rollout).map_err(at(step, "waking the rollout engine"))?;
        let work = Work {
            prompts: self.data.eval,
            chosen: (0..self.data.eval.len()).collect(),
            group: 1,
            first: 0,
            sampling: Sampling::default(),
        };
        let mut samples =
            rolled::samples(self.engines, &self.data, g, step, &work, &mut |_, _| ())?;
        grading::grade(self.engines, g, step, self.data.eval, &mut samples, &|| false)?;
        let rewards: Vec<f64> = samples.iter().filter_map(|s| s.reward).collect();
        let event = RlEval {
            step,
            reward: rewards.iter().sum::<f64>() / rewards.len() as f64,
            samples: rewards.len(),
            dropped: samples.len() - rewards.len(),
            seconds: begin.elapsed().as_secs_f64(),
        };
        if let Some(files) = kept.as_mut().and_then(|kept| kept.files.as_mut()) {
            files.evaluation(&event)?;
            observer.evaluated(&event);
        }
        Ok(())
    }
}
