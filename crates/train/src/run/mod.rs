//! A run from its first step or from a checkpoint to its product.

mod follow;
mod steps;

use std::path::{Path, PathBuf};

use data::{Dataset, Schedule};
use engine::Engine;
use formats::Checkpoint;
use record::{Change, Gate, Reading, Status};

use self::follow::Action;
use crate::contents;
use crate::error::TrainError;
use crate::evaluation::Evaluations;
use crate::observer::Observer;
use crate::product;
use crate::recorder::{self, Recorder};
use crate::run_folder::{self, RunError};
use crate::settings::{Requested, Resolved};
use crate::surroundings::Surroundings;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step is done, or an early stop ended it, and the product is written.
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

/// A fine-tuning run, ready to start or to resume, on one rank. With several ranks each has an engine of its own and runs
/// the same steps: the first one starts or resumes, writes the folder and tells its observer, the others follow
/// ([`Run::follow`]).
pub struct Run<'a, 'r> {
    /// Planned for the settings ([`Resolved::build_options`], [`Resolved::train_shape`], [`Resolved::score_shape`]), base
    /// weights loaded. Initial LoRA matrices are the run's to make.
    pub engine: &'a mut Engine<'r>,
    /// What the weights were loaded from.
    pub checkpoint: &'a Checkpoint,
    /// The encoded data.
    pub dataset: &'a Dataset,
    /// Held-out data, where the settings ask for evaluation.
    pub evaluation: Option<&'a Dataset>,
    /// What was asked.
    pub requested: &'a Requested,
    /// What runs.
    pub resolved: &'a Resolved,
    /// What the record holds beside the run.
    pub surroundings: &'a Surroundings,
    /// Files that go beside the weights of a tuned model (tokenizer, chat template): names and contents.
    pub extra_files: &'a [(&'a str, &'a [u8])],
}

/// How the steps of a run ended.
enum End {
    /// With its product; early, for a reason, or with its last step.
    Finished {
        step: usize,
        early: Option<String>,
    },
    Stopped {
        step: usize,
        checkpoint: PathBuf,
    },
}

/// Name of the check of a run's folder.
pub const FOLDER: &str = "run's folder";

impl Run<'_, '_> {
    /// Runs from the first step, in a folder that holds no run.
    ///
    /// # Errors
    /// [`TrainError`]. After one in a step, the run's checkpoints are as before it, and its record says how it failed.
    pub fn start(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let outcome = self.begin(observer)?;
        self.announce(Action::End, 0)?;
        Ok(outcome)
    }

    /// Whether [`Run::start`], or [`Run::resume`], would take the run's folder as it is; nothing is written. On the first
    /// rank, while the others follow.
    ///
    /// # Errors
    /// Another rank failed.
    pub fn folder_is_ready(&mut self, resumes: bool) -> Result<Gate, TrainError> {
        let gate = match self.look_at_folder(resumes) {
            Ok(figure) => Gate::ok(FOLDER, figure),
            Err(error @ TrainError::Ranks { .. }) => return Err(error),
            Err(error) => Gate::failed(FOLDER, error.to_string(), ""),
        };
        self.announce(Action::End, 0)?;
        Ok(gate)
    }

    fn look_at_folder(&mut self, resumes: bool) -> Result<String, TrainError> {
        let mut schedule = self.schedule()?;
        let folder = &self.resolved.out.value;
        if !resumes {
            run_folder::check_free(folder)?;
            return Ok(format!("{} holds no run", folder.display()));
        }
        let product = product::path(folder, self.resolved.lora().is_some());
        let steps = schedule.steps();
        let now = || contents::record(self, &mut schedule);
        let (done, changed) =
            recorder::resumable::<TrainError>(folder, now, self.surroundings, &product)?;
        let changed: Vec<String> = changed.iter().map(Change::to_string).collect();
        let changed = match changed.is_empty() {
            true => "nothing of the run has changed".to_owned(),
            false => format!("let pass: {}", changed.join("; ")),
        };
        Ok(format!("{} goes on after step {done} of {steps}; {changed}", folder.display()))
    }

    fn begin(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let mut schedule = self.schedule()?;
        let folder = self.resolved.out.value.clone();
        let record = contents::record(self, &mut schedule)?;
        let recorder = Recorder::create(&folder, record, self.surroundings)?;
        self.under_way(&folder, recorder, schedule, 0, observer)
    }

