//! How a product is cut in tasks and blocks, and the scratch memory that takes.
//!
//! All of it follows from the shape and the number of threads alone, so a planner
//! knows it without a processor at hand. None of it can be seen in a result.

use super::Product;
use super::pieces::stack_slots;
use super::words::RUN_WORDS;
use crate::context::Arithmetic;
use crate::scratch;
use crate::tiles::SIDE;

/// Longest `k` that is packed whole.
const WHOLE_K_MAX: usize = 3072;
/// Longest and shortest block of `k` where it is cut: as long as a block of B may be
/// that holds every column, so that A is packed once.
const K_BLOCK_MAX: usize = 2048;
const K_BLOCK_MIN: usize = 512;
/// Words of a packed block of B: about 1.3 MiB, to lie in a second-level cache.
const B_BLOCK_WORDS: usize = 340_000;
/// Most rows of a task where `k` is cut: accumulators of a whole task then rest in
/// scratch memory. Not fewer than they must be: every task packs all of its B.
const CUT_ROW_BLOCK: usize = 336;
/// Columns of the widest register tile.
const TILE_COLUMNS_MAX: usize = 32;
/// Rows of the highest register tile.
const TILE_ROWS_MAX: usize = 14;
/// Elements of the largest register tile.
const TILE_MAX: usize = TILE_ROWS_MAX * TILE_COLUMNS_MAX;
/// Panels of A that are packed together: a stored row that `k` strides over is then
/// read in stretches of several cache lines.
pub(super) const A_PANELS: usize = 4;
/// Rows of A that are packed together for matrix tiles.
pub(super) const LEFT_ROWS: usize = 64;
/// Rows, and columns, of a block of matrix tiles.
const BLOCK_SIDE: usize = 32;
/// Words that packing may write past the end of a panel.
const SLACK: usize = 32;
/// Words before the panels: which block they hold, and [`TAKEN_AT`].
pub(super) const HEADER: usize = 16;
/// Most rows of A for which rows of B are multiplied straight from memory.
pub(super) const SKINNY_ROWS_MAX: usize = 32;
/// Rows of B that one skinny step handles.
pub(super) const SKINNY_STEP: usize = 16;
/// Fewest steps worth a thread: the first one reads memory that nobody has asked for
/// ahead.
const SKINNY_STEPS_MIN: usize = 3;
/// Word of a part's header that counts the steps taken from its thread's range.
pub(super) const TAKEN_AT: usize = 8;
/// Tasks that each thread should get where the shape allows, to even out.
const TASKS_PER_THREAD: usize = 4;
/// Fewest rows worth a task.
const ROWS_PER_TASK_MIN: usize = 56;
/// What the workspace of a product depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The arithmetic of the product.
    pub arithmetic: Arithmetic,
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Steps of all terms together, each [padded](Arithmetic::padded).
    pub k: usize,
    /// Leaves.
    pub leaves: usize,
}

impl Shape {
    /// The shape of a product.
    #[must_use]
    pub fn of(product: &Product<'_>, arithmetic: Arithmetic) -> Self {
        let k = product.terms().map(|term| arithmetic.padded(term.k)).sum();
        Self { arithmetic, m: product.m, n: product.n, k, leaves: product.leaves.len() }
    }
}

/// Bytes of scratch memory that [`super::matmul`] needs for `shape` on `threads`
/// threads, on every instruction set.
#[must_use]
pub fn workspace_bytes(shape: &Shape, threads: usize) -> usize {
    let split = Split::of(shape, threads);
    scratch::bytes(split.floats_per_thread(), threads)
}

/// Tasks and blocks of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    arithmetic: Arithmetic,
    m: usize,
    n: usize,
    /// In words, at least as many as the packed panels have.
    k: usize,
    slots: usize,
    pub(super) k_block: usize,
    pub(super) col_block: usize,
    row_block: usize,
    skinny_ranges: usize,
}

impl Split {
    pub(super) fn of(shape: &Shape, threads: usize) -> Self {
        let Shape { arithmetic, m, n, k, leaves } = *shape;
        let (m, n, k) = (m.max(1), n.max(1), arithmetic.padded(k.max(1)).next_multiple_of(2));
        // Runs are packed as pairs on every path, and not cut.
        let (k, whole) = match arithmetic {
            Arithmetic::F32 | Arithmetic::Bf16 => (k, 2),
            Arithmetic::Bf16Tiles => (k / 2, RUN_WORDS),
        };
        let k_block = if k <= WHOLE_K_MAX {
            k
        } else {
            let fit = B_BLOCK_WORDS / n.next_multiple_of(TILE_COLUMNS_MAX);
            fit.clamp(K_BLOCK_MIN, K_BLOCK_MAX) / whole * whole
        };
        let fit = (B_BLOCK_WORDS / k_block).max(TILE_COLUMNS_MAX);
        let mut col_tasks = n.div_ceil(fit);
        // Few rows: columns are what can be shared out.
        if m < ROWS_PER_TASK_MIN * TASKS_PER_THREAD * threads && threads > 1 {
            col_tasks = col_tasks.next_multiple_of(threads);
        }
        let col_block = n.div_ceil(col_tasks).next_multiple_of(TILE_COLUMNS_MAX);
        let col_tasks = n.div_ceil(col_block);
        let row_tasks = match (k_block < k, threads) {
            (true, _) => m.div_ceil(threads * CUT_ROW_BLOCK) * threads.div_ceil(col_tasks),
            (false, 1) => 1,
            (false, _) => (TASKS_PER_THREAD * threads).div_ceil(col_tasks),
        };
        let row_tasks = row_tasks.min(m.div_ceil(ROWS_PER_TASK_MIN));
        let mut row_block = m.div_ceil(row_tasks);
        if k_block < k {
            row_block = row_block.min(CUT_ROW_BLOCK);
        }
        let steps = n.div_ceil(SKINNY_STEP);
        let skinny_ranges = threads.min(steps.div_ceil(SKINNY_STEPS_MIN));
        let slots = stack_slots(leaves.max(1)) + 1;
        Self { arithmetic, m, n, k, slots, k_block, col_block, row_block, skinny_ranges }
    }

