//! Tests on files: right ones of every kind against the reference implementations, and wrong ones
//! of every kind.

mod adapters;
mod checkpoints;
mod configs;
mod exports;
mod fuzz;
mod gguf_attacks;
mod gguf_golden;
mod merged;
mod merging;
mod safetensors_attacks;
mod smollm2;
mod support;
