//! Threads that wait for parallel regions a few hundred nanoseconds away.
//!
//! A decoded token is some 250 parallel regions of 10 to 100 µs each, so a hand-over
//! through the operating system (about 40 µs) would cost as much as the work. Workers
//! therefore spin for [`SPIN`] after a region before they sleep.
//!
//! A region never waits for a worker that is late: workers *join* an open region, the
//! caller works through the tasks like any of them, closes the region once none is
//! left, and then waits only for those that joined. On a machine with more runnable
//! threads than cores the caller does alone what nobody came to help with.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps: longer than the serial stretches inside
/// a decoding step, short enough not to be seen in an idle process.
const SPIN: Duration = Duration::from_micros(200);
/// The same where the pools of this process have more threads than the machine: the
/// thread that is waited for may need this very core.
const SPIN_CROWDED: Duration = Duration::from_micros(5);
/// Pauses between two looks at the clock.
const PAUSES: usize = 32;

/// Joined workers, in the low bits of [`Shared::state`].
const JOINED: u64 = 0xffff;
/// Most threads of a pool: the workers fit in [`JOINED`].
pub(crate) const THREADS_MAX: usize = 1024;
/// Set while workers may join.
const OPEN: u64 = 1 << 16;
/// Set once the pool is dropped.
const STOP: u64 = 1 << 17;
/// One region; the bits from here on count them.
const REGION: u64 = 1 << 32;

/// Threads of all pools of the process, to tell whether they crowd the machine.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What a region runs on each thread, with the thread's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// A pool: the calling thread, number 0, and workers numbered from 1.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a region.
    region: Mutex<()>,
    spin: Duration,
}

