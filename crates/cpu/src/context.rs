//! What every kernel is called with: instruction set, arithmetic and threads.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::isa::{Isa, IsaError};
use crate::pool::{Pool, THREADS_MAX};

/// The arithmetic profile of linear products and attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Profile `cpu-f32`: one fused multiply-add for each k.
    F32,
    /// Profile `cpu-bf16`: operands rounded to bf16, one
    /// [`crate::bf16_dot::dot_bf16_pair`] for each pair of k.
    Bf16,
    /// Profile `cpu-bf16-tiles`: operands rounded to bf16, one
    /// [`canon::tile_dot::add_run`] for each run of 32 k.
    Bf16Tiles,
}

impl Arithmetic {
    /// The steps of `k` that a term takes part with: it is padded to whole pairs or
    /// runs.
    #[must_use]
    pub fn padded(self, k: usize) -> usize {
        match self {
            Self::F32 => k,
            Self::Bf16 => k.next_multiple_of(2),
            Self::Bf16Tiles => k.next_multiple_of(canon::tile_dot::RUN),
        }
    }
}

/// Instruction set, arithmetic and thread pool of a run. Results depend on the
/// arithmetic only.
#[derive(Debug)]
pub struct Context {
    isa: Isa,
    arithmetic: Arithmetic,
    pool: Option<Pool>,
    /// Instruction set and way of the last product, as one number; see [`Context::note`].
    taken: AtomicU8,
}

/// Kinds of words of products: what multiplies them.
pub(crate) const WORDS: [&str; 5] =
    ["f32", "bf16 dots", "bf16 on f32", "bf16 tiles", "bf16 tiles on f32"];
/// Names of ways that a product can be computed in, by words and way.
const WAYS: [[&str; 3]; WORDS.len()] = [
    ["packed f32", "few rows f32", "thin f32"],
    ["packed bf16 dots", "few rows bf16 dots", "thin bf16 dots"],
    ["packed bf16 on f32", "few rows bf16 on f32", "thin bf16 on f32"],
    ["packed bf16 tiles", "few rows bf16 tiles", "thin bf16 tiles"],
    ["packed bf16 tiles on f32", "few rows bf16 tiles on f32", "thin bf16 tiles on f32"],
];
/// Notes of one instruction set: [`WAYS`] fit.
const NOTES: u8 = 16;
const ISAS: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];
/// No product has run.
const NOTHING_TAKEN: u8 = u8::MAX;

/// Why a [`Context`] cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The instruction set cannot be used.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// No threads were asked for.
    #[error("0 threads were asked for: use at least 1")]
    NoThreads,
    /// More threads were asked for than a context handles.
    #[error("{threads} threads were asked for: use at most {THREADS_MAX}")]
    TooManyThreads {
        /// How many.
        threads: usize,
    },
    /// The operating system refused the threads.
    #[error("could not start {threads} threads: {source}")]
    Threads {
        /// How many.
        threads: usize,
        /// What it said.
        source: std::io::Error,
    },
}

impl Context {
    /// A context for `threads` threads: the caller's of each kernel and a pool of
    /// `threads - 1` others.
    ///
    /// # Errors
    /// [`ContextError`].
    pub fn new(isa: Isa, arithmetic: Arithmetic, threads: usize) -> Result<Self, ContextError> {
        let isa = isa.supported()?;
        let pool = match threads {
            0 => return Err(ContextError::NoThreads),
            1 => None,
            _ if threads > THREADS_MAX => return Err(ContextError::TooManyThreads { threads }),
            _ => {
                let pool = Pool::new(threads)
                    .map_err(|source| ContextError::Threads { threads, source })?;
                Some(pool)
            }
        };
        Ok(Self { isa, arithmetic, pool, taken: AtomicU8::new(NOTHING_TAKEN) })
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The arithmetic of products.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Threads that a kernel runs on.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, Pool::threads)
    }

    /// Notes how a product is computed: `words` and `way` index its names.
    pub(crate) fn note(&self, isa: Isa, words: u8, way: u8) {
        self.taken.store(NOTES * isa as u8 + 3 * words + way, Ordering::Relaxed);
    }

    /// What was noted since the last call, if anything.
    pub(crate) fn take_note(&self) -> Option<(Isa, &'static str)> {
        let noted = self.taken.swap(NOTHING_TAKEN, Ordering::Relaxed);
        let (isa, way) = (usize::from(noted / NOTES), usize::from(noted % NOTES));
        Some((*ISAS.get(isa)?, WAYS.get(way / 3)?[way % 3]))
    }

    /// Calls `work(thread, task)` for every task below `tasks`, tasks handed out in
    /// order to whichever thread is free. `thread` is below [`Context::threads`].
    pub(crate) fn for_each(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => {
                let next = AtomicUsize::new(0);
                pool.run(tasks, &|thread| {
                    loop {
                        let task = next.fetch_add(1, Ordering::Relaxed);
                        if task >= tasks {
                            break;
                        }
                        work(thread, task);
                    }
                });
            }
            _ => (0..tasks).for_each(|task| work(0, task)),
        }
    }
}

/// A pointer that threads may share: each writes a disjoint part of what it points
/// to.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: kernels hand each task a disjoint part (outputs) or a thread's own part
// (scratch).
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer; a method, so that closures capture the wrapper.
    #[inline(always)]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_threads_are_refused() {
        let context = Context::new(Isa::Portable, Arithmetic::F32, 0);
        assert!(matches!(context, Err(ContextError::NoThreads)));
    }

    #[test]
    fn too_many_threads_are_refused() {
        let context = Context::new(Isa::Portable, Arithmetic::F32, THREADS_MAX + 1);
        assert!(matches!(context, Err(ContextError::TooManyThreads { threads: 1025 })));
    }

    #[test]
    fn what_is_noted_is_taken_once() {
        let context = Context::new(Isa::Portable, Arithmetic::F32, 1).unwrap();
        assert_eq!(context.take_note(), None);
        for (i, isa) in ISAS.into_iter().enumerate() {
            assert_eq!(isa as usize, i);
            for (words, ways) in WAYS.iter().enumerate() {
                for (way, name) in ways.iter().enumerate() {
                    assert!(name.ends_with(WORDS[words]), "{name}");
                    context.note(isa, words as u8, way as u8);
                    assert_eq!(context.take_note(), Some((isa, *name)));
                    assert_eq!(context.take_note(), None);
                }
            }
        }
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3] {
            let context = Context::new(Isa::Portable, Arithmetic::F32, threads).unwrap();
            let runs: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
            context.for_each(runs.len(), |thread, task| {
                assert!(thread < threads);
                runs[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1));
        }
    }
}
