//! A run from its first step or from a checkpoint to its product.

mod learn;
mod step;
mod steps;

use std::path::{Path, PathBuf};

use engine::{Engine, Phase};
use formats::Checkpoint;
use record::{KindBytes, PhaseBytes, Status};
use rollout::Since;
use serde::{Deserialize, Serialize};
use text::Tokenizer;
use train::{Files, Recorder, Requested, Space, Surroundings};

use crate::contents;
use crate::engines::Engines;
use crate::error::{RlError, at};
use crate::event::{Observer, RlEvent};
use crate::gates;
use crate::prompts::{Pair, Prompt};
use crate::settings::{Resolved, RlSettings};
use crate::store;

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
    /// What the record holds beside the run.
    pub surroundings: &'a Surroundings,
    /// Files that go beside the weights of a tuned model.
    pub extra_files: &'a [(&'a str, &'a [u8])],
}

/// Where a run is. What its checkpoints hold beside tensors: everything but the step, which they are named by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    #[serde(skip)]
    pub(crate) step: usize,
    /// Optimizer updates done.
    pub(crate) updates: u64,
    /// Steps that had an update.
    pub(crate) taught: usize,
    /// Groups so far, and those of equal rewards.
    pub(crate) groups: usize,
    pub(crate) uniform: usize,
    /// Completions so far, and those that could not be graded.
    pub(crate) samples: usize,
    pub(crate) dropped: usize,
    /// Log-probs compared between training and rollout.
    pub(crate) compared: usize,
}

impl Progress {
    /// Counts a step in.
    fn add(&mut self, event: &RlEvent) {
        self.step = event.step;
        self.updates += event.updates as u64;
        self.taught += usize::from(event.updates > 0);
        self.groups += event.groups;
        self.uniform += event.uniform;
        self.samples += event.samples;
        self.dropped += event.dropped;
        self.compared += event.compared;
    }
}

/// What the lead rank keeps.
struct Kept {
    recorder: Recorder,
    /// Open once the run is under way.
    files: Option<Files>,
}

impl Run<'_, '_> {
    /// Runs from the first step, in a folder that holds nothing.
    ///
    /// # Errors
    /// [`RlError`]. After one in a step, the run's checkpoints are as before it, and its record says how it failed.
    pub fn start(&mut self, observer: &mut dyn Observer) -> Result<Outcome, RlError> {
        let folder = &self.resolved.train.out.value;
        let begun = self.engines.served(|trainer| {
            let recorder = Recorder::create(folder, self.record(trainer)?, self.surroundings);
            Ok((recorder?, 0))
        })?;
        self.under_way(begun, observer)
    }

    /// Goes on from the newest checkpoint of the run in the folder, to the bits of a run that was never interrupted; from
    /// the first step when it has made none.
    ///
    /// # Errors
    /// [`RlError`]; [`RlError::Train`] where settings, data, weights, program or binary are not the run's and the change is
    /// not let pass.
    pub fn resume(&mut self, observer: &mut dyn Observer) -> Result<Outcome, RlError> {
        let folder = &self.resolved.train.out.value;
        let begun = self.engines.served(|trainer| {
            let now = || self.record(trainer);
            Recorder::resume::<RlError>(folder, now, self.surroundings, &self.product())
        })?;
        self.under_way(begun, observer)
    }

    fn record(&self, trainer: &Engine<'_>) -> Result<record::Record, RlError> {
        let about = contents::about(self.requested, self.resolved, &self.data);
        Ok(train::contents::begin(trainer, about, self.surroundings)?)
    }

    fn product(&self) -> PathBuf {
        train::product_path(&self.resolved.train.out.value, self.resolved.train.lora().is_some())
    }

