//! The engines of one rank of the world, their phases, and what ranks tell each other.

use engine::{Engine, EngineError, Phase, Phases};
use fabric::Seat;
use program::Ledger;
use record::{KernelUse, KindBytes, PhaseBytes};
use rollout::{Fingerprint, Moved, ShardPlan, Since, SyncError, WeightSync};
use train::contents;

use crate::error::RlError;

/// The action that ends what the lead rank asked the others of training for.
const SERVED: u8 = 0;

/// One rank's engines. Rank 0 of the world has both roles.
pub struct Engines<'r> {
    /// This rank's trainer, if training has so many ranks.
    pub(crate) trainer: Option<Engine<'r>>,
    /// This rank's rollout engine, if it is another than the trainer and the rollout has so many ranks.
    pub(crate) roller: Option<Engine<'r>>,
    /// What weights pass by, and what each engine holds while the other works; `None` where one engine does both.
    two: Option<Two>,
    /// Fingerprint of the trained weights at the last sync of one engine.
    last: Option<Fingerprint>,
    /// This rank's place in the world; `None` where it is the only one.
    pub(crate) seat: Option<Seat<'r>>,
}

/// What two engines share.
struct Two {
    sync: WeightSync,
    phases: Phases,
    /// Bytes that were held in each phase, once it was entered, in the order of [`Phase::ALL`].
    held: [Option<Ledger>; Phase::ALL.len()],
}

impl<'r> Engines<'r> {
    /// An engine that trains and generates: nothing passes and nothing sleeps.
    pub fn one(engine: Engine<'r>, seat: Option<Seat<'r>>) -> Self {
        Engines { trainer: Some(engine), roller: None, two: None, last: None, seat }
    }

    /// Engines of different topologies: `plan` passes weights between them, and `phases` are this rank's.
    pub fn two(
        trainer: Option<Engine<'r>>,
        roller: Option<Engine<'r>>,
        plan: ShardPlan,
        phases: Phases,
        seat: Seat<'r>,
    ) -> Self {
        let held = [None; Phase::ALL.len()];
        let two = Some(Two { sync: WeightSync::new(plan), phases, held });
        Engines { trainer, roller, two, last: None, seat: Some(seat) }
    }

