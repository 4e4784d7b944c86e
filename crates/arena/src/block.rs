//! One zeroed mapping of anonymous memory.

use memmap2::MmapMut;
use program::plan::ALIGNMENT;

/// Zeroed bytes, page-aligned; pages are given by the system when first touched.
pub(crate) struct Block {
    /// Keeps the memory; `None` for a block of no bytes.
    _map: Option<MmapMut>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a block is plain memory; who may touch which part of it is the frame's contract.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A block of no bytes.
    pub(crate) const EMPTY: Block =
        Block { _map: None, start: std::ptr::without_provenance_mut(ALIGNMENT), bytes: 0 };

    /// `None` where the system refuses.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        if bytes == 0 {
            return Some(Block::EMPTY);
        }
        let mut map = MmapMut::map_anon(bytes).ok()?;
        // Large pages, where the system has them, raise the rate at which weights are read by about a third; a system
        // without them refuses the advice, and nothing else changes.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = map.as_mut_ptr();
        Some(Block { _map: Some(map), start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of `offset`, which with `bytes` must lie inside.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "outside its block"
        );
        // SAFETY: the offset lies inside the mapping (or is 0 in a block of no bytes).
        unsafe { self.start.add(offset) }
    }
}
