//! The loop.

mod learn;

use std::path::{Path, PathBuf};
use std::time::Instant;

use data::epoch_order;
use engine::{AdapterSource, Sampling};
use formats::Checkpoint;
use text::Tokenizer;
use train::{LearningRate, Requested};

use crate::checkpoint;
use crate::engines::Engines;
use crate::error::{RlError, at};
use crate::event::{Flow, Observer, RlEvent};
use crate::folder::{self, RlRecord, StepsLog};
use crate::grading;
use crate::pairs;
use crate::prompts::{Pair, Prompt};
use crate::rewards::RewardError;
use crate::rollout::{self, Work};
use crate::settings::{Grpo, Method, Resolved, RlSettings};
use crate::store::{self, StepRecord};
use crate::sync;

/// The first rank of training has written the product.
const WRITTEN: u8 = 0;

/// What a run learns from.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// Prompts; none with pairs.
    pub prompts: &'a [Prompt],
    /// Held-out prompts.
    pub eval: &'a [Prompt],
    /// Pairs; none with prompts.
    pub pairs: &'a [Pair],
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Tokens that end a completion.
    pub ends: &'a [u32],
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done and the product written.
    Finished {
        /// The folder of the adapter, or of the tuned model.
        product: PathBuf,
    },
    /// The observer stopped it, and a checkpoint was made.
    Stopped {
        /// Steps done.
        step: usize,
    },
}

/// A run, ready to start or to resume: one rank's view. Every rank of the world runs the same.
pub struct Run<'a, 'r> {
    /// This rank's engines, base weights loaded. Initial LoRA matrices are the run's to make.
    pub engines: &'a mut Engines<'r>,
    /// What the weights were loaded from.
    pub checkpoint: &'a Checkpoint,
    /// What it learns from.
    pub data: Data<'a>,
    /// What was asked.
    pub requested: &'a Requested<RlSettings>,
    /// What runs.
    pub resolved: &'a Resolved,
    /// Files that go beside the weights of a tuned model.
    pub extra_files: &'a [(&'a str, &'a [u8])],
}

/// Where a run is.
struct Progress {
    step: usize,
    updates: u64,
    /// Hash of the trained weights as they are.
    weights: String,
}

impl Run<'_, '_> {
    /// Runs from the first step, in a folder that holds nothing.
    ///
    /// # Errors
    /// [`RlError`]. After one in a step, the run's checkpoints are as before it.
    pub fn start(&mut self, observer: &mut dyn Observer) -> Result<Outcome, RlError> {
        let folder = self.resolved.train.out.value.clone();
        self.initialise()?;
        let weights = sync::pass(self.engines, 0)?;
        let eval_reward = self.evaluate(0)?;
        if let Some(reward) = eval_reward {
            observer.before(reward);
        }
        if self.engines.leads() {
            folder::create(&folder, &self.record(eval_reward))?;
        }
        let _lock = self.lock(&folder)?;
        self.steps(&folder, Progress { step: 0, updates: 0, weights }, observer)
    }

    /// Goes on from the newest checkpoint of the run in the folder, to the bits of a run that was never interrupted; from
    /// the first step when it has made none.
    ///
    /// # Errors
    /// [`RlError`]; [`RlError::Folder`] where settings or data are not the run's, or it is finished.
    pub fn resume(&mut self, observer: &mut dyn Observer) -> Result<Outcome, RlError> {
        let folder = self.resolved.train.out.value.clone();
        folder::verify(&folder, &self.record(None))?;
        let product = self.product(&folder);
        if product.exists() {
            let reason = format!("the run is finished; its product is {}", product.display());
            return Err(RlError::Folder { path: folder, reason });
        }
        let _lock = self.lock(&folder)?;
        self.initialise()?;
        let (mut step, mut updates) = (0, 0);
        if let Some((done, path)) = checkpoint::newest(&folder)? {
            step = done;
            if let Some(trainer) = &mut self.engines.trainer {
                updates = checkpoint::load(&path, trainer)?;
            }
        }
        let weights = sync::pass(self.engines, step)?;
        self.steps(&folder, Progress { step, updates, weights }, observer)
    }

    fn lock(&self, folder: &Path) -> Result<Option<std::fs::File>, RlError> {
        self.engines.leads().then(|| folder::lock(folder)).transpose()
    }

