//! Ranks and collectives: data movement and the tree, no floating-point all-reduce.
//!
//! [`Ranks`] runs one closure a rank, each on a thread of this process with its own memory, and gives it a [`Member`]:
//! its place in the topology and the means to carry out a [`program::ops::Collective`] with the other ranks of a group,
//! or to exchange bytes of the host. [`World`] does the same for several topologies at once (training and rollout), each
//! rank a member of every one that is large enough.
//!
//! Ranks share nothing but what they publish: a collective copies the rank's live rows to the planned block for exchanges,
//! posts them, waits until every rank of the group has posted, and writes its result straight from the posted rows. The
//! only additions are those of the canon's tree, done by every rank in the same order on the same values.
//!
//! With the feature `mpi` the ranks of a world may be processes instead ([`World::run_process`]).
//!
//! A rank that fails, panics, stops early or calls another operation than its peers ends the run: every wait of every
//! other rank returns an error that names the rank and the operation. There is no time limit, and among threads no hang;
//! processes do not find ranks that wait for each other in different groups.

#![forbid(unsafe_code)]

mod collectives;
mod contribution;
mod error;
mod launch;
mod meeting;
mod member;
#[cfg(feature = "mpi")]
mod mpi;
mod ranks;
mod traffic;
mod transport;
mod world;

pub use error::{Cause, FabricError, RunError};
pub use launch::{Launched, launched};
pub use member::Member;
pub use ranks::{Ranks, World};
pub use traffic::{Movement, Traffic};
pub use world::Seat;
