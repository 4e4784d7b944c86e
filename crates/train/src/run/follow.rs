//! What ranks beside the first do: the same steps, on its word.

use engine::EngineError;

use super::Run;
use crate::batch::StepBatches;
use crate::contents;
use crate::error::{TrainError, of_ranks};
use crate::evaluation::{Evaluations, evaluate};
use crate::lr::LearningRate;
use crate::observer::Silent;
use crate::run_folder;

/// What the first rank announces before all ranks do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Action {
    /// The run is over.
    End,
    /// First values of adapters and moments; with a hash of what every rank must have alike.
    Initialise,
    /// The state after a number of steps, from its checkpoint.
    Load,
    /// Forward and backward passes of a step, from 0.
    Gradients,
    /// The update after a step, from 1.
    Update,
    /// The evaluation after a step.
    Evaluate,
}

impl Action {
    const ALL: [Action; 6] = [
        Action::End,
        Action::Initialise,
        Action::Load,
        Action::Gradients,
        Action::Update,
        Action::Evaluate,
    ];
}

impl Run<'_, '_> {
    /// Tells the other ranks what is to be done now.
    pub(super) fn announce(&self, action: Action, number: u64) -> Result<(), TrainError> {
        self.engine.announce(action as u8, number).map_err(of_ranks)
    }

    /// Runs beside a first rank that starts or resumes, until its run is over.
    ///
    /// # Errors
    /// [`TrainError`]: this rank failed, or another one did.
    pub fn follow(&mut self) -> Result<(), TrainError> {
        let mut schedule = self.schedule()?;
        let lr = LearningRate::new(self.resolved, schedule.steps());
        let mut micro_batches = Vec::new();
        loop {
            let (action, number) = self.engine.follow().map_err(of_ranks)?;
            let number = number as usize;
            match Action::ALL.get(usize::from(action)) {
                Some(Action::End) => return Ok(()),
                Some(Action::Initialise) if number as u64 != contents::of_every_rank(self) => {
                    return Err(TrainError::OtherRun);
                }
                Some(Action::Initialise) => self.initialise(),
                Some(Action::Load) => {
                    let checkpoint = run_folder::at(&self.resolved.out.value, number);
                    run_folder::load::<Evaluations>(&checkpoint, self.engine, number)?;
                }
                Some(Action::Gradients) => {
                    let step = schedule.step(number).ok_or_else(|| unknown(action))?;
                    let batches = StepBatches::new(self.dataset, step.micro_batches).batches;
                    micro_batches = step.micro_batches.to_vec();
                    self.gradients(&batches, number + 1, &micro_batches, &mut Silent)?;
                }
                Some(Action::Update) => {
                    let hyper = self.resolved.hyper(lr.at(number - 1));
                    let updated = self.engine.update(&hyper, number as u64);
                    updated.map_err(|error| self.update_error(error, number, &micro_batches))?;
                }
                Some(Action::Evaluate) => {
                    let held_out = self.evaluation.ok_or_else(|| unknown(action))?;
                    let mut so_far = Evaluations::default();
                    evaluate(self.engine, self.resolved, held_out, &mut so_far, number)
                        .map_err(of_ranks)?;
                }
                None => return Err(unknown(action)),
            }
        }
    }
}

/// An action that the first rank cannot have announced.
fn unknown(action: u8) -> TrainError {
    of_ranks(EngineError::Gather {
        what: "the next action".into(),
        message: format!("number {action} is none; ranks run different versions or data"),
    })
}
