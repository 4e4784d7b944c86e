//! One rank's place in a world of several topologies.

use crate::error::FabricError;
use crate::member::Member;
use crate::transport::Transport;
use program::ops::Group;

/// A rank of the world: a member of every topology that has as many ranks.
pub struct Seat<'a> {
    transport: &'a dyn Transport,
    world: Member<'a>,
}

impl<'a> Seat<'a> {
    pub(crate) fn new(transport: &'a dyn Transport, rank: usize) -> Seat<'a> {
        let world = Member::new(transport, transport.spaces().len() - 1, rank);
        Seat { transport, world }
    }

    /// Another handle on this seat. Handles count their own traffic.
    pub fn again(&self) -> Seat<'a> {
        Seat::new(self.transport, self.index())
    }

    /// Number of this rank.
    pub fn index(&self) -> usize {
        self.world.index()
    }

    /// Ranks of the world.
    pub fn size(&self) -> usize {
        self.world.topology().ranks()
    }

    /// This rank's handle in the world's topology `index`; `None` when that has fewer ranks. Handles count their own
    /// traffic; a topology's ranks must all make theirs alike.
    pub fn member(&self, index: usize) -> Option<Member<'a>> {
        let spaces = self.transport.spaces();
        let topologies = &spaces[..spaces.len() - 1];
        let topology = topologies.get(index)?;
        (self.index() < topology.ranks()).then(|| Member::new(self.transport, index, self.index()))
    }

    /// Says what the rank is about to do, for the message that others get if it fails there.
    pub fn entering(&mut self, operation: &str) {
        self.world.entering(operation);
    }

    /// Every rank's bytes; see [`Member::all_gather`].
    ///
    /// # Errors
    /// Another rank failed or called something else.
    pub fn all_gather(&mut self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.world.all_gather(Group::All, what, mine)
    }

    /// Gives each rank of the world its own bytes; see [`Member::exchange`].
    ///
    /// # Errors
    /// Another rank failed or called something else; not one part a rank.
    pub fn exchange(
        &mut self,
        what: &str,
        parts: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, FabricError> {
        self.world.exchange(Group::All, what, parts)
    }
}
