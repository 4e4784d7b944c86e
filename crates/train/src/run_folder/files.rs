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

#[cfg(test)]
mod tests {
    use super::super::CHECKPOINTS;
    use super::super::checkpoint::tests::engine;
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    /// The steps that the lines of a log are of.
    fn steps_of(folder: &Path, log: &str) -> Vec<u64> {
        let text = fs::read_to_string(folder.join(log)).unwrap();
        let row = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        text.lines().map(|line| row(line)["step"].as_u64().unwrap()).collect()
    }

    fn write(folder: &Path, log: &str, steps: std::ops::Range<u64>) {
        let lines: String = steps.map(|step| format!("{}\n", json!({ "step": step }))).collect();
        fs::write(folder.join(log), lines).unwrap();
    }

    #[test]
    fn lines_of_later_steps_go_and_new_ones_follow() {
        let engine = engine();
        // An evaluation before the first step stays where the run goes on from a later one.
        for (done, steps, evals) in
            [(0, &[][..], &[][..]), (2, &[1, 2], &[0, 1, 2]), (3, &[1, 2, 3], &[0, 1, 2, 3])]
        {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            fs::create_dir(folder.join(CHECKPOINTS)).unwrap();
            write(folder, STEPS_FILE, 1..4);
            write(folder, EVALS_FILE, 0..4);
            let mut files = Files::open(folder, done, &engine, 1).unwrap();
            assert_eq!(steps_of(folder, STEPS_FILE), steps, "{done} steps done");
            assert_eq!(steps_of(folder, EVALS_FILE), evals, "{done} steps done");
            files.step(&json!({"step": 8})).unwrap();
            files.evaluation(&json!({"step": 9})).unwrap();
            assert_eq!(steps_of(folder, STEPS_FILE).last(), Some(&8));
            assert_eq!(steps_of(folder, EVALS_FILE).last(), Some(&9));
        }
    }

    #[test]
    fn a_log_with_fewer_lines_than_steps_is_refused() {
        let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
        write(folder.path(), STEPS_FILE, 1..3);
        let refused = Files::open(folder.path(), 3, &engine, 1).err().unwrap();
        assert!(matches!(refused, RunError::LogTooShort { lines: 2, step: 3, .. }), "{refused}");
    }

    #[test]
    fn room_for_the_next_checkpoint_is_held_while_the_files_are_open() {
        let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
        let checkpoints = folder.path().join(CHECKPOINTS);
        fs::create_dir(&checkpoints).unwrap();
        let held = || fs::read_dir(&checkpoints).unwrap().count();
        let files = Files::open(folder.path(), 0, &engine, 1).unwrap();
        assert_eq!(held(), 1);
        drop(files);
        assert_eq!(held(), 0);
    }
}
