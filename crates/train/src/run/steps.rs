//! The loop over steps: step, gates, evaluation, checkpoint.

use std::path::{Path, PathBuf};
use std::time::Instant;

use arena::ExecError;
use data::{Dataset, Schedule};
use engine::{EngineError, MicroBatch};
use record::Reading;

use super::follow::Action;
use super::{Due, End, Run};
use crate::batch::{StepBatches, origin_of_row, sum_active};
use crate::contents;
use crate::error::{TrainError, of_ranks};
use crate::evaluation::{EvalEvent, Evaluations, evaluate};
use crate::gates::{self, LossBounds};
use crate::lr::LearningRate;
use crate::observer::{Flow, Observer, StepEvent};
use crate::recorder::Recorder;
use crate::run_folder::Files;

/// Samples that an error of a step names.
const NAMED_SAMPLES: usize = 8;

impl Run<'_, '_> {
    /// Every step from `begin` on, with gates, evaluations and checkpoints.
    pub(super) fn steps(
        &mut self,
        folder: &Path,
        recorder: &mut Recorder,
        mut schedule: Schedule,
        begin: usize,
        mut evaluations: Evaluations,
        observer: &mut dyn Observer,
    ) -> Result<End, TrainError> {
        let steps = schedule.steps();
        let mut done = begin;
        let lr = LearningRate::new(self.resolved, steps);
        let kept = self.resolved.keep_checkpoints.value;
        let mut files = Files::open(folder, done, self.engine, kept)?;
        let mut due = Due::new(self.resolved);
        let patience = self.resolved.patience.as_ref().map(|chosen| chosen.value);
        observer.start(done, steps);
        // A run that was killed between its early stop and its end stops again.
        let mut early = evaluations.exhausted(patience);
        while let (None, Some(step)) = (&early, schedule.step(done)) {
            let (epoch, micro_batches) = (step.epoch, step.micro_batches);
            let event =
                self.step(recorder, done, steps, epoch, micro_batches, lr.at(done), observer)?;
            done += 1;
            files.step(&event)?;
            recorder.tick();
            if done == 1 {
                self.gate(recorder, done)?;
                recorder.write(contents::kernels(self.engine))?;
            }
            if self.is_evaluated(done, steps)
                && let Some(held_out) = self.evaluation
            {
                let event = self.evaluate(held_out, &mut evaluations, done)?;
                files.evaluation(&event)?;
                observer.evaluated(&event);
                early = evaluations.exhausted(patience);
            }
            let last = done == steps || early.is_some();
            let stop = observer.step(&event) == Flow::Stop && !last;
            if stop || (due.is(done, Reading::now()) && !last) {
                let checkpoint = self.save(recorder, &mut files, done, evaluations)?;
                due.made(Reading::now());
                observer.saved(&checkpoint);
                if stop {
                    return Ok(End::Stopped { step: done, checkpoint });
                }
            }
        }
        files.sync()?;
        // Where no step was left there are no gradients, and the values were judged when their checkpoint was made.
        if done > begin {
            self.gate(recorder, done)?;
        }
        Ok(End::Finished { step: done, early })
    }

    fn is_evaluated(&self, done: usize, steps: usize) -> bool {
        let every = self.resolved.eval_every.as_ref().map(|chosen| chosen.value);
        every.is_some_and(|every| done.is_multiple_of(every) || done == steps)
    }

    fn evaluate(
        &mut self,
        held_out: &Dataset,
        evaluations: &mut Evaluations,
        step: usize,
    ) -> Result<EvalEvent, TrainError> {
        self.announce(Action::Evaluate, step as u64)?;
        evaluate(self.engine, self.resolved, held_out, evaluations, step)
            .map_err(|error| TrainError::Evaluation { step, source: error.into() })
    }

