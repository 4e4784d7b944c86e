//! The blocks of one rank.

use crate::block::Block;
use program::ledger::Bytes;
use program::{Kind, Ledger};

/// A block that the system does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system refuses {} for {}: free memory, or plan less (a lease bounds the plan)", Bytes(*bytes), kind.name())]
pub struct AllocError {
    /// What it was for.
    pub kind: Kind,
    /// Its size.
    pub bytes: usize,
}

/// One block a kind, of the planned sizes.
pub struct Memory {
    blocks: Vec<Block>,
}

impl Memory {
    /// Allocates what a ledger says: the maximum over the programs that will run.
    ///
    /// # Errors
    /// [`AllocError`] where the system refuses a block.
    pub fn new(ledger: &Ledger) -> Result<Memory, AllocError> {
        let block = |(kind, bytes)| Block::new(bytes).ok_or(AllocError { kind, bytes });
        Ok(Memory { blocks: ledger.rows().map(block).collect::<Result<_, _>>()? })
    }

    /// Bytes allocated, by kind.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for (kind, block) in Kind::ALL.into_iter().zip(&self.blocks) {
            ledger.add(kind, block.bytes());
        }
        ledger
    }

    pub(crate) fn block(&self, kind: Kind) -> &Block {
        &self.blocks[kind as usize]
    }
}