/// What caller and workers share.
#[repr(align(128))]
struct Shared {
    /// Regions so far, [`STOP`], [`OPEN`] and the number of joined workers, in one
    /// word: a worker can only join the region that it looked at.
    state: AtomicU64,
    /// The work of the open region: written by the caller while no worker is joined,
    /// read by joined workers.
    work: UnsafeCell<Option<*const Work<'static>>>,
    /// The caller, where it sleeps until the last worker leaves.
    caller: Mutex<Option<Thread>>,
    caller_sleeps: AtomicBool,
    /// Whether each worker sleeps.
    asleep: Box<[AtomicBool]>,
    /// The first panic of a worker in the open region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is the only part that is not `Sync` (nor `Send`) by itself. It is
// written while the region is closed and nobody has joined, and read between joining
// and leaving; the atomic operations on `state` order the two. It points to something
// `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads >= 1` threads, the caller's included.
    ///
    /// # Errors
    /// What the operating system says where it refuses a thread.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let all = THREADS.fetch_add(threads, Ordering::Relaxed) + threads;
        let spin = if all > cores { SPIN_CROWDED } else { SPIN };
        let mut pool = Self {
            shared: Arc::new(Shared {
                state: AtomicU64::new(0),
                work: UnsafeCell::new(None),
                caller: Mutex::new(None),
                caller_sleeps: AtomicBool::new(false),
                asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
                panic: Mutex::new(None),
            }),
            workers: Vec::with_capacity(threads - 1),
            region: Mutex::new(()),
            spin,
        };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            // On failure `pool` is dropped, which ends the workers before.
            let handle = thread::Builder::new()
                .name(format!("kernel-{worker}"))
                .spawn(move || shared.serve(worker, spin))?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(0)` here and `work(thread)` on every worker that comes while it
    /// lasts, and returns when all are done. Where the pool is at work already (a
    /// region inside a region, or two callers) only `work(0)` runs. `useful` is the
    /// number of threads that find something to do: no more are woken.
    ///
    /// A panic of `work` on any thread is raised here once all threads are done.
    pub(crate) fn run(&self, useful: usize, work: &Work<'_>) {
        let _region = match self.region.try_lock() {
            Ok(guard) => guard,
            // A panic went through a region before; it left nothing behind.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return work(0),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is followed by joined workers
        // only, and `close` below returns only when none is left or can join; it is
        // reached however `work` ends, as its panics are caught.
        let work_ptr =
            unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: the region is closed, nobody has joined, and `_region` keeps other
        // callers out.
        unsafe { *shared.work.get() = Some(work_ptr) };
        self.open(useful);
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        self.close();
        let panic = lock(&shared.panic).take();
        if let Some(payload) = own.err().or(panic) {
            resume_unwind(payload);
        }
    }

    /// Lets workers join and wakes those that sleep.
    fn open(&self, useful: usize) {
        let shared = &*self.shared;
        let region = shared.state.load(Ordering::Relaxed) & !(REGION - 1);
        // Sequentially consistent, as is the look at `asleep`: a worker either sees
        // the region before it sleeps or is seen asleep here.
        shared.state.store(region.wrapping_add(REGION) | OPEN, Ordering::SeqCst);
        let sleepers = self.workers.iter().zip(&shared.asleep).take(useful.saturating_sub(1));
        for (worker, asleep) in sleepers {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Lets no more workers join and waits for those that did.
    fn close(&self) {
        let shared = &*self.shared;
        let mut state = shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waiting = Waiting::new(self.spin);
        while state & JOINED != 0 {
            if waiting.pause() {
                *lock(&shared.caller) = Some(thread::current());
                loop {
                    // Anew each time: the last worker of the region before may be late
                    // to look, and take the mark that is meant for this region.
                    shared.caller_sleeps.store(true, Ordering::SeqCst);
                    if shared.state.load(Ordering::SeqCst) & JOINED == 0 {
                        break;
                    }
                    thread::park();
                }
                shared.caller_sleeps.store(false, Ordering::Relaxed);
            }
            state = shared.state.load(Ordering::Acquire);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        let threads = self.shared.asleep.len() + 1;
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its work and has no others.
            let ended = worker.join();
            debug_assert!(ended.is_ok(), "a worker's own loop panicked");
        }
        THREADS.fetch_sub(threads, Ordering::Relaxed);
    }
}

impl Shared {
    /// What worker `thread` does for all its life.
    fn serve(&self, thread: usize, spin: Duration) {
        // Number of the last region that this worker joined.
        let mut last = 0;
        let mut waiting = Waiting::new(spin);
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & STOP != 0 {
                return;
            }
            if self.is_new(state, last) {
                if self.join(state) {
                    last = state / REGION;
                    self.take_part(thread);
                    waiting = Waiting::new(spin);
                }
            } else if waiting.pause() {
                self.sleep(thread, last);
                waiting = Waiting::new(spin);
            }
        }
    }

    /// Whether `state` is an open region other than `last`.
    fn is_new(&self, state: u64, last: u64) -> bool {
        state & OPEN != 0 && state / REGION != last
    }

    /// Joins the region of `state`, unless the state is another by now.
    fn join(&self, state: u64) -> bool {
        self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Does the work of the region that this worker has joined, and leaves it.
    fn take_part(&self, thread: usize) {
        // SAFETY: this worker has joined, so the caller neither writes the pointer nor
        // returns from the call that keeps the work alive.
        let work = unsafe { (*self.work.get()).map(|work| &*work) };
        if let Some(work) = work
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(thread)))
        {
            lock(&self.panic).get_or_insert(payload);
        }
        let state = self.state.fetch_sub(1, Ordering::SeqCst) - 1;
        // From here on the work may be gone.
        if state & (JOINED | OPEN) == 0
            && self.caller_sleeps.swap(false, Ordering::SeqCst)
            && let Some(caller) = &*lock(&self.caller)
        {
            caller.unpark();
        }
    }

    /// Sleeps until a region is opened that this worker has not joined.
    fn sleep(&self, thread: usize, last: u64) {
        let asleep = &self.asleep[thread - 1];
        asleep.store(true, Ordering::SeqCst);
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & STOP != 0 || self.is_new(state, last) || !asleep.load(Ordering::SeqCst) {
                break;
            }
            thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }
}

/// Locks; the data behind these locks is whole whatever panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bounded spin.
struct Waiting {
    spin: Duration,
    since: Option<Instant>,
    pauses: usize,
}

impl Waiting {
    fn new(spin: Duration) -> Self {
        Self { spin, since: None, pauses: 0 }
    }

    /// Pauses for a moment; whether it is time to sleep instead.
    fn pause(&mut self) -> bool {
        std::hint::spin_loop();
        self.pauses += 1;
        if !self.pauses.is_multiple_of(PAUSES) {
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.spin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what each task saw, through the same hand-out as kernels use.
    fn sum(pool: &Pool, tasks: usize) -> usize {
        let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(tasks, &|thread| {
            assert!(thread < pool.threads());
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                sum.fetch_add(task + 1, Ordering::Relaxed);
            }
        });
        sum.into_inner()
    }

    #[test]
    fn regions_follow_each_other_and_sleep_between() {
        for threads in [1, 2, 5, 64] {
            let pool = Pool::new(threads).unwrap();
            for round in 0..300 {
                assert_eq!(sum(&pool, 20), 210);
                if round % 100 == 0 {
                    // Long enough for every worker to sleep.
                    thread::sleep(4 * SPIN);
                }
            }
        }
    }

    #[test]
    fn every_worker_can_join_a_region_that_lasts() {
        let threads = 4;
        let pool = Pool::new(threads).unwrap();
        let came = AtomicUsize::new(0);
        // Ends only when all threads are in the region at once, and finds the caller
        // asleep when the last one leaves.
        pool.run(threads, &|thread| {
            came.fetch_add(1, Ordering::SeqCst);
            while came.load(Ordering::SeqCst) < threads {
                thread::yield_now();
            }
            if thread != 0 {
                thread::sleep(4 * SPIN);
            }
        });
        assert_eq!(came.into_inner(), threads);
    }

    #[test]
    fn a_region_inside_a_region_runs_on_its_caller() {
        let pool = Pool::new(2).unwrap();
        let inner = AtomicUsize::new(0);
        pool.run(2, &|_| {
            assert_eq!(sum(&pool, 4), 10);
            inner.fetch_add(1, Ordering::Relaxed);
        });
        assert!(inner.into_inner() >= 1);
    }

    #[test]
    fn pools_work_side_by_side() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let pool = Pool::new(3).unwrap();
                    (0..200).for_each(|_| assert_eq!(sum(&pool, 8), 36));
                });
            }
        });
    }

    #[test]
    fn two_callers_of_one_pool_both_finish() {
        let pool = Pool::new(2).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..500).for_each(|_| assert_eq!(sum(&pool, 8), 36)));
            }
        });
    }

    /// The message of the panic that `thread` raises in a region of two threads.
    fn panic_of(pool: &Pool, panics: usize) -> String {
        let came = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|thread| {
                came.fetch_add(1, Ordering::SeqCst);
                while came.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                assert!(thread != panics, "thread {thread} fails");
            });
        }));
        *result.unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn a_panic_on_any_thread_reaches_the_caller() {
        let pool = Pool::new(2).unwrap();
        for thread in [0, 1] {
            assert_eq!(panic_of(&pool, thread), format!("thread {thread} fails"));
            // The pool is as good as new.
            assert_eq!(sum(&pool, 9), 45);
        }
    }
}