    /// Gates over trained tensors: after the first step, at each checkpoint and at the end.
    fn gate(&self, recorder: &mut Recorder, step: usize) -> Result<(), TrainError> {
        recorder.gate(gates::gradients(self.engine).map_err(of_ranks)?.at(step))?;
        recorder.gate(gates::finite(self.engine).map_err(of_ranks)?.at(step))?;
        recorder.gate(gates::adapters(self.engine).map_err(of_ranks)?.at(step))
    }

    fn save(
        &self,
        recorder: &mut Recorder,
        files: &mut Files,
        step: usize,
        evaluations: Evaluations,
    ) -> Result<PathBuf, TrainError> {
        self.gate(recorder, step)?;
        recorder.tensors(self.engine, step, step as u64)?;
        let checkpoint = files.save(recorder, self.engine, step, &evaluations)?;
        recorder.memory(self.engine)?;
        recorder.write(contents::kernels(self.engine))?;
        Ok(checkpoint)
    }

    /// One optimizer step, `index` from 0.
    #[allow(clippy::too_many_arguments)]
    fn step(
        &mut self,
        recorder: &mut Recorder,
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
        self.announce(Action::Gradients, index as u64)?;
        let logps = self.gradients(&batches, step, micro_batches, observer)?;
        let sum: f64 =
            batches.iter().zip(&logps).map(|(batch, logp)| sum_active(batch, logp)).sum();
        let loss = -sum / supervised as f64;
        self.gate_loss(recorder, step, supervised, loss, micro_batches)?;
        self.announce(Action::Update, step as u64)?;
        let updated = self.engine.update(&self.resolved.hyper(lr), step as u64);
        let report = updated.map_err(|error| self.update_error(error, step, micro_batches))?;
        Ok(StepEvent {
            step,
            steps,
            epoch,
            loss,
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

    /// Forward and backward of this replica's micro-batches of step `step`, from 1; log-probs of all of them.
    pub(super) fn gradients(
        &mut self,
        batches: &[MicroBatch],
        step: usize,
        micro_batches: &[Vec<usize>],
        observer: &mut dyn Observer,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
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
        logps.map_err(|error| TrainError::Step { step, source: error.into() })
    }

    /// Stops the run before the update where the loss is out of bounds.
    fn gate_loss(
        &self,
        recorder: &mut Recorder,
        step: usize,
        supervised: usize,
        loss: f64,
        micro_batches: &[Vec<usize>],
    ) -> Result<(), TrainError> {
        let given = self.resolved.loss_limit.as_ref().map(|chosen| chosen.value);
        let bounds = LossBounds::new(self.engine.graph.vocab, given);
        recorder.gate(bounds.judge(step, supervised, loss)).map_err(|_| {
            TrainError::LossOutOfBounds {
                step,
                loss,
                limit: bounds.limit(step, supervised),
                samples: self.named(micro_batches),
            }
        })
    }

    /// Where the first samples of a step come from.
    fn named(&self, micro_batches: &[Vec<usize>]) -> Vec<String> {
        let samples = micro_batches.iter().flatten().take(NAMED_SAMPLES);
        samples.map(|&index| self.dataset.origin(index).to_string()).collect()
    }

    /// Names the sample where a log-prob is not finite.
    fn micro_batch_error(&self, error: EngineError, step: usize, samples: &[usize]) -> TrainError {
        match error {
            EngineError::Exec {
                source: ExecError::NonFiniteLogProb { row, value, .. }, ..
            } => {
                let origin = origin_of_row(self.dataset, samples, row);
                let sample =
                    origin.map_or_else(|| format!("row {row}"), |origin| origin.to_string());
                TrainError::NonFiniteLoss { step, sample, value }
            }
            other => TrainError::Step { step, source: other.into() },
        }
    }

    pub(super) fn update_error(
        &self,
        error: EngineError,
        step: usize,
        micro_batches: &[Vec<usize>],
    ) -> TrainError {
        match error {
            EngineError::NonFiniteGradient { norm } => {
                TrainError::NonFiniteGradient { step, norm, samples: self.named(micro_batches) }
            }
            other => TrainError::Step { step, source: other.into() },
        }
    }
}
