//! The arithmetic contract as scalar code: what every executor computes, to the bit.
//!
//! Each function states its exact order of operations; the oracle executor calls
//! these functions, and a faster kernel must give their bits. Nothing here
//! depends on a mathematics library, a thread count or a topology, and nothing
//! outside the standard library is used.
//!
//! | module | holds |
//! |---|---|
//! | [`bf16_dot`] | products of pairs as the bf16 dot instruction forms them |
//! | [`tile_dot`] | products of runs of 32 as the bf16 tile instruction forms them |
//! | [`flush_to_zero`] | the operations of both: subnormals are zeros |
//! | [`elementary`] | `exp`, `ln`, `tanh`, `sigmoid`, `silu`, `sin_cos`, `pow` from basic IEEE operations |
//! | [`tree`] | the mid-split tree, subtrees owned by ranks, the streaming evaluator |
//! | [`leaves`] | cutting a dimension into the leaves of the width V |
//! | [`log_sum_exp`] | (max, sum of exponentials) pairs that combine in the tree |
//! | [`policy`] | temperature, kept sets of candidates, entropy sums |
//! | [`mean`](mod@mean) | the average of replicas |
//! | [`exact`] | the order-free sum of squares |
//! | [`random`] | counter-based random numbers |
//! | [`rounding`] | conversions to and from 16-bit floats |
//!
//! Fused multiply-add is `f32::mul_add`: exact on every target, an instruction
//! where the compiler may use one and a library call otherwise; [`fused`] runs a
//! function with the instruction.

pub mod bf16_dot;
pub mod elementary;
pub mod exact;
pub mod flush_to_zero;
mod fused;
pub mod leaves;
pub mod log_sum_exp;
pub mod mean;
pub mod policy;
pub mod random;
pub mod rounding;
pub mod tile_dot;
pub mod tree;

pub use elementary::{exp, ln, sigmoid, silu, sin_cos, tanh};
pub use fused::fused;
