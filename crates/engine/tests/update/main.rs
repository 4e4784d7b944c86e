//! Whole updates on every topology: log-probs, gradients, norm, moments and weights after each update are the bytes of
//! one rank, for TP × CP × DP, accumulation, LoRA and full training.

#[path = "../common/mod.rs"]
mod common;
mod halves;
mod model;
mod same;
mod traffic;
