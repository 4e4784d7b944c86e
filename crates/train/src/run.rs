//! The loop.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use arena::ExecError;
use data::{Dataset, Schedule};
use engine::{AdapterSource, Engine, EngineError};
use formats::Checkpoint;
use program::Kind;

use crate::batch::{StepBatches, origin_of_row, sum_active};
use crate::error::TrainError;
use crate::fingerprint;
use crate::lr::LearningRate;
use crate::observer::{Flow, Observer, StepEvent};
use crate::product;
use crate::run_folder::{self, Identity, RunError, RunRecord, StepsLog};
use crate::settings::{Requested, Resolved};

/// Samples that an error of a step names.
const NAMED_SAMPLES: usize = 8;

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
        /// The checkpoint.
        checkpoint: PathBuf,
    },
}

/// A fine-tuning run, ready to start or to resume, on one rank. Every rank of a topology runs the same with an engine of
/// its own; the first one writes the folder and tells its observer.
pub struct Run<'a, 'r> {
    /// Planned for the settings ([`Resolved::build_options`], [`Resolved::train_shape`]), base weights loaded. Initial
    /// LoRA matrices are the run's to make.
    pub engine: &'a mut Engine<'r>,
    /// What the weights were loaded from.
    pub checkpoint: &'a Checkpoint,
    /// The encoded data.
    pub dataset: &'a Dataset,
    /// What was asked.
    pub requested: &'a Requested,
    /// What runs.
    pub resolved: &'a Resolved,
    /// Files that go beside the weights of a tuned model (tokenizer, chat template): names and contents.
    pub extra_files: &'a [(&'a str, &'a [u8])],
}

impl Run<'_, '_> {
    /// Runs from the first step, in a folder that holds no run.
    ///
    /// # Errors
    /// [`TrainError`]. After one in a step, the run's checkpoints are as before it.
    pub fn start(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let schedule = self.schedule()?;
        let folder = self.resolved.out.value.clone();
        let record = self.record(&schedule)?;
        let _lock = if self.engine.leads() {
            run_folder::create(&folder, &record)?;
            Some(run_folder::lock(&folder)?)
        } else {
            None
        };
        self.initialise()?;
        self.steps(&folder, schedule, 0, observer)
    }

    /// Goes on from the newest checkpoint of the run in the folder, to the bits of a run that was never interrupted; from
    /// the first step when it has made none.
    ///
    /// # Errors
    /// [`TrainError`]; [`RunError::Changed`] where settings, data, weights or program are not the run's.
    pub fn resume(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let schedule = self.schedule()?;
        let folder = self.resolved.out.value.clone();
        let identity = self.identity()?;
        let (mut done, mut _lock) = (0, None);
        if self.engine.leads() {
            let (lock, newest) = self.reopen(&folder, &identity)?;
            (done, _lock) = (newest, Some(lock));
        }
        let done = self.of_first("the step to go on from", done)?;
        self.initialise()?;
        if done > 0 {
            run_folder::load(&run_folder::at(&folder, done), self.engine, done)?;
        }
        self.steps(&folder, schedule, done, observer)
    }

    /// Checks a run's folder, takes it, and gives the steps of its newest checkpoint; 0 when it has made none.
    fn reopen(&self, folder: &Path, identity: &Identity) -> Result<(File, usize), TrainError> {
        run_folder::verify(folder, identity)?;
        let lock = run_folder::lock(folder)?;
        let product = product::path(folder, self.resolved.lora().is_some());
        if product.exists() {
            return Err(RunError::Finished { path: folder.to_owned(), product }.into());
        }
        run_folder::clean(folder)?;
        let newest = run_folder::newest(folder)?;
        Ok((lock, newest.map_or(0, |(step, _)| step)))
    }

    /// The first rank's number, on every rank.
    fn of_first(&self, what: &str, mine: usize) -> Result<usize, TrainError> {
        Ok(self.engine.of_first(what, mine as u64).map_err(of_ranks)? as usize)
    }

    /// Gives LoRA matrices their first values.
    fn initialise(&mut self) -> Result<(), TrainError> {
        if self.resolved.lora().is_none() {
            return Ok(());
        }
        let source = AdapterSource::Fresh { seed: self.resolved.seed.value };
        self.engine
            .load_adapter(&source)
            .map_err(|error| TrainError::Prepare { source: error.into() })
    }

    /// The order of the run, once the engine's plan is known to fit the settings.
    fn schedule(&self) -> Result<Schedule, TrainError> {
        let planned = self.engine.blueprint.job.train.ok_or(TrainError::NotPlanned)?;
        let needed = self.resolved.train_shape(planned.keep);
        for (what, planned, needed) in [
            ("micro_tokens", planned.tokens, needed.tokens),
            ("micro_sequences", planned.segments, needed.segments),
            ("accumulation", planned.accumulation, needed.accumulation),
        ] {
            if planned != needed {
                return Err(TrainError::OtherPlan { what, planned, needed });
            }
        }
        Ok(self.resolved.schedule(self.dataset)?)
    }

    fn identity(&self) -> Result<Identity, TrainError> {
        let weights = fingerprint::weights(self.engine)
            .map_err(|error| TrainError::Prepare { source: error.into() })?;
        let program = fingerprint::programs(self.engine);
        Ok(Identity::new(self.resolved, self.dataset.identity(), weights, program))
    }

    fn record(&self, schedule: &Schedule) -> Result<RunRecord, TrainError> {
        let trained = self.engine.graph.params.iter().filter(|param| param.trainable);
        let ledger = self.engine.ledger();
        Ok(RunRecord {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            requested: self.requested.clone(),
            resolved: self.resolved.clone(),
            identity: self.identity()?,
            steps: schedule.steps(),
            trained_parameters: trained.map(|param| param.elements()).sum(),
            ledger_bytes: Kind::ALL
                .into_iter()
                .map(|kind| (kind.name().to_owned(), ledger.bytes(kind)))
                .collect(),
            data: self.dataset.report().clone(),
            packing: schedule.report(0),
        })
    }

