//! The blocks of one rank.

use crate::account::{Account, NoRoom};
use crate::block::Block;
use crate::staging::Staging;
use program::ledger::Bytes;
use program::{Kind, Ledger};
use std::sync::Arc;

/// A block that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The system refuses.
    #[error("the system refuses {} for {}: free memory, or plan less (a lease bounds the plan)", Bytes(*bytes), kind.name())]
    Refused {
        /// What it was for.
        kind: Kind,
        /// Its size.
        bytes: usize,
    },
    /// The account's other memories leave no room.
    #[error(
        "{} for {} is over the ceiling: {} of {} are held; release what the other side does not need first",
        Bytes(*bytes), kind.name(), Bytes(*held), Bytes(*limit)
    )]
    NoRoom {
        /// What it was for.
        kind: Kind,
        /// Its size.
        bytes: usize,
        /// Bytes held by all memories of the account.
        held: usize,
        /// The ceiling.
        limit: usize,
    },
}

/// One block a kind, of the planned sizes. Blocks can be released, and restored full of zeros.
pub struct Memory {
    planned: Ledger,
    /// But for [`Kind::Exchange`], whose block other ranks read.
    blocks: Vec<Block>,
    staging: Staging,
    released: [bool; Kind::ALL.len()],
    account: Arc<Account>,
}

impl Memory {
    /// Allocates what a ledger says: the maximum over the programs that will run.
    ///
    /// # Errors
    /// [`AllocError::Refused`] where the system refuses a block.
    pub fn new(ledger: &Ledger) -> Result<Memory, AllocError> {
        Memory::within(ledger, &Account::new(usize::MAX))
    }

    /// The same under the ceiling of an account that other memories share.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn within(ledger: &Ledger, account: &Arc<Account>) -> Result<Memory, AllocError> {
        let blocks = Kind::ALL.iter().map(|_| Block::EMPTY).collect();
        let released = [true; Kind::ALL.len()];
        let staging = Staging::new(Block::EMPTY);
        let account = account.clone();
        let mut memory = Memory { planned: *ledger, blocks, staging, released, account };
        for kind in Kind::ALL {
            memory.restore(kind)?;
        }
        Ok(memory)
    }

    /// Bytes planned, by kind.
    pub fn planned(&self) -> &Ledger {
        &self.planned
    }

    /// Bytes allocated now, by kind: what was planned, but for released kinds.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for (kind, block) in Kind::ALL.into_iter().zip(&self.blocks) {
            ledger.add(kind, block.bytes());
        }
        ledger.add(Kind::Exchange, self.staging.bytes());
        ledger
    }

    /// Whether a kind's block has been released.
    pub fn is_released(&self, kind: Kind) -> bool {
        self.released[kind as usize]
    }

    /// Gives a kind's block back to the system: what it holds is lost.
    pub fn release(&mut self, kind: Kind) {
        if !std::mem::replace(&mut self.released[kind as usize], true) {
            self.put(kind, Block::EMPTY);
            self.account.give(self.planned.bytes(kind));
        }
    }

    /// Takes a released block back, full of zeros.
    ///
    /// # Errors
    /// [`AllocError`]; the block then stays released.
    pub fn restore(&mut self, kind: Kind) -> Result<(), AllocError> {
        if !self.is_released(kind) {
            return Ok(());
        }
        let bytes = self.planned.bytes(kind);
        let no_room = |NoRoom { held, limit }| AllocError::NoRoom { kind, bytes, held, limit };
        self.account.take(bytes).map_err(no_room)?;
        let Some(block) = Block::new(bytes) else {
            self.account.give(bytes);
            return Err(AllocError::Refused { kind, bytes });
        };
        self.put(kind, block);
        self.released[kind as usize] = false;
        Ok(())
    }

    fn put(&mut self, kind: Kind, block: Block) {
        match kind {
            Kind::Exchange => self.staging = Staging::new(block),
            _ => self.blocks[kind as usize] = block,
        }
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(crate) fn bytes(&self, kind: Kind) -> usize {
        match kind {
            Kind::Exchange => self.staging.bytes(),
            _ => self.block(kind).bytes(),
        }
    }

    pub(crate) fn block(&self, kind: Kind) -> &Block {
        &self.blocks[kind as usize]
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        Kind::ALL.into_iter().for_each(|kind| self.release(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(weights: usize, graph: usize) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(Kind::Weight, weights);
        ledger.add(Kind::Graph, graph);
        ledger
    }

    #[test]
    fn a_released_block_is_given_back_and_comes_back_empty() {
        let account = Account::new(5000);
        let mut memory = Memory::within(&ledger(1000, 3000), &account).unwrap();
        // SAFETY: the block holds a byte, and nothing else uses it.
        unsafe { memory.block(Kind::Graph).at(0, 1).write(7) };
        assert_eq!(account.held(), 4000);
        memory.release(Kind::Graph);
        memory.release(Kind::Graph);
        assert_eq!((account.held(), memory.ledger()), (1000, ledger(1000, 0)));
        memory.restore(Kind::Graph).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { memory.block(Kind::Graph).at(0, 1).read() }, 0);
        assert_eq!(memory.ledger(), *memory.planned());
        drop(memory);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn a_block_over_the_ceiling_waits_until_another_memory_has_released_its_own() {
        let account = Account::new(5000);
        let mut first = Memory::within(&ledger(1000, 3000), &account).unwrap();
        let refused = Memory::within(&ledger(500, 2000), &account).err();
        let no_room =
            AllocError::NoRoom { kind: Kind::Graph, bytes: 2000, held: 4500, limit: 5000 };
        assert_eq!(refused, Some(no_room));
        assert_eq!(account.held(), 4000, "what the refused memory had taken is given back");
        first.release(Kind::Graph);
        let second = Memory::within(&ledger(500, 2000), &account).unwrap();
        assert!(first.restore(Kind::Graph).is_err() && first.is_released(Kind::Graph));
        drop(second);
        first.restore(Kind::Graph).unwrap();
        assert_eq!((account.take_peak(), account.take_peak()), (4500, 4000));
    }
}