    /// Everything after the record is begun: however it ends, the record says so.
    fn under_way(
        &mut self,
        begun: Option<(Recorder, usize)>,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RlError> {
        self.engines.all().for_each(Engine::forget_kernels);
        let done = begun.as_ref().map_or(0, |(_, done)| *done);
        let keep = |(recorder, _)| Kept { recorder, files: None };
        let mut kept = begun.map(keep);
        let outcome = self.work(&mut kept, done, observer);
        let concluded = kept.map_or(Ok(()), |kept| self.conclude(kept, &outcome));
        // What went wrong first is what is told.
        let outcome = outcome?;
        concluded?;
        Ok(outcome)
    }

    fn conclude(&self, kept: Kept, outcome: &Result<Outcome, RlError>) -> Result<(), RlError> {
        let Kept { mut recorder, files } = kept;
        // The room that it holds for checkpoints is no part of what is sealed.
        drop(files);
        let status = match outcome {
            Ok(Outcome::Finished { product }) => Status::Finished {
                step: self.resolved.steps(),
                product: product.strip_prefix(recorder.folder()).unwrap_or(product).to_owned(),
                early: None,
            },
            Ok(Outcome::Stopped { step }) => Status::Stopped { step: *step },
            Err(error) => {
                gates::of_error(error).into_iter().for_each(|gate| recorder.note(gate));
                error.status()
            }
        };
        Ok(recorder.conclude(self.engines.kernels(), status)?)
    }

    fn work(
        &mut self,
        kept: &mut Option<Kept>,
        done: usize,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RlError> {
        let done = self.engines.lead_number("steps done", done as u64)? as usize;
        let mut progress = self.restore(done)?;
        let train = &self.resolved.train;
        if let (Some(kept), Some(trainer)) = (&mut *kept, &self.engines.trainer) {
            let (folder, keep) = (kept.recorder.folder(), train.keep_checkpoints.value);
            Space::of(trainer).check(folder, keep)?;
            kept.files = Some(Files::open(folder, done, trainer, keep)?);
            store::create(folder)?;
            if let Some(roller) = &self.engines.roller {
                kept.recorder.also_runs(roller);
            }
        }
        let recorder = kept.as_mut().map(|kept| &mut kept.recorder);
        self.engines.served(|trainer| {
            let begin = |recorder: &mut Recorder| recorder.tensors(trainer, done, progress.updates);
            Ok(recorder.map_or(Ok(()), begin)?)
        })?;
        self.sync(done, Since::Anything)?;
        if done == 0 {
            self.evaluate(kept, 0, observer)?;
        }
        if self.steps(kept, &mut progress, observer)? {
            return Ok(Outcome::Stopped { step: progress.step });
        }
        self.finish(kept, &progress)
    }

    /// The state after `done` steps, from its checkpoint, or the first values.
    fn restore(&mut self, done: usize) -> Result<Progress, RlError> {
        for engine in self.engines.all() {
            engine.init_adapter(self.resolved.train.seed.value);
        }
        let Some(trainer) = &mut self.engines.trainer else {
            return Ok(Progress { step: done, ..Progress::default() });
        };
        trainer.reset_moments();
        if done == 0 {
            return Ok(Progress::default());
        }
        let checkpoint = train::checkpoint_at(&self.resolved.train.out.value, done);
        let progress = train::load_checkpoint(&checkpoint, trainer, done);
        Ok(Progress { step: done, ..progress? })
    }

    /// Passes weights to the rollout side; their fingerprint.
    fn sync(&mut self, step: usize, since: Since) -> Result<String, RlError> {
        self.engines.enter(Phase::Sync).map_err(at(step, "passing weights"))?;
        let fingerprint = self.engines.sync(since);
        Ok(fingerprint.map_err(|source| RlError::Sync { step, source: source.into() })?.to_string())
    }

    fn finish(&mut self, kept: &mut Option<Kept>, progress: &Progress) -> Result<Outcome, RlError> {
        let (step, product) = (self.resolved.steps(), self.product());
        self.refuse_untaught(progress)?;
        self.engines.served(|trainer| {
            let Some(kept) = kept else { return Ok(()) };
            kept.recorder.tensors(trainer, step, progress.updates)?;
            match self.resolved.train.lora() {
                Some(spec) => {
                    let base = &self.resolved.train.model.value;
                    train::write_adapter(&product, trainer, &spec, base, self.checkpoint)
                        .map_err(at(step, "writing the adapter"))
                }
                None => {
                    let extra = self.extra_files;
                    let written = train::write_model(&product, trainer, self.checkpoint, extra);
                    Ok(written.map_err(|error| train::TrainError::from(Box::new(error)))?)
                }
            }
        })?;
        Ok(Outcome::Finished { product })
    }

    /// The product of a run without an update would be the base model under another name.
    fn refuse_untaught(&self, progress: &Progress) -> Result<(), RlError> {
        if self.engines.trainer.is_none() || progress.updates > 0 {
            return Ok(());
        }
        let Progress { groups, uniform, step, .. } = *progress;
        Err(RlError::NothingTaught { steps: step, groups, uniform })
    }

    /// Writes the record as things stand, with every rank's memory.
    fn write_record(&mut self, kept: &mut Option<Kept>) -> Result<(), RlError> {
        let unread = |error: serde_json::Error| RlError::Message(error.to_string());
        let mine = serde_json::to_vec(&(self.engines.kinds(), self.engines.phases()));
        let all = self.engines.gather("bytes held", mine.map_err(unread)?)?;
        let Some(Kept { recorder, .. }) = kept else { return Ok(()) };
        let (mut kinds, mut phases) = (Vec::new(), Vec::new());
        for bytes in &all {
            let (of_kinds, of_phases): (Vec<KindBytes>, Vec<PhaseBytes>) =
                serde_json::from_slice(bytes).map_err(unread)?;
            kinds.push(of_kinds);
            phases.extend(of_phases);
        }
        recorder.gate(gates::memory(&phases))?;
        recorder.holds(train::contents::distinct(kinds), phases);
        Ok(recorder.write(self.engines.kernels())?)
    }

    /// The run's folder.
    fn folder(&self) -> &Path {
        &self.resolved.train.out.value
    }
}
