//! The blocks of one rank.

use crate::block::Block;
use program::{Kind, Ledger};

/// One block a kind, of the planned sizes.
pub struct Memory {
    blocks: Vec<Block>,
}

impl Memory {
    /// Allocates what a ledger says: the maximum over the programs that will run.
    pub fn new(ledger: &Ledger) -> Memory {
        Memory { blocks: ledger.rows().map(|(_, bytes)| Block::new(bytes)).collect() }
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
