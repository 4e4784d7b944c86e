//! What every kernel is called with: instruction set, arithmetic and threads.

use std::sync::atomic::{AtomicUsize, Ordering};

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
}

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
        Ok(Self { isa, arithmetic, pool })
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
