//! Host memory laid out by a plan, and the frame in which an executor runs an operation.
//!
//! One [`Memory`] a rank holds one block a kind, allocated once at the planned size. A [`Frame`] joins a program, its
//! plan and the memory: through it executors read and write buffers, limited to live rows.

mod block;
mod executor;
mod frame;
mod memory;

pub use executor::{ExecError, Executor, Kernel};
pub use frame::{Elems, Frame};
pub use memory::{AllocError, Memory};