    /// The engine that generates, if this rank takes part.
    pub(crate) fn generator(&mut self) -> Option<&mut Engine<'r>> {
        if self.two.is_none() { self.trainer.as_mut() } else { self.roller.as_mut() }
    }

    /// Every engine of this rank.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Engine<'r>> {
        [&mut self.trainer, &mut self.roller].into_iter().flatten()
    }

    /// Whether this is the rank that grades, stores and tells.
    pub(crate) fn leads(&self) -> bool {
        self.seat.as_ref().is_none_or(|seat| seat.index() == 0)
    }

    /// Every rank's bytes, in order.
    pub(crate) fn gather(&mut self, what: &str, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, RlError> {
        let Some(seat) = &mut self.seat else { return Ok(vec![mine]) };
        Ok(seat.all_gather(what, &mine)?)
    }

    /// Rank 0's bytes, on every rank.
    pub(crate) fn lead_bytes(&mut self, what: &str, mine: Vec<u8>) -> Result<Vec<u8>, RlError> {
        let given = if self.leads() { mine } else { Vec::new() };
        let all = self.gather(what, given)?;
        all.into_iter().next().ok_or_else(|| RlError::Message("no rank answered".into()))
    }

    /// Rank 0's number, on every rank.
    pub(crate) fn lead_number(&mut self, what: &str, mine: u64) -> Result<u64, RlError> {
        let bytes = self.lead_bytes(what, mine.to_le_bytes().to_vec())?;
        let bytes = bytes.first_chunk().ok_or_else(|| RlError::Message(format!("{what}: none")))?;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Lets the lead rank work on its trainer, which may ask for whole tensors, while the other ranks of training give
    /// it their parts. Gives what it made; `None` on every other rank.
    pub(crate) fn served<T>(
        &self,
        lead: impl FnOnce(&Engine<'r>) -> Result<T, RlError>,
    ) -> Result<Option<T>, RlError> {
        let Some(trainer) = &self.trainer else { return Ok(None) };
        let ranks = |error: EngineError| RlError::Served { source: error.into() };
        if !self.leads() {
            trainer.follow().map_err(ranks)?;
            return Ok(None);
        }
        let made = lead(trainer)?;
        trainer.announce(SERVED, 0).map_err(ranks)?;
        Ok(Some(made))
    }

    /// Takes this rank's engines to a phase, where they are two: what neither needs there is given back first.
    pub(crate) fn enter(&mut self, phase: Phase) -> Result<(), EngineError> {
        let Engines { trainer, roller, two: Some(two), .. } = self else { return Ok(()) };
        two.phases.enter(phase, trainer.as_mut(), roller.as_mut())?;
        let held = [trainer, roller].into_iter().flatten().map(|engine| engine.ledger());
        let held = held.fold(Ledger::default(), |sum, ledger| sum.plus(&ledger));
        two.held[phase as usize] = Some(held);
        Ok(())
    }

    /// Passes the trained weights to the rollout engine, where there is one, and compares fingerprints of both sides;
    /// gives theirs. Every rank of the world takes part.
    pub(crate) fn sync(&mut self, since: Since) -> Result<Fingerprint, SyncError> {
        let Engines { trainer, roller, two, seat, last } = self;
        if let (Some(two), Some(seat)) = (two, seat) {
            return two.sync.run(seat, trainer.as_ref(), roller.as_mut(), since);
        }
        let trainer = trainer.as_ref().ok_or(SyncError::NobodyHasWeights)?;
        let trained: Vec<_> = contents::trained(trainer).collect();
        let fingerprint = Fingerprint::of(trainer, &trained)?;
        if since == Since::Updated && *last == Some(fingerprint) {
            return Err(SyncError::Unchanged { fingerprint });
        }
        *last = Some(fingerprint);
        Ok(fingerprint)
    }

    /// Kernels that this rank's engines ran.
    pub(crate) fn kernels(&self) -> Vec<KernelUse> {
        let engines = [&self.trainer, &self.roller].into_iter().flatten();
        engines.flat_map(contents::kernels).collect()
    }

    /// Bytes by kind of this rank, planned and held; with two engines in the phase that holds most.
    pub(crate) fn kinds(&self) -> Vec<KindBytes> {
        let Some(two) = &self.two else {
            let ledgers = self.trainer.as_ref().map(|t| (t.blueprint.ledger, t.ledger()));
            let (planned, held) = ledgers.unwrap_or_default();
            return contents::kinds(&planned, &held);
        };
        let most = |phase: &Phase| two.phases.ledger(*phase).total();
        let phase = Phase::ALL.into_iter().max_by_key(most).unwrap_or(Phase::Train);
        let planned = two.phases.ledger(phase);
        let held = two.held[phase as usize].unwrap_or_default();
        contents::kinds(&planned.trainer.plus(&planned.rollout), &held)
    }

    /// Bytes of this rank in each phase, planned and held; none with one engine.
    pub(crate) fn phases(&self) -> Vec<PhaseBytes> {
        let rank = self.seat.as_ref().map_or(0, Seat::index);
        let of = |two: &Two| {
            let bytes = |phase: Phase| PhaseBytes {
                rank,
                phase: phase.name().to_owned(),
                planned_bytes: two.phases.ledger(phase).total(),
                used_bytes: two.held[phase as usize].map_or(0, |held| held.total()),
            };
            Phase::ALL.map(bytes).to_vec()
        };
        self.two.as_ref().map_or(Vec::new(), of)
    }
}

/// What has to pass at every sync: trained parameters, or all where the rollout engine gives its weights back.
pub fn moved(keeps_weights: bool) -> Moved {
    if keeps_weights { Moved::Trained } else { Moved::All }
}