    fn product(&self, folder: &Path) -> PathBuf {
        folder.join(if self.resolved.train.lora().is_some() { "adapter" } else { "model" })
    }

    fn record(&self, eval_reward: Option<f64>) -> RlRecord {
        let mut hasher = blake3::Hasher::new();
        let mut ids = |ids: &[u32]| {
            hasher.update(&(ids.len() as u64).to_le_bytes());
            hasher.update(bytemuck::cast_slice(ids));
        };
        for prompt in self.data.prompts {
            ids(&prompt.ids);
        }
        for pair in self.data.pairs {
            for list in [&pair.prompt.ids, &pair.chosen, &pair.rejected] {
                ids(list);
            }
        }
        for prompt in self.data.prompts {
            let answer = prompt.answer.as_ref().map_or(String::new(), ToString::to_string);
            hasher.update(&(answer.len() as u64).to_le_bytes());
            hasher.update(answer.as_bytes());
        }
        RlRecord {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            requested: self.requested.clone(),
            resolved: self.resolved.clone(),
            data: hasher.finalize().to_hex().to_string(),
            eval_reward,
        }
    }

    /// Gives LoRA matrices their first values, in both engines.
    fn initialise(&mut self) -> Result<(), RlError> {
        if self.resolved.train.lora().is_none() {
            return Ok(());
        }
        let source = AdapterSource::Fresh { seed: self.resolved.train.seed.value };
        for engine in [&mut self.engines.trainer, &mut self.engines.roller].into_iter().flatten() {
            engine.load_adapter(&source).map_err(at(0, "initial values"))?;
        }
        Ok(())
    }

