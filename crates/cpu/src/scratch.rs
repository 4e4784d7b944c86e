//! Scratch memory handed in by the caller, cut in one part for each thread.

/// Bytes of a cache line; every thread's part starts on one.
const LINE: usize = 64;

/// Bytes for `threads` parts of `words` words (a multiple of 16): one line more than
/// the parts, to start on a line.
pub(crate) fn bytes(words: usize, threads: usize) -> usize {
    debug_assert!(words.is_multiple_of(16));
    4 * words * threads + LINE
}

/// The part of `scratch` that starts on a cache line.
pub(crate) fn align(scratch: &mut [u8]) -> *mut f32 {
    let skip = scratch.as_ptr().align_offset(LINE);
    scratch.as_mut_ptr().wrapping_add(skip).cast()
}
