//! The same bits whatever is beside a sample and whatever computes it: alone, packed, in another order, in a larger
//! program, in chunks of any size, decoded one token at a time, on one thread or two, on every instruction set, and by
//! the oracle. One file a kind of step; `rig.rs` holds the models and the ways to compute.

#[path = "../common/mod.rs"]
mod common;

mod accumulation;
mod generation;
mod gradients;
mod policy;
mod rig;
mod scoring;
