//! The files of a run that grow, and its checkpoints.

use std::path::{Path, PathBuf};

use engine::Engine;
use record::{EVALS_FILE, Gate, Reserve, Rows, STEPS_FILE};
use serde::{Deserialize, Serialize};

use super::checkpoint;
use super::error::RunError;
use super::folder::{need_space, reserve};
use crate::error::TrainError;
use crate::recorder::Recorder;

/// Lines of steps and evaluations, checkpoints, and the room that is held for the next one. The first rank has it.
pub struct Files {
    folder: PathBuf,
    steps: Rows,
    evals: Rows,
    reserve: Option<Reserve>,
    checkpoint_bytes: u64,
    kept: usize,
}

/// What every line has.
#[derive(Deserialize)]
struct AtStep {
    step: usize,
}

impl Files {
    /// Opens the files of a run that has done `done` steps, of whose checkpoints the newest `kept` stay. Lines of later
    /// steps, which an interrupted run left, go.
    ///
    /// # Errors
    /// [`RunError`]: fewer lines than steps, no room for a checkpoint.
    pub fn open(
        folder: &Path,
        done: usize,
        engine: &Engine<'_>,
        kept: usize,
    ) -> Result<Files, RunError> {
        let mut lines = 0;
        let steps = Rows::open(folder, STEPS_FILE, |_: &AtStep| {
            lines += 1;
            lines <= done
        })?;
        if lines < done {
            let path = folder.join(STEPS_FILE);
            return Err(RunError::LogTooShort { path, lines, step: done });
        }
        // An evaluation before the first step is made again by a run that goes on from there.
        let stays = |line: &AtStep| done > 0 && line.step <= done;
        let evals = Rows::open(folder, EVALS_FILE, stays)?;
        let checkpoint_bytes = checkpoint::bytes(engine);
        let folder = folder.to_owned();
        let mut files = Files { folder, steps, evals, reserve: None, checkpoint_bytes, kept };
        files.hold()?;
        Ok(files)
    }

    /// Adds a step's line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn step(&mut self, event: &impl Serialize) -> Result<(), RunError> {
        Ok(self.steps.append(event)?)
    }

    /// Adds an evaluation's line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn evaluation(&mut self, event: &impl Serialize) -> Result<(), RunError> {
        Ok(self.evals.append(event)?)
    }

    /// Makes every line durable.
    ///
    /// # Errors
    /// The system refuses.
    pub fn sync(&self) -> Result<(), RunError> {
        self.steps.sync()?;
        Ok(self.evals.sync()?)
    }

    /// Makes a checkpoint, reads it back and compares it, and only then removes old ones. `progress` is what the loop
    /// needs besides. On the first rank, while the others follow.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn save(
        &mut self,
        recorder: &mut Recorder,
        engine: &Engine<'_>,
        step: usize,
        progress: &impl Serialize,
    ) -> Result<PathBuf, TrainError> {
        self.sync()?;
        // The room that was held is what is written to now.
        self.reserve = None;
        need_space(&self.folder, "a checkpoint", self.checkpoint_bytes)?;
        let path = checkpoint::save(&self.folder, engine, step, progress, recorder.identity())?;
        let compared = checkpoint::compare(&path, engine)?;
        let figure = format!("{compared} bytes read back the same");
        recorder.gate(Gate::ok("checkpoints read back", figure).at(step))?;
        checkpoint::prune(&self.folder, self.kept)?;
        self.hold()?;
        Ok(path)
    }

    /// Holds room for the next checkpoint.
    fn hold(&mut self) -> Result<(), RunError> {
        self.reserve = Some(reserve(&self.folder, self.checkpoint_bytes)?);
        Ok(())
    }
}
