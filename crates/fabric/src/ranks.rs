//! One thread a rank.

use crate::error::{Cause, RunError};
use crate::meeting::Meeting;
use crate::member::Member;
use crate::world::Seat;
use program::Topology;
use std::any::Any;
use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// The ranks of a topology as threads of this process.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    topology: Topology,
}

impl Ranks {
    /// Ranks of a topology that passed its check.
    pub fn new(topology: Topology) -> Ranks {
        Ranks { topology }
    }

    /// Runs `body` once a rank, all at the same time, and gives what they return in rank order.
    ///
    /// # Errors
    /// The first rank to fail, with what it was at: an error it returned, a panic, or a collective that the ranks did
    /// not call alike. All ranks have ended when this returns.
    pub fn run<T, E>(
        &self,
        body: impl Fn(&mut Member<'_>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, RunError<E>>
    where
        T: Send,
        E: Debug + Display + Send,
    {
        World::new(&[self.topology]).run(|seat| {
            let mut member = seat.member(0).expect("every rank is one of the only topology");
            body(&mut member)
        })
    }
}

/// The ranks of several topologies as threads of this process: rank `i` of each is thread `i`, and there are as many as
/// the largest topology has. A failure in any ends every wait in all.
#[derive(Clone, Debug)]
pub struct World {
    topologies: Vec<Topology>,
}

/// How a rank's closure ended.
type End<T, E> = Result<T, (String, Cause<E>)>;

impl World {
    /// A world of topologies that passed their check.
    pub fn new(topologies: &[Topology]) -> World {
        World { topologies: topologies.to_vec() }
    }

    /// The topologies, and the world as data ranks.
    fn spaces(&self) -> Vec<Topology> {
        let world = Topology { tp: 1, cp: 1, dp: self.size(), width: 1 };
        self.topologies.iter().copied().chain([world]).collect()
    }

    /// Runs `body` as the one rank that this process is among those of its launcher ([`crate::launched`]): each process
    /// runs one, and gets its own value.
    ///
    /// # Errors
    /// As [`World::run`], for this rank; another number of processes than ranks; a build without MPI.
    pub fn run_process<T, E: Debug + Display>(
        &self,
        body: impl FnOnce(&mut Seat<'_>) -> Result<T, E>,
    ) -> Result<T, RunError<E>> {
        #[cfg(feature = "mpi")]
        return crate::mpi::run(self.spaces(), body);
        #[cfg(not(feature = "mpi"))]
        {
            let _ = body;
            let launched = crate::launched();
            Err(RunError {
                rank: launched.map_or(0, |launched| launched.rank),
                operation: "its start".into(),
                cause: Cause::Launch(format!(
                    "{} processes were started by a launcher, and this build has no MPI: build with --features mpi, or \
                     start one process, whose ranks are threads",
                    launched.map_or(1, |launched| launched.processes)
                )),
            })
        }
    }

    /// Ranks of the world.
    pub fn size(&self) -> usize {
        self.topologies.iter().map(Topology::ranks).max().unwrap_or(0)
    }

    /// Runs `body` once a rank of the world, as [`Ranks::run`] does.
    ///
    /// # Errors
    /// As [`Ranks::run`].
    pub fn run<T, E>(
        &self,
        body: impl Fn(&mut Seat<'_>) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, RunError<E>>
    where
        T: Send,
        E: Debug + Display + Send,
    {
        let meeting = Meeting::new(self.spaces());
        let ends: Vec<End<T, E>> = thread::scope(|scope| {
            let (meeting, body) = (&meeting, &body);
            let threads: Vec<_> = (0..self.size())
                .map(|rank| {
                    let name = format!("rank {rank}");
                    let run = move || run_rank(meeting, rank, body);
                    let thread = thread::Builder::new().name(name).spawn_scoped(scope, run);
                    if let Err(error) = &thread {
                        meeting.fail(rank, format!("its thread could not be started: {error}"));
                    }
                    thread
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| {
                        Err(("its end".into(), Cause::Panic(panic_message(panic.as_ref()))))
                    }),
                    Err(error) => Err(("its start".into(), Cause::Start(error))),
                })
                .collect()
        });
        verdict(&meeting, ends)
    }
}

fn run_rank<T, E: Debug + Display>(
    meeting: &Meeting,
    rank: usize,
    body: &(impl Fn(&mut Seat<'_>) -> Result<T, E> + Sync),
) -> End<T, E> {
    let mut seat = Seat::new(meeting, rank);
    match catch_unwind(AssertUnwindSafe(|| body(&mut seat))) {
        Ok(Ok(value)) => {
            meeting.end(rank);
            Ok(value)
        }
        Ok(Err(error)) => Err((meeting.fail(rank, error.to_string()), Cause::Error(error))),
        Err(panic) => {
            let message = panic_message(panic.as_ref());
            Err((meeting.fail(rank, format!("panic: {message}")), Cause::Panic(message)))
        }
    }
}

/// Every rank's value, or the failure that came first: errors of other ranks are its consequences.
fn verdict<T, E: Debug + Display>(
    meeting: &Meeting,
    ends: Vec<End<T, E>>,
) -> Result<Vec<T>, RunError<E>> {
    let Some(fault) = meeting.fault() else {
        return ends
            .into_iter()
            .enumerate()
            .map(|(rank, end)| {
                end.map_err(|(operation, cause)| RunError { rank, operation, cause })
            })
            .collect();
    };
    let rank = fault.rank;
    match ends.into_iter().nth(rank) {
        Some(Err((operation, cause))) => Err(RunError { rank, operation, cause }),
        _ => {
            let operation = "a collective".into();
            Err(RunError { rank, operation, cause: Cause::Ignored(fault.error) })
        }
    }
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is not text".into())
}
