//! What runs an operation.

use crate::frame::Frame;
use program::Op;
use std::fmt;

/// Runs operations of a program on host memory. Collectives are not an executor's: who drives ranks runs them.
pub trait Executor {
    /// Runs one operation.
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError>;

    /// Scratch bytes that an operation needs at the program's capacity.
    fn workspace_bytes(&self, op: &Op, program: &program::Program) -> usize;

    /// The kernel that the last operation took: the record of a run counts them as they ran.
    fn kernel(&self) -> Kernel {
        Kernel::default()
    }
}

/// How an operation was computed. It changes time and never a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// The instruction set or device; empty for plain code.
    pub device: &'static str,
    /// Which of several ways; empty where there is one.
    pub way: &'static str,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.device, self.way) {
            ("", "") => f.write_str("plain"),
            (device, "") => f.write_str(device),
            (device, way) => write!(f, "{device} {way}"),
        }
    }
}

/// An operation that could not be carried out on the values it was given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// A token id outside the vocabulary.
    #[error("row {row}: token id {id} is outside the vocabulary of {vocab}")]
    TokenOutsideVocabulary {
        /// Row of the micro-batch.
        row: usize,
        /// The id.
        id: u32,
        /// Words.
        vocab: usize,
    },
    /// An active target outside the vocabulary.
    #[error("row {row}: target {id} is outside the vocabulary of {vocab}")]
    TargetOutsideVocabulary {
        /// Row of the micro-batch.
        row: usize,
        /// The id.
        id: u32,
        /// Words.
        vocab: usize,
    },
    /// A log-prob that is not a number or infinite, at an active target.
    #[error(
        "row {row}: the log-prob of target {id} is {value}: a weight or an activation is not finite"
    )]
    NonFiniteLogProb {
        /// Row of the micro-batch.
        row: usize,
        /// The target.
        id: u32,
        /// The value.
        value: f32,
    },
    /// A target that the row's policy has dropped, by top-k or top-p.
    #[error(
        "row {row}: target {id} is not among the candidates kept for it: it was chosen by another policy"
    )]
    TargetNotKept {
        /// Row of the micro-batch.
        row: usize,
        /// The target.
        id: u32,
    },
    /// A row index or slot outside its buffer.
    #[error("{what} {index} is outside {limit} rows")]
    RowOutside {
        /// What indexed.
        what: &'static str,
        /// The index.
        index: usize,
        /// Rows there are.
        limit: usize,
    },
    /// The executor cannot run this operation.
    #[error("{op} cannot run here: {why}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// Why.
        why: &'static str,
    },
}