    fn row_tasks(&self) -> usize {
        self.m.div_ceil(self.row_block)
    }

    /// Tasks of the packed path.
    pub(super) fn tasks(&self) -> usize {
        self.n.div_ceil(self.col_block) * self.row_tasks()
    }

    /// Ranges of steps that the path for few rows starts from, one a task.
    pub(super) fn skinny_ranges(&self) -> usize {
        self.skinny_ranges
    }

    /// `(column block, first row, rows)` of a task; neighbours share the columns.
    pub(super) fn task(&self, task: usize) -> (usize, usize, usize) {
        let (block, row) = (task / self.row_tasks(), task % self.row_tasks() * self.row_block);
        (block, row, self.row_block.min(self.m - row))
    }

    /// Steps of a range, of [`SKINNY_STEP`] columns each but for the last.
    pub(super) fn skinny_range(&self, range: usize) -> std::ops::Range<usize> {
        let steps = self.n.div_ceil(SKINNY_STEP);
        let at = |range: usize| steps * range / self.skinny_ranges;
        at(range)..at(range + 1)
    }

    /// Whether `k` is cut in blocks.
    pub(super) fn is_cut(&self) -> bool {
        self.k_block < self.k
    }

    /// Accumulator, stack and result slots of a tile.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Whether matrix tiles may multiply.
    fn has_tiles(&self) -> bool {
        self.arithmetic == Arithmetic::Bf16Tiles
    }

    fn a_words(&self) -> usize {
        // A panel is packed, or for few rows all of A.
        let panels = A_PANELS * (TILE_ROWS_MAX * self.k_block + SLACK);
        let few = if self.has_tiles() { SIDE } else { SKINNY_ROWS_MAX } * self.k;
        let left = if self.has_tiles() { LEFT_ROWS * self.k_block } else { 0 };
        panels.max(few).max(left) + SLACK
    }

    fn b_words(&self) -> usize {
        self.col_block * self.k_block + SLACK
    }

    /// Word where the packed A starts.
    pub(super) fn a_at(&self) -> usize {
        HEADER
    }

    /// Word where the packed B starts.
    pub(super) fn b_at(&self) -> usize {
        (self.a_at() + self.a_words()).next_multiple_of(16)
    }

    /// Word where the accumulators start.
    pub(super) fn state_at(&self) -> usize {
        (self.b_at() + self.b_words()).next_multiple_of(16)
    }

    /// Words of scratch memory for each thread.
    pub(super) fn floats_per_thread(&self) -> usize {
        // A panel may be padded by some rows.
        let mut padded = self.row_block + self.row_block / 2 + TILE_ROWS_MAX;
        let mut tile = TILE_MAX;
        if self.has_tiles() {
            padded = padded.max(self.row_block.next_multiple_of(BLOCK_SIDE));
            tile = BLOCK_SIDE * BLOCK_SIDE;
        }
        let tiles = if self.is_cut() { padded * self.col_block } else { tile };
        (self.state_at() + self.slots * tiles.max(tile)).next_multiple_of(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_the_output_once() {
        for (m, n, k) in [(1, 1, 1), (2048, 1536, 576), (17, 49_152, 576), (300, 70, 5000)] {
            let arithmetics = [Arithmetic::F32, Arithmetic::Bf16Tiles];
            for (threads, arithmetic) in
                [1, 2, 5].into_iter().flat_map(|t| arithmetics.map(|a| (t, a)))
            {
                let split = Split::of(&Shape { arithmetic, m, n, k, leaves: 8 }, threads);
                let mut seen = 0;
                for task in 0..split.tasks() {
                    let (block, row, rows) = split.task(task);
                    assert!(row + rows <= m && rows > 0);
                    let cols = split.col_block.min(n - block * split.col_block);
                    seen += rows * cols;
                }
                assert_eq!(seen, m * n);
                let ranges = (0..split.skinny_ranges()).map(|r| split.skinny_range(r));
                assert!(ranges.flatten().eq(0..n.div_ceil(SKINNY_STEP)));
                assert!(split.skinny_ranges() <= threads);
            }
        }
    }
}
