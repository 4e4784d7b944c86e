//! What every kernel is called with: instruction set, arithmetic and threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::isa::{Isa, IsaError};

/// The arithmetic profile of linear products and attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Profile `cpu-f32`: one fused multiply-add for each k.
    F32,
    /// Profile `cpu-bf16`: operands rounded to bf16, one
    /// [`crate::bf16_dot::dot_bf16_pair`] for each pair of k.
    Bf16,
}

/// Instruction set, arithmetic and thread pool of a run. Results depend on the
/// arithmetic only.
#[derive(Debug)]
pub struct Context {
    isa: Isa,
    arithmetic: Arithmetic,
    pool: Option<rayon::ThreadPool>,
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
    /// The operating system refused the threads.
    #[error("could not start {threads} threads: {source}")]
    Threads {
        /// How many.
        threads: usize,
        /// What it said.
        source: rayon::ThreadPoolBuildError,
    },
}

impl Context {
    /// A context with its own pool of `threads` threads (none is started for 1).
    ///
    /// # Errors
    /// [`ContextError`].
    pub fn new(isa: Isa, arithmetic: Arithmetic, threads: usize) -> Result<Self, ContextError> {
        let isa = isa.supported()?;
        let pool = match threads {
            0 => return Err(ContextError::NoThreads),
            1 => None,
            _ => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|i| format!("kernel-{i}"))
                    .build()
                    .map_err(|source| ContextError::Threads { threads, source })?,
            ),
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
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `f` on a thread of the pool. Kernels called inside start their threads
    /// without a hand-over; a decode loop should run inside one `install`.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            None => f(),
            Some(pool) => pool.install(f),
        }
    }

    /// Calls `work(thread, task)` for every task below `tasks`, tasks handed out in
    /// order to whichever thread is free. `thread` is below [`Context::threads`].
    pub(crate) fn for_each(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => {
                let next = AtomicUsize::new(0);
                pool.broadcast(|thread| {
                    loop {
                        let task = next.fetch_add(1, Ordering::Relaxed);
                        if task >= tasks {
                            break;
                        }
                        work(thread.index(), task);
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
