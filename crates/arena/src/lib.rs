//! Host memory laid out by a plan, and the frame in which an executor runs an operation.
//!
//! One [`Memory`] a rank holds one block a kind, allocated once at the planned size, under the ceiling of an
//! [`Account`] that memories may share; blocks can be released and restored. A [`Frame`] joins a program, its
//! plan and the memory: through it executors read and write buffers, limited to live rows. What other ranks are to read is
//! copied to the block of its kind and [`Published`].

mod account;
mod block;
mod executor;
mod frame;
mod memory;
mod staging;

pub use account::Account;
pub use executor::{ExecError, Executor, Kernel};
pub use frame::{Elems, Frame};
pub use memory::{AllocError, Memory};
pub use staging::Published;
