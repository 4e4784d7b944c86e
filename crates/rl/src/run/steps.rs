//! The loop over steps: step, gates, evaluation, checkpoint.

use std::path::PathBuf;

use train::LearningRate;

use super::{Kept, Progress, Run};
use crate::error::RlError;
use crate::event::{Flow, Observer, RlEvent};
use crate::gates;
use crate::rewards::RewardError;
use crate::store::{self, StepRecord};

impl Run<'_, '_> {
    /// Every step from where the run is, with gates, evaluations and checkpoints; whether the observer stopped it.
    pub(super) fn steps(
        &mut self,
        kept: &mut Option<Kept>,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<bool, RlError> {
        let steps = self.resolved.steps();
        let lr = LearningRate::new(&self.resolved.train, steps);
        let save_every = self.resolved.train.save_every.value;
        observer.start(progress.step, steps);
        while progress.step < steps {
            let untaught = progress.updates == 0;
            let stepped = self.step(kept, progress, lr.at(progress.step), observer);
            let (event, record) = match stepped {
                Err(RlError::Reward(error)) => {
                    return self.ungraded(kept, progress, error, observer);
                }
                stepped => stepped?,
            };
            self.keep(kept, &event, &record, progress)?;
            let step = progress.step;
            if step == 1 || (untaught && progress.updates > 0) {
                self.write_record(kept)?;
            }
            if self.is_evaluated(step) {
                self.evaluate(kept, step, observer)?;
            }
            let stop = kept.is_some() && observer.step(&event) == Flow::Stop && step < steps;
            let stop = self.engines.lead_number("whether to stop", u64::from(stop))? == 1;
            if stop || (step.is_multiple_of(save_every) && step < steps) {
                if let Some(checkpoint) = self.save(kept, progress)? {
                    observer.saved(&checkpoint);
                }
                self.write_record(kept)?;
            }
            if stop {
                return Ok(true);
            }
        }
        if let Some(files) = kept.as_ref().and_then(|kept| kept.files.as_ref()) {
            files.sync()?;
        }
        self.write_record(kept)?;
        Ok(false)
    }

    /// Ends a run at a step that could not be graded: nothing of it was applied, and what was done before it is kept.
    fn ungraded(
        &mut self,
        kept: &mut Option<Kept>,
        progress: &Progress,
        error: RewardError,
        observer: &mut dyn Observer,
    ) -> Result<bool, RlError> {
        if progress.step > 0 {
            if let Some(checkpoint) = self.save(kept, progress)? {
                observer.saved(&checkpoint);
            }
            self.write_record(kept)?;
        }
        match error {
            RewardError::Stopped { .. } => Ok(true),
            error => Err(error.into()),
        }
    }

    fn is_evaluated(&self, step: usize) -> bool {
        let every = self.resolved.train.eval_every.as_ref().map(|chosen| chosen.value);
        every.is_some_and(|every| step.is_multiple_of(every) || step == self.resolved.steps())
    }

    /// Writes what a step did, and notes its gates.
    fn keep(
        &self,
        kept: &mut Option<Kept>,
        event: &RlEvent,
        record: &StepRecord,
        progress: &Progress,
    ) -> Result<(), RlError> {
        let Some(kept) = kept else { return Ok(()) };
        store::write(self.folder(), record)?;
        if let Some(files) = &mut kept.files {
            files.step(event)?;
        }
        kept.recorder.tick();
        for gate in gates::of_step(event, progress, self.resolved.is_online()) {
            kept.recorder.gate(gate.at(event.step))?;
        }
        Ok(())
    }

    /// Makes a checkpoint, reads it back and compares it, and only then removes old ones.
    fn save(
        &self,
        kept: &mut Option<Kept>,
        progress: &Progress,
    ) -> Result<Option<PathBuf>, RlError> {
        let saved = self.engines.served(|trainer| {
            let Some(Kept { recorder, files: Some(files), .. }) = kept else { return Ok(None) };
            let step = progress.step;
            if step == 0 || train::checkpoint_at(self.folder(), step).is_dir() {
                // A step that was not applied leaves the state of the one before, which may be saved already.
                return Ok(None);
            }
            if progress.updates > 0 {
                recorder
                    .gate(train::gates::adapters(trainer).map_err(RlError::served)?.at(step))?;
            }
            recorder.tensors(trainer, step, progress.updates)?;
            Ok(Some(files.save(recorder, trainer, step, progress)?))
        })?;
        Ok(saved.flatten())
    }
}
