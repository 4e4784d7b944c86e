//! A training or inference step as a program: a flat list of coarse operations over named, typed, shaped buffers.
//!
//! A model family describes a [`Graph`]: nodes over symbolic values, free of device, parallelism and memory.
//! [`lower`] turns a graph into a [`Program`] for one rank of a [`Topology`]: forward, backward, decode, optimizer.
//! Everything else reads that list: [`plan`] lays its buffers in arenas, [`cost`] counts its work, an executor runs it,
//! [`listing`] prints it.
//!
//! This crate does no I/O, holds no weights and knows no device.

pub mod buffer;
pub mod cost;
pub mod graph;
pub mod keep;
pub mod ledger;
pub mod listing;
pub mod lower;
pub mod op;
pub mod ops;
pub mod plan;
pub mod store;
pub mod topology;

pub use buffer::{Axis, Buffer, BufferId, DType, Kind};
pub use graph::{Graph, Node, ParamId, ValueId};
pub use ledger::{Lease, Ledger};
pub use plan::Plan;

pub use lower::{Mode, Program};
pub use op::Op;

pub use store::Store;
pub use topology::{Cut, Rank, Topology};
