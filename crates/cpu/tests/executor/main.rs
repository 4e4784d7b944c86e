//! The executor against the oracle: every byte of every buffer, on every instruction
//! set of the processor and on one and two threads.

mod attention;
mod elementwise;
mod logprob;
mod matmul;
mod policy;
mod rows;
mod support;