    /// Every step from `done` on, with checkpoints, then the product.
    fn steps(
        &mut self,
        folder: &Path,
        mut schedule: Schedule,
        mut done: usize,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, TrainError> {
        let steps = schedule.steps();
        let lr = LearningRate::new(self.resolved, steps);
        let leads = self.engine.leads();
        let mut log = if leads { Some(StepsLog::open(folder, done)?) } else { None };
        observer.start(done, steps);
        while let Some(step) = schedule.step(done) {
            let (epoch, micro_batches) = (step.epoch, step.micro_batches);
            let event = self.step(done, steps, epoch, micro_batches, lr.at(done), observer)?;
            done += 1;
            if let Some(log) = &mut log {
                log.append(&event)?;
            }
            let stop = observer.step(&event) == Flow::Stop && done < steps;
            let stop = self.of_first("whether to stop", usize::from(stop))? == 1;
            if stop || (done.is_multiple_of(self.resolved.save_every.value) && done < steps) {
                self.save(folder, done, log.as_ref(), observer)?;
                if stop {
                    let checkpoint = run_folder::at(folder, done);
                    return Ok(Outcome::Stopped { step: done, checkpoint });
                }
            }
        }
        if let Some(log) = log {
            log.sync()?;
        }
        self.finish(folder)
    }

    /// Makes a checkpoint: the first rank writes, the others give it what they hold.
    fn save(
        &self,
        folder: &Path,
        done: usize,
        log: Option<&StepsLog>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(log) = log else {
            return self.engine.serve_whole().map_err(of_ranks);
        };
        log.sync()?;
        let checkpoint = run_folder::save(folder, self.engine, done)?;
        self.engine.end_serving().map_err(of_ranks)?;
        run_folder::prune(folder, self.resolved.keep_checkpoints.value)?;
        observer.saved(&checkpoint);
        Ok(())
    }

    /// One optimizer step, `index` from 0.
    fn step(
        &mut self,
        index: usize,
        steps: usize,
        epoch: usize,
        micro_batches: &[Vec<usize>],
        lr: f32,
        observer: &mut dyn Observer,
    ) -> Result<StepEvent, TrainError> {
        let begin = Instant::now();
        let step = index + 1;
        let StepBatches { batches, sequences, tokens, supervised } =
            StepBatches::new(self.dataset, micro_batches);
        let total = batches.len();
        let mine = self.engine.micro_batches_of(total);
        let mut logps = Vec::new();
        for at in mine.clone() {
            let logp = self.engine.train_micro_batch(&batches[at], at, total);
            logps.push(
                logp.map_err(|error| self.micro_batch_error(error, step, &micro_batches[at]))?,
            );
            observer.micro_batch(logps.len(), mine.len());
        }
        let logps = self.engine.gather_micro_batches(total, logps);
        let logps = logps.map_err(|error| TrainError::Step { step, source: error.into() })?;
        let sum: f64 =
            batches.iter().zip(&logps).map(|(batch, logp)| sum_active(batch, logp)).sum();
        let updated = self.engine.update(&self.resolved.hyper(lr), step as u64);
        let report = updated.map_err(|error| self.update_error(error, step, micro_batches))?;
        Ok(StepEvent {
            step,
            steps,
            epoch,
            loss: -sum / supervised as f64,
            lr,
            grad_norm: report.grad_norm,
            grad_scale: report.grad_scale,
            micro_batches: total,
            sequences,
            tokens,
            supervised,
            seconds: begin.elapsed().as_secs_f64(),
        })
    }

    /// Names the sample where a log-prob is not finite.
    fn micro_batch_error(&self, error: EngineError, step: usize, samples: &[usize]) -> TrainError {
        match error {
            EngineError::Exec {
                source: ExecError::NonFiniteLogProb { row, value, .. }, ..
            } => {
                let origin = origin_of_row(self.dataset, samples, row);
                let sample = origin.map_or_else(|| format!("row {row}"), ToString::to_string);
                TrainError::NonFiniteLoss { step, sample, value }
            }
            other => TrainError::Step { step, source: other.into() },
        }
    }

    fn update_error(
        &self,
        error: EngineError,
        step: usize,
        micro_batches: &[Vec<usize>],
    ) -> TrainError {
        match error {
            EngineError::NonFiniteGradient { norm } => {
                let samples = micro_batches.iter().flatten().take(NAMED_SAMPLES);
                let samples: Vec<String> =
                    samples.map(|&index| self.dataset.origin(index).to_string()).collect();
                TrainError::NonFiniteGradient { step, norm, samples: samples.join(", ") }
            }
            other => TrainError::Step { step, source: other.into() },
        }
    }

    fn finish(&self, folder: &Path) -> Result<Outcome, TrainError> {
        let lora = self.resolved.lora();
        let product = product::path(folder, lora.is_some());
        match lora {
            Some(spec) => {
                product::adapter(&product, self.engine, &spec, &self.resolved.model.value)
                    .map_err(|error| TrainError::Product { source: error.into() })?
            }
            None if self.engine.leads() => {
                product::model(&product, self.engine, self.checkpoint, self.extra_files)
                    .map_err(Box::new)?;
                self.engine.end_serving().map_err(of_ranks)?;
            }
            None => self.engine.serve_whole().map_err(of_ranks)?,
        }
        Ok(Outcome::Finished { product })
    }
}

/// Ranks that could not join what they hold.
fn of_ranks(error: EngineError) -> TrainError {
    TrainError::Ranks { source: error.into() }
}
