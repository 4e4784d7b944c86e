//! Which rows of B a task takes where rows of A are few.
//!
//! Each thread has one range of rows, read from its start, and takes single steps from
//! another's only when its own is done: no start in cold memory in the middle, and
//! threads end within a step of each other.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::task::Job;
use super::workspace::{SKINNY_STEP, Split, TAKEN_AT};

/// The steps of one task, handed out one by one.
pub(super) struct Steps {
    split: Split,
    /// The scratch memory of thread 0.
    parts: *mut f32,
    /// Columns of the output.
    n: usize,
    task: usize,
    /// Ranges that are done.
    turn: usize,
}

impl Steps {
    /// The steps of a job.
    ///
    /// # Safety
    /// As [`Job`]; nothing else hands out steps of the product.
    #[inline(always)]
    pub(super) unsafe fn of<W>(job: &Job<'_, W>) -> Self {
        Self { split: job.split, parts: job.parts, n: job.product.n, task: job.task, turn: 0 }
    }

    /// `(first column, columns)` of the next step, and whether the one after it is this
    /// task's own to ask for.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<((usize, usize), bool)> {
        let ranges = self.split.skinny_ranges();
        while self.turn < ranges {
            let range = (self.task + self.turn) % ranges;
            let steps = self.split.skinny_range(range);
            if let Some(step) = self.take_of(range, &steps) {
                let col = step * SKINNY_STEP;
                let next = self.turn == 0 && step + 1 < steps.end;
                return Some(((col, SKINNY_STEP.min(self.n - col)), next));
            }
            self.turn += 1;
        }
        None
    }

    /// The next step of a range that nobody has taken.
    #[inline(always)]
    fn take_of(&self, range: usize, steps: &Range<usize>) -> Option<usize> {
        // SAFETY: there are no more ranges than threads, and each thread has a part, whose
        // header was cleared and whose word here is touched by this function only.
        let taken = unsafe {
            let part = self.parts.add(range * self.split.floats_per_thread());
            AtomicU32::from_ptr(part.add(TAKEN_AT).cast())
        };
        let next = steps.start + taken.fetch_add(1, Ordering::Relaxed) as usize;
        (next < steps.end).then_some(next)
    }
}