    /// Goes on from the newest checkpoint of the run in the folder, to the bits of a run that was never interrupted; from
    /// the first step when it has made none.
    ///
    /// # Errors
    /// [`TrainError`]; [`RunError::Changed`] where settings, data, weights, program or binary are not the run's and the
    /// change is not let pass.
    pub fn resume(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let outcome = self.go_on(observer)?;
        self.announce(Action::End, 0)?;
        Ok(outcome)
    }

    fn go_on(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        let mut schedule = self.schedule()?;
        let folder = self.resolved.out.value.clone();
        let product = product::path(&folder, self.resolved.lora().is_some());
        let now = || contents::record(self, &mut schedule);
        let (recorder, done) =
            Recorder::resume::<TrainError>(&folder, now, self.surroundings, &product)?;
        self.under_way(&folder, recorder, schedule, done, observer)
    }

    /// Everything after the record is begun: however it ends, the record says so.
    fn under_way(
        &mut self,
        folder: &Path,
        mut recorder: Recorder,
        schedule: Schedule,
        done: usize,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, TrainError> {
        self.engine.forget_kernels();
        let end = self.work(folder, &mut recorder, schedule, done, observer);
        let product = product::path(folder, self.resolved.lora().is_some());
        let status = match &end {
            Ok(End::Finished { step, early }) => Status::Finished {
                step: *step,
                product: product.strip_prefix(folder).unwrap_or(&product).to_owned(),
                early: early.clone(),
            },
            Ok(End::Stopped { step, .. }) => Status::Stopped { step: *step },
            Err(error) => error.status(),
        };
        let concluded = recorder.conclude(contents::kernels(self.engine), status);
        // What went wrong first is what is told.
        let end = end?;
        concluded?;
        Ok(match end {
            End::Finished { .. } => Outcome::Finished { product },
            End::Stopped { step, checkpoint } => Outcome::Stopped { step, checkpoint },
        })
    }

    fn work(
        &mut self,
        folder: &Path,
        recorder: &mut Recorder,
        schedule: Schedule,
        done: usize,
        observer: &mut dyn Observer,
    ) -> Result<End, TrainError> {
        // It reads the whole data set, and one rank has nobody to compare with.
        let alike = match self.resolved.topology().ranks() {
            1 => 0,
            _ => contents::of_every_rank(self),
        };
        self.announce(Action::Initialise, alike)?;
        self.initialise();
        Space::of(self.engine).check(folder, self.resolved.keep_checkpoints.value)?;
        let mut evaluations = Evaluations::default();
        if done > 0 {
            self.announce(Action::Load, done as u64)?;
            evaluations = run_folder::load(&run_folder::at(folder, done), self.engine, done)?;
        }
        recorder.tensors(self.engine, done, done as u64)?;
        let end = self.steps(folder, recorder, schedule, done, evaluations, observer)?;
        if let End::Finished { step, .. } = end {
            self.finish(folder, recorder, step)?;
        }
        Ok(end)
    }

    /// Gives LoRA matrices their first values, and every trained parameter its first moments: an engine that was used
    /// before begins like a new one.
    fn initialise(&mut self) {
        self.engine.init_adapter(self.resolved.seed.value);
        self.engine.reset_moments();
    }

    /// The order of the run, once the engine's plan and the data are known to fit the settings.
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
        if self.evaluation.is_some() && self.engine.blueprint.job.score.is_none() {
            return Err(TrainError::NotPlanned);
        }
        if self.resolved.eval_every.is_some() && self.evaluation.is_none() {
            return Err(TrainError::NoHeldOut);
        }
        self.resolved.schedule(self.dataset)
    }

    fn finish(
        &self,
        folder: &Path,
        recorder: &mut Recorder,
        step: usize,
    ) -> Result<(), TrainError> {
        recorder.tensors(self.engine, step, step as u64)?;
        let lora = self.resolved.lora();
        recorder.memory(self.engine)?;
        let product = product::path(folder, lora.is_some());
        match lora {
            Some(spec) => {
                let base = &self.resolved.model.value;
                product::adapter(&product, self.engine, &spec, base, self.checkpoint)
                    .map_err(|error| TrainError::Product { source: error.into() })?
            }
            None => product::model(&product, self.engine, self.checkpoint, self.extra_files)
                .map_err(Box::new)?,
        }
        Ok(())
    }
}

