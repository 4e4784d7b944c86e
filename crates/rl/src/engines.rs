//! The engines of one rank of the world, and what ranks tell each other.

use engine::Engine;
use fabric::Seat;

use crate::error::RlError;

/// One rank's engines. Rank 0 of the world has both roles.
pub struct Engines<'r> {
    /// This rank's trainer, if training has so many ranks.
    pub trainer: Option<Engine<'r>>,
    /// This rank's rollout engine, if it is another than the trainer and the rollout has so many ranks.
    pub roller: Option<Engine<'r>>,
    /// Whether the trainer generates too: then no weights need passing.
    pub shared: bool,
    /// This rank's place in the world; `None` where it is the only one.
    pub seat: Option<Seat<'r>>,
}

impl<'r> Engines<'r> {
    /// One engine for everything.
    pub fn one(engine: Engine<'r>) -> Self {
        Engines { trainer: Some(engine), roller: None, shared: true, seat: None }
    }

    /// The engine that generates, if this rank takes part.
    pub(crate) fn generator(&mut self) -> Option<&mut Engine<'r>> {
        if self.shared { self.trainer.as_mut() } else { self.roller.as_mut() }
    }

    /// Whether this is the rank that grades, stores and tells.
    pub(crate) fn leads(&self) -> bool {
        self.seat.as_ref().is_none_or(|seat| seat.index() == 0)
    }

    /// Rank 0's bytes, on every rank.
    pub(crate) fn lead_bytes(&mut self, what: &str, mine: Vec<u8>) -> Result<Vec<u8>, RlError> {
        let Some(seat) = &mut self.seat else { return Ok(mine) };
        let given = if seat.index() == 0 { mine } else { Vec::new() };
        let all = seat.all_gather(what, &given)?;
        all.into_iter().next().ok_or_else(|| RlError::Message("no rank answered".into()))
    }
}
