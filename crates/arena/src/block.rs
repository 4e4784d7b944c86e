//! One aligned, zeroed allocation.

use program::plan::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
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
    pub(crate) fn new(bytes: usize) -> Block {
        if bytes == 0 {
            return Block { start: NonNull::dangling(), bytes };
        }
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Block { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).expect("a planned size fits the address space")
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of `offset`, which with `bytes` must lie inside.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "outside its block");
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
            // SAFETY: allocated in `new` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes)) }
        }
    }
}