/// What a run writes that is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// A checkpoint.
    pub checkpoint_bytes: u64,
    /// The adapter or the tuned model.
    pub product_bytes: u64,
}

impl Space {
    /// For an engine that was planned for training.
    pub fn of(engine: &Engine<'_>) -> Space {
        let checkpoint_bytes = run_folder::bytes(engine);
        // The product holds the values without their two moments, and in full mode what is not trained besides.
        let elements = |param: &program::graph::Param| 4 * param.elements() as u64;
        let adapter = engine.graph.params.iter().any(|param| param.adapter);
        let in_product = engine.graph.params.iter().filter(|param| param.adapter == adapter);
        Space { checkpoint_bytes, product_bytes: in_product.map(elements).sum() }
    }

    /// Bytes that must be free for a run in a folder: every one of the `kept` checkpoints, one more while it is written,
    /// the product and the record, without what the run holds there already.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn needed(&self, kept: usize, folder: &Path) -> Result<u64, RunError> {
        let checkpoints = self.checkpoint_bytes.saturating_mul((kept as u64).saturating_add(1));
        let whole = checkpoints + self.product_bytes + recorder::LAST_BYTES;
        Ok(whole.saturating_sub(run_folder::held_bytes(folder)?))
    }

    /// Refuses to begin where the disk of a run's folder has no room for them.
    ///
    /// # Errors
    /// [`RunError::NoSpace`], and where the disk cannot be asked.
    pub fn check(&self, folder: &Path, kept: usize) -> Result<(), RunError> {
        let what =
            format!("a run that keeps {kept} checkpoints of {} bytes", self.checkpoint_bytes);
        run_folder::need_space(folder, &what, self.needed(kept, folder)?)
    }
}

/// When a checkpoint is due.
pub(crate) struct Due {
    every_steps: usize,
    every_seconds: Option<f64>,
    last: Reading,
}

impl Due {
    pub(crate) fn new(resolved: &Resolved) -> Due {
        let minutes = resolved.save_every_minutes.as_ref();
        Due {
            every_steps: resolved.save_every.value,
            every_seconds: minutes.map(|minutes| minutes.value * 60.0),
            last: Reading::now(),
        }
    }

    /// Whether one is due after `step` steps at a moment of the steady clock.
    fn is(&self, step: usize, now: Reading) -> bool {
        let waited = now.steady.saturating_duration_since(self.last.steady).as_secs_f64();
        step.is_multiple_of(self.every_steps)
            || self.every_seconds.is_some_and(|every| waited >= every)
    }

    fn made(&mut self, now: Reading) {
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_run_that_goes_on_needs_what_it_does_not_hold_yet() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space { checkpoint_bytes: 1000, product_bytes: 300 };
        let needed = || space.needed(2, folder.path()).unwrap() - recorder::LAST_BYTES;
        assert_eq!(needed(), 3300);
        let step = folder.path().join("checkpoints/step-4");
        std::fs::create_dir_all(&step).unwrap();
        std::fs::write(step.join("state.safetensors"), [0; 900]).unwrap();
        // What a kill leaves of the room for the next one.
        let room = folder.path().join("checkpoints/.writing-room-for-checkpoint");
        std::fs::write(room, [0; 1000]).unwrap();
        assert_eq!(needed(), 1400);
        std::fs::write(folder.path().join(".writing-room-for-record"), [0; 100]).unwrap();
        std::fs::write(folder.path().join("steps.jsonl"), [0; 100]).unwrap();
        assert_eq!(needed(), 1300);
        assert_eq!(space.needed(0, &step.join("none")).unwrap(), 1300 + recorder::LAST_BYTES);
    }

    #[test]
    fn checkpoints_are_due_by_steps_and_by_the_steady_clock() {
        let start = Reading::now();
        let mut due = Due { every_steps: 10, every_seconds: Some(60.0), last: start };
        let after =
            |seconds| Reading { steady: start.steady + Duration::from_secs(seconds), ..start };
        assert!(due.is(10, start) && due.is(20, start) && !due.is(11, after(59)));
        assert!(due.is(11, after(60)));
        due.made(after(60));
        assert!(!due.is(11, after(119)) && due.is(11, after(120)));
        // A wall clock that is set back or forward changes nothing.
        let jumped = Reading { wall: start.wall + Duration::from_secs(1 << 20), ..after(61) };
        assert!(!due.is(11, jumped));
        due.every_seconds = None;
        assert!(!due.is(11, after(100_000)));
    }
}
