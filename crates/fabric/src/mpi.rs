//! Ranks as processes that `mpirun` or `srun` started, on one host or many.
//!
//! Messages go from rank to rank with the name of their operation, so ranks of one group that diverge find it. Ranks that
//! wait for each other in *different* groups wait until the launcher's own limit: a process sees its own messages only. A
//! process that ends with an error or a panic ends without finalising MPI, and one that is killed cannot: either way the
//! launcher ends all the others.

use crate::contribution::{Contribution, Rows, Values};
use crate::error::{Cause, FabricError, RunError};
use crate::ranks::panic_message;
use crate::transport::{Circle, Transport};
use crate::world::Seat;
use ::mpi::environment::Universe;
use ::mpi::request;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, Source};
use program::Topology;
use program::topology::Rank;
use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a rank that is done tells those that may wait for it.
const END: &str = "the end of its program";

/// Messages between processes.
struct Processes {
    spaces: Vec<Topology>,
    world: SimpleCommunicator,
    operation: RefCell<String>,
}

/// Runs `body` as the rank of this process in a world of topologies, whose ranks are the processes.
///
/// # Errors
/// The rank's own failure, ranks that diverge, a number of processes that is not the world's, no MPI.
pub(crate) fn run<T, E: Debug + Display>(
    spaces: Vec<Topology>,
    body: impl FnOnce(&mut Seat<'_>) -> Result<T, E>,
) -> Result<T, RunError<E>> {
    let ranks = spaces.last().map_or(0, Topology::ranks);
    let refuse = |reason: String| RunError {
        rank: crate::launched().map_or(0, |launched| launched.rank),
        operation: "its start".into(),
        cause: Cause::Launch(reason),
    };
    let universe = ::mpi::initialize().ok_or_else(|| refuse("MPI does not start".into()))?;
    let world = universe.world();
    if world.size() as usize != ranks {
        let processes = world.size();
        return Err(leave(
            universe,
            refuse(format!(
                "{processes} processes were started and the topologies have {ranks} ranks; start {ranks}"
            )),
        ));
    }
    let rank = world.rank() as usize;
    let operation = RefCell::new("its first operation".to_string());
    let processes = Processes { spaces, world, operation };
    // A panic that unwound through here would finalise MPI, which waits for ranks that wait for this one.
    let result = catch_unwind(AssertUnwindSafe(|| body(&mut Seat::new(&processes, rank))));
    let operation = processes.operation.borrow().clone();
    let failed = |cause| RunError { rank, operation: operation.clone(), cause };
    match result {
        Err(panic) => Err(leave(universe, failed(Cause::Panic(panic_message(panic.as_ref()))))),
        Ok(Err(error)) => Err(leave(universe, failed(Cause::Error(error)))),
        Ok(Ok(value)) => match processes.end(rank) {
            Ok(()) => Ok(value),
            Err(error) => Err(leave(universe, failed(Cause::Ignored(error)))),
        },
    }
}

/// Ends without finalising, so that the launcher ends the others too; they may wait for this one.
fn leave<E>(universe: Universe, error: E) -> E {
    std::mem::forget(universe);
    error
}

impl Processes {
    /// Tells every other rank that this one is done, and hears it from them.
    fn end(&self, rank: usize) -> Result<(), FabricError> {
        let space = self.spaces.len() - 1;
        let circle = Circle { space, group: program::ops::Group::All, first: 0 };
        self.exchange(circle, rank, END, Contribution::Bytes(Vec::new())).map(|_| ())
    }
}

impl Transport for Processes {
    fn spaces(&self) -> &[Topology] {
        &self.spaces
    }

    fn exchange(
        &self,
        circle: Circle,
        rank: usize,
        operation: &str,
        contribution: Contribution,
    ) -> Result<Vec<Arc<Contribution>>, FabricError> {
        let topology = &self.spaces[circle.space];
        let in_circle = |&other: &usize| {
            circle.group.first(Rank::of(other, topology), topology) == circle.first
        };
        let members: Vec<usize> = (0..topology.ranks()).filter(in_circle).collect();
        let sent: Vec<Vec<u8>> = members
            .iter()
            .enumerate()
            .map(|(place, _)| message(operation, &contribution, place))
            .collect();
        let mut received: Vec<Vec<u8>> = Vec::new();
        request::scope(|scope| {
            let sends: Vec<_> = members
                .iter()
                .zip(&sent)
                .filter(|(other, _)| **other != rank)
                .flat_map(|(other, message)| message.chunks(PART).map(move |part| (other, part)))
                .map(|(other, part)| {
                    let process = self.world.process_at_rank(*other as i32);
                    process.immediate_send(scope, part)
                })
                .collect();
            for other in members.iter().filter(|other| **other != rank) {
                let process = self.world.process_at_rank(*other as i32);
                let mut message = process.receive_vec::<u8>().0;
                while message.len() < length(&message) {
                    message.extend(process.receive_vec::<u8>().0);
                }
                received.push(message);
            }
            sends.into_iter().for_each(|send| send.wait_without_status());
        });
        let mut received = received.into_iter();
        let mut all = Vec::with_capacity(members.len());
        for (place, &other) in members.iter().enumerate() {
            if other == rank {
                all.push(Arc::new(contribution.clone()));
                continue;
            }
            let message = received.next().unwrap_or_default();
            let mine = members.iter().position(|&member| member == rank).unwrap_or(0);
            let (theirs, given) = read(&message, mine, members.len()).ok_or_else(|| {
                FabricError::Contents { operation: operation.into(), rank: place }
            })?;
            if theirs != operation {
                let (operation, other_operation) = (operation.into(), theirs);
                return Err(FabricError::Diverged { rank, operation, other, other_operation });
            }
            all.push(Arc::new(given));
        }
        Ok(all)
    }

    fn refuse(&self, _rank: usize, _error: &FabricError) {
        // The error is this process's own: it ends with it, and the launcher ends the others.
    }

    fn entering(&self, _rank: usize, operation: &str) {
        operation.clone_into(&mut self.operation.borrow_mut());
    }
}

/// Kinds of contributions in messages.
const ROWS: u8 = 0;
const BYTES: u8 = 1;

/// Most bytes of one MPI message, whose count is an i32: longer ones go in parts, which arrive in order.
const PART: usize = 1 << 30;

/// Bytes of a whole message, which its first eight say.
fn length(first: &[u8]) -> usize {
    first.split_first_chunk::<8>().map_or(0, |(length, _)| u64::from_le_bytes(*length) as usize)
}

/// A contribution as bytes, for the rank at a place of the circle: length of all, length and name of the operation, kind,
/// contents.
fn message(operation: &str, contribution: &Contribution, place: usize) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend((operation.len() as u64).to_le_bytes());
    bytes.extend(operation.as_bytes());
    match contribution {
        Contribution::Rows(Rows { rows, cols, values }) => {
            bytes.push(ROWS);
            bytes.extend((*rows as u64).to_le_bytes());
            bytes.extend((*cols as u64).to_le_bytes());
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Contribution::Bytes(contents) => {
            bytes.push(BYTES);
            bytes.extend(contents);
        }
        Contribution::Parts(parts) => {
            bytes.push(BYTES + 1);
            bytes.extend(parts.get(place).into_iter().flatten());
        }
    }
    let length = bytes.len() as u64;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// What [`message`] wrote; of parts only this rank's, at `mine` of `ranks`.
fn read(bytes: &[u8], mine: usize, ranks: usize) -> Option<(String, Contribution)> {
    let (_, rest) = bytes.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (operation, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    let operation = String::from_utf8(operation.to_vec()).ok()?;
    let (&kind, rest) = rest.split_first()?;
    let contribution = match kind {
        ROWS => {
            let (rows, rest) = rest.split_first_chunk::<8>()?;
            let (cols, rest) = rest.split_first_chunk::<8>()?;
            let floats = rest.chunks_exact(4);
            Contribution::Rows(Rows {
                rows: u64::from_le_bytes(*rows) as usize,
                cols: u64::from_le_bytes(*cols) as usize,
                values: Values::Received(
                    floats.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                ),
            })
        }
        BYTES => Contribution::Bytes(rest.to_vec()),
        _ => {
            let mut parts = vec![Vec::new(); ranks];
            parts[mine] = rest.to_vec();
            Contribution::Parts(parts)
        }
    };
    Some((operation, contribution))
}
