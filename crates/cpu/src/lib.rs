//! The fast CPU kernels: AVX-512, AVX2 and portable code with the same bits.
//!
//! Every kernel is defined by an order of IEEE 754 operations written in its
//! module, has a plain reference that follows it, and is tested against that
//! reference byte for byte on every instruction set of the processor and several
//! thread counts. Kernels allocate nothing: scratch memory is asked for beforehand
//! (`workspace_bytes`) and passed in.

pub mod attention;
pub mod bf16_dot;
mod bounds;
mod calibrate;
mod context;
mod executor;
mod faster;
mod isa;
pub mod matmul;
mod ops;
mod pool;
mod scratch;
mod simd;
mod tiles;
mod workspace;

pub use calibrate::{FMA_CHAINS, fma_chains, read_all};
pub use context::{Arithmetic, Context, ContextError};
pub use executor::{Cpu, Precision, Settings};
pub use faster::{NotChosen, Offers, WhyNot};
pub use isa::{ISA_VARIABLE, Isa, IsaError, has_native_bf16_dot};
pub use tiles::has_native_tiles;
