//! One aligned, zeroed allocation.

use program::plan::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Zeroed bytes aligned to [`ALIGNMENT`]; pages are touched when first used.
pub(crate) struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory; who may touch which part of it is the frame's contract.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// `None` where the system refuses.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        if bytes == 0 {
            return Some(Block { start: NonNull::dangling(), bytes });
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Block { start: NonNull::new(start)?, bytes })
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
        if self.bytes == 0 {
            return std::ptr::without_provenance_mut(ALIGNMENT);
        }
        // SAFETY: the offset lies inside the allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `new` made this very layout, so size and alignment are valid.
            let layout = unsafe { Layout::from_size_align_unchecked(self.bytes, ALIGNMENT) };
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}
