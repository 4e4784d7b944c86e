//! What an engine asks of other ranks.

use crate::error::EngineError;
use crate::run::Engine;
use arena::Frame;
use fabric::Member;
use program::ops::{Collective, Group};

/// Carries out collectives and exchanges of bytes between ranks.
pub trait Exchange {
    /// Runs one collective.
    ///
    /// # Errors
    /// What went wrong, naming the rank.
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String>;

    /// Every rank's bytes, in the order of the group's ranks.
    ///
    /// # Errors
    /// As [`Exchange::collective`].
    fn all_gather(&mut self, group: Group, what: &str, mine: &[u8])
    -> Result<Vec<Vec<u8>>, String>;

    /// Bytes received from other ranks so far, by kind of movement.
    fn traffic(&self) -> fabric::Traffic;
}

impl Exchange for Member<'_> {
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String> {
        Member::collective(self, op, frame).map_err(|error| error.to_string())
    }

    fn all_gather(
        &mut self,
        group: Group,
        what: &str,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, String> {
        Member::all_gather(self, group, what, mine).map_err(|error| error.to_string())
    }

    fn traffic(&self) -> fabric::Traffic {
        *Member::traffic(self)
    }
}

impl<T: Exchange + ?Sized> Exchange for &mut T {
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String> {
        (**self).collective(op, frame)
    }

    fn all_gather(
        &mut self,
        group: Group,
        what: &str,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, String> {
        (**self).all_gather(group, what, mine)
    }

    fn traffic(&self) -> fabric::Traffic {
        (**self).traffic()
    }
}

impl Engine<'_> {
    /// Every rank's bytes, in the order of the group's ranks: this rank's alone where it is the only one.
    ///
    /// # Errors
    /// Another rank failed or gathers something else.
    pub fn all_gather(
        &self,
        group: Group,
        what: &str,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, EngineError> {
        if group.size(&self.blueprint.store.topology) == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        let exchange =
            self.exchange.as_ref().ok_or(EngineError::NotPlanned("more than one rank"))?;
        exchange
            .borrow_mut()
            .all_gather(group, what, mine)
            .map_err(|message| EngineError::Gather { what: what.into(), message })
    }

    /// Bytes received from other ranks so far.
    pub fn traffic(&self) -> fabric::Traffic {
        self.exchange.as_ref().map_or_else(Default::default, |exchange| exchange.borrow().traffic())
    }
}

/// Floats as bytes, little-endian.
pub(crate) fn floats_to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What [`floats_to_bytes`] wrote.
pub(crate) fn floats_of_bytes(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