    /// Every step from where the run is, with checkpoints, then the product.
    fn steps(
        &mut self,
        folder: &Path,
        mut progress: Progress,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RlError> {
        let steps = self.resolved.steps();
        let lr = LearningRate::new(&self.resolved.train, steps);
        let leads = self.engines.leads();
        let mut log = leads.then(|| StepsLog::open(folder, progress.step)).transpose()?;
        observer.start(progress.step, steps);
        let train = &self.resolved.train;
        let (save_every, keep) = (train.save_every.value, train.keep_checkpoints.value);
        while progress.step < steps {
            let rate = lr.at(progress.step);
            let before = progress.step;
            let (event, record) = match self.step(&mut progress, steps, rate, observer) {
                // Nothing of the step was applied, so what was done before it is not lost.
                Err(RlError::Reward(error)) if progress.step == before => {
                    if let Some(log) = &log {
                        log.sync()?;
                    }
                    return self.ungraded(folder, &progress, error, observer);
                }
                stepped => stepped?,
            };
            let mut stop = false;
            if let Some(log) = &mut log {
                store::write(folder, &record)?;
                log.append(&event)?;
                stop = observer.step(&event) == Flow::Stop && event.step < steps;
            }
            let told = self.engines.lead_bytes("whether to go on", vec![u8::from(stop)])?;
            stop = told.first() == Some(&1);
            if stop || (progress.step.is_multiple_of(save_every) && progress.step < steps) {
                if let Some(log) = &log {
                    log.sync()?;
                }
                let saved =
                    checkpoint::save(folder, self.engines, progress.step, progress.updates)?;
                if let Some(path) = saved {
                    checkpoint::prune(folder, keep)?;
                    observer.saved(&path);
                }
            }
            if stop {
                return Ok(Outcome::Stopped { step: progress.step });
            }
        }
        if let Some(log) = &log {
            log.sync()?;
        }
        let saved = checkpoint::save(folder, self.engines, progress.step, progress.updates)?;
        if saved.is_some() {
            checkpoint::prune(folder, keep)?;
        }
        self.finish(folder)
    }

    /// Keeps what was done before a step that could not be graded, on every rank; then the run stops or fails.
    fn ungraded(
        &self,
        folder: &Path,
        progress: &Progress,
        error: RewardError,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RlError> {
        let step = progress.step;
        if let Some(path) = checkpoint::save(folder, self.engines, step, progress.updates)? {
            checkpoint::prune(folder, self.resolved.train.keep_checkpoints.value)?;
            observer.saved(&path);
        }
        match error {
            RewardError::Stopped { .. } => Ok(Outcome::Stopped { step }),
            error => Err(error.into()),
        }
    }

    /// The report's figures that its plots do not show.
    fn facts(&self, folder: &Path) -> Result<Vec<(String, String)>, RlError> {
        let before = folder::read_record(folder)?.eval_reward;
        let mut facts = vec![
            ("model".to_owned(), self.resolved.train.model.value.clone()),
            ("steps".to_owned(), self.resolved.steps().to_string()),
            ("samples a step".to_owned(), self.resolved.samples().to_string()),
        ];
        if let Some(reward) = before {
            facts.push(("held-out reward before".to_owned(), format!("{reward:.4}")));
        }
        Ok(facts)
    }

    fn finish(&self, folder: &Path) -> Result<Outcome, RlError> {
        let product = self.product(folder);
        let step = self.resolved.steps();
        if self.engines.leads() {
            let facts = self.facts(folder)?;
            record::report::write_curves(folder, "Reinforcement learning", &facts)
                .map_err(Box::new)?;
        }
        let lead = self.engines.leads();
        if let Some(trainer) = self.engines.trainer.as_ref().filter(|_| !lead) {
            trainer.follow().map_err(at(step, "writing the product"))?;
        }
        if let Some(trainer) = self.engines.trainer.as_ref().filter(|_| lead) {
            match self.resolved.train.lora() {
                Some(spec) => {
                    let base = &self.resolved.train.model.value;
                    train::write_adapter(&product, trainer, &spec, base, self.checkpoint)
                        .map_err(at(step, "writing the adapter"))?;
                }
                None => {
                    train::write_model(&product, trainer, self.checkpoint, self.extra_files)
                        .map_err(Box::new)?;
                }
            }
            trainer.announce(WRITTEN, 0).map_err(at(step, "writing the product"))?;
        }
        Ok(Outcome::Finished { product })
    }

    /// One step; the record is complete on the lead rank.
    fn step(
        &mut self,
        progress: &mut Progress,
        steps: usize,
        lr: f32,
        observer: &mut dyn Observer,
    ) -> Result<(RlEvent, StepRecord), RlError> {
        let begin = Instant::now();
        let step = progress.step + 1;
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
        if self.engines.trainer.is_some() {
            self.learn(&mut record, &mut event, progress.updates)?;
        }
        progress.updates += event.updates as u64;
        event.updates_done = progress.updates as usize;
        event.seconds.train = start.elapsed().as_secs_f64();
        let start = Instant::now();
        event.weights = sync::pass(self.engines, step)?;
        event.seconds.sync = start.elapsed().as_secs_f64();
        if event.updates > 0 && event.grad_norm > 0.0 && event.weights == progress.weights {
            return Err(RlError::Unchanged { step, norm: event.grad_norm });
        }
        progress.weights.clone_from(&event.weights);
        progress.step = step;
        if let Some(every) = &self.resolved.train.eval_every
            && (step.is_multiple_of(every.value) || step == steps)
        {
            event.eval_reward = self.evaluate(step)?;
        }
        event.seconds.total = begin.elapsed().as_secs_f64();
        Ok((event, record))
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
        let work = Work {
            prompts: self.data.prompts,
            chosen: self.chosen(self.data.prompts.len(), g.prompts.value, step),
            group: g.group.value,
            first: ((step - 1) * g.samples()) as u64,
            sampling: g.sampling(self.resolved.train.seed.value),
        };
        let mut told = |done, total| observer.rollout(done, total);
        let mut samples = rollout::samples(self.engines, &self.data, g, step, &work, &mut told)?;
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

    /// Mean reward of greedy completions of the held-out prompts; `None` without any.
    fn evaluate(&mut self, step: usize) -> Result<Option<f64>, RlError> {
        let Method::Grpo(g) = &self.resolved.method else { return Ok(None) };
        if self.data.eval.is_empty() {
            return Ok(None);
        }
        let work = Work {
            prompts: self.data.eval,
            chosen: (0..self.data.eval.len()).collect(),
            group: 1,
            first: 0,
            sampling: Sampling::default(),
        };
        let mut samples =
            rollout::samples(self.engines, &self.data, g, step, &work, &mut |_, _| ())?;
        grading::grade(self.engines, g, step, self.data.eval, &mut samples, &|| false)?;
        let rewards: Vec<f64> = samples.iter().filter_map(|s| s.reward).collect();
        Ok(Some(rewards.iter().sum::<f64>() / rewards.len() as f64))
    }
}
