//! Training and rollout in one memory: what each gives back while the other works, planned before either begins.

use crate::error::EngineError;
use crate::run::Engine;
use arena::Account;
use program::{Kind, Ledger};
use std::sync::Arc;

/// What the two engines of a rank do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Weights move from the trainer to the rollout engine.
    Sync,
    /// The rollout engine generates.
    Rollout,
    /// The trainer steps; the rollout engine keeps its weights, or not even those.
    Train,
}

impl Phase {
    /// Every phase, in the order of a step of reinforcement learning.
    pub const ALL: [Phase; 3] = [Phase::Sync, Phase::Rollout, Phase::Train];

    /// Lower-case name, as in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Train => "train",
            Phase::Sync => "sync",
            Phase::Rollout => "rollout",
        }
    }
}

/// What the trainer needs only while it steps: the next step writes it anew.
const OF_A_STEP: [Kind; 3] = [Kind::Gradient, Kind::Graph, Kind::Workspace];

/// What the rollout engine needs only while it generates: sequences under way run again.
const OF_A_ROLLOUT: [Kind; 3] = [Kind::Context, Kind::Graph, Kind::Workspace];

/// What weights are in.
const OF_WEIGHTS: [Kind; 2] = [Kind::Weight, Kind::Adapter];

/// The phases of one rank's two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    trainer: Ledger,
    rollout: Ledger,
    /// Whether the rollout engine keeps its weights while the trainer steps. Otherwise every sync must move all of them.
    keeps_weights: bool,
}

/// Bytes of each engine in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseLedger {
    /// The phase.
    pub phase: Phase,
    /// The trainer's bytes, by kind.
    pub trainer: Ledger,
    /// The rollout engine's bytes, by kind.
    pub rollout: Ledger,
}

impl PhaseLedger {
    /// Bytes of both.
    pub fn total(&self) -> usize {
        self.trainer.total() + self.rollout.total()
    }
}

impl Phases {
    /// Plans the phases of two engines from what their blueprints say; of one that a rank does not have, nothing.
    pub fn new(trainer: &Ledger, rollout: &Ledger, keeps_weights: bool) -> Phases {
        Phases { trainer: *trainer, rollout: *rollout, keeps_weights }
    }

    /// Bytes in a phase: its peak, since releases come before restorations.
    pub fn ledger(&self, phase: Phase) -> PhaseLedger {
        let trainer = without(&self.trainer, self.trainer_asleep(phase));
        let rollout_asleep: Vec<Kind> = self.rollout_asleep(phase).collect();
        PhaseLedger { phase, trainer, rollout: without(&self.rollout, &rollout_asleep) }
    }

    /// The most bytes of any phase: what the rank needs in all.
    pub fn peak(&self) -> usize {
        Phase::ALL.into_iter().map(|phase| self.ledger(phase).total()).max().unwrap_or(0)
    }

    /// An account with exactly the room that the phases need.
    pub fn account(&self) -> Arc<Account> {
        Account::new(self.peak())
    }

    /// Takes the engines of a rank, both or the one that it has, to a phase: first each releases what it does not need there, then each restores what it needs.
    /// Between the two the account holds less than either phase, so that nothing is restored before its room is free.
    ///
    /// # Errors
    /// The system refuses a block, or something else holds room of the account.
    pub fn enter(
        &self,
        phase: Phase,
        mut trainer: Option<&mut Engine<'_>>,
        mut rollout: Option<&mut Engine<'_>>,
    ) -> Result<(), EngineError> {
        let trainer_asleep = self.trainer_asleep(phase);
        let rollout_asleep: Vec<Kind> = self.rollout_asleep(phase).collect();
        if let Some(engine) = &mut trainer {
            engine.sleep(trainer_asleep);
        }
        if let Some(engine) = &mut rollout {
            engine.sleep(&rollout_asleep);
        }
        if let Some(engine) = trainer {
            engine.wake_all_but(trainer_asleep)?;
        }
        rollout.map_or(Ok(()), |engine| engine.wake_all_but(&rollout_asleep))
    }

    fn trainer_asleep(&self, phase: Phase) -> &'static [Kind] {
        match phase {
            Phase::Train => &[],
            Phase::Sync | Phase::Rollout => &OF_A_STEP,
        }
    }

    fn rollout_asleep(&self, phase: Phase) -> impl Iterator<Item = Kind> + use<> {
        let weights = phase == Phase::Train && !self.keeps_weights;
        let working = phase == Phase::Rollout;
        let rest = OF_A_ROLLOUT.into_iter().filter(move |_| !working);
        rest.chain(OF_WEIGHTS.into_iter().filter(move |_| weights))
    }
}

fn without(ledger: &Ledger, asleep: &[Kind]) -> Ledger {
    let mut rest = Ledger::default();
    for (kind, bytes) in ledger.rows().filter(|(kind, _)| !asleep.contains(kind)) {
        rest.add(kind, bytes);
    }
    rest
}

impl Engine<'_> {
    /// Releases the blocks of some kinds: what they hold is lost, and nothing that needs them runs until they are back;
    /// weights have to be written again, too.
    pub fn sleep(&mut self, kinds: &[Kind]) {
        for &kind in kinds {
            let released = self.memory.is_released(kind);
            if !released && (OF_WEIGHTS.contains(&kind) || kind == Kind::Context) {
                // Caches were of these weights, or are gone themselves.
                self.note_new_weights();
            }
            if !released && OF_WEIGHTS.contains(&kind) {
                let adapter = kind == Kind::Adapter;
                let lost = self.graph.param_ids();
                let lost = lost.filter(|&id| self.graph.param_info(id).adapter == adapter);
                self.lost.extend(lost);
            }
            self.memory.release(kind);
        }
    }

    /// Takes released blocks of some kinds back, full of zeros.
    ///
    /// # Errors
    /// The system refuses a block, or the account has no room for it.
    pub fn wake(&mut self, kinds: &[Kind]) -> Result<(), EngineError> {
        Ok(kinds.iter().try_for_each(|&kind| self.memory.restore(kind))?)
    }

    fn wake_all_but(&mut self, asleep: &[Kind]) -> Result<(), EngineError> {
        let awake: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| !asleep.contains(kind)).collect();
        self.wake(&awake)
    }
}
