//! One command a file.

pub(crate) mod annotate;
pub(crate) mod bench;
pub(crate) mod bench_exchanges;
pub(crate) mod bench_topology;
pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod data;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod merge;
pub(crate) mod plan;
pub(crate) mod quickstart;
pub(crate) mod replay;
pub(crate) mod rl;
pub(crate) mod runs;
pub(crate) mod score;
pub(crate) mod shared;
pub(crate) mod show;
pub(crate) mod train;
pub(crate) mod verify;
