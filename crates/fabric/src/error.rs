//! What can go wrong between ranks.

use std::fmt;

/// A collective that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// Ranks called different operations at the same point, or one had none left.
    #[error(
        "ranks diverged: rank {rank} is at {operation}, rank {other} at {other_operation}; \
         every rank must run the same program on the same batch"
    )]
    Diverged {
        /// A rank.
        rank: usize,
        /// What it called.
        operation: String,
        /// Another rank of its group.
        other: usize,
        /// What that one called.
        other_operation: String,
    },
    /// Another rank failed, so this one's wait has ended.
    #[error("rank {rank} failed at {operation} ({message}) while this rank was at {during}")]
    PeerFailed {
        /// The rank that failed.
        rank: usize,
        /// What it was at.
        operation: String,
        /// Its error or panic message.
        message: String,
        /// What this rank was at.
        during: String,
    },
    /// A rank's contribution has another shape than the operation needs.
    #[error(
        "{operation}: rank {rank} gave {rows} rows of {cols}, {expected_rows} rows of {expected_cols} were expected; \
         check the live row counts of the ranks"
    )]
    Shape {
        /// The operation.
        operation: String,
        /// The rank.
        rank: usize,
        /// Rows given.
        rows: usize,
        /// Columns given.
        cols: usize,
        /// Rows expected.
        expected_rows: usize,
        /// Columns expected.
        expected_cols: usize,
    },
    /// The operation was made for another number of ranks.
    #[error("{operation} was lowered for {lowered} ranks and called by a group of {ranks}")]
    Degree {
        /// The operation.
        operation: String,
        /// Ranks it was made for.
        lowered: usize,
        /// Ranks there are.
        ranks: usize,
    },
    /// A token id that is in no rank's share of the vocabulary.
    #[error("{operation}: row {row}: token id {id} is outside the {rows} rows that ranks share")]
    NoOwner {
        /// The operation.
        operation: String,
        /// Row of the micro-batch.
        row: usize,
        /// The id.
        id: u32,
        /// Rows over all shares.
        rows: usize,
    },
    /// Ranks gave an operation of one name contents of different kinds.
    #[error(
        "{operation}: rank {rank} gave contents of another kind; every rank must run the same program"
    )]
    Contents {
        /// The operation.
        operation: String,
        /// The rank.
        rank: usize,
    },
    /// A rank's exact sum is no sum.
    #[error("{operation}: rank {rank} gave no exact sum: {reason}")]
    NotASum {
        /// The operation.
        operation: String,
        /// The rank.
        rank: usize,
        /// What is wrong.
        reason: String,
    },
    /// Not one part a rank.
    #[error("{operation}: {given} parts for {ranks} ranks; give one, possibly empty, for each")]
    Parts {
        /// The operation.
        operation: String,
        /// Parts given.
        given: usize,
        /// Ranks there are.
        ranks: usize,
    },
    /// A buffer that does not hold floats.
    #[error(
        "{operation}: buffer {buffer} does not hold floats; only float rows are moved between ranks"
    )]
    NotFloat {
        /// The operation.
        operation: String,
        /// The buffer's name.
        buffer: String,
    },
}

/// Why a run over ranks ended early: the first rank to fail.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed at {operation}: {cause}")]
pub struct RunError<E: fmt::Debug + fmt::Display> {
    /// The rank.
    pub rank: usize,
    /// What it was at.
    pub operation: String,
    /// What happened.
    pub cause: Cause<E>,
}

/// What ended a rank.
#[derive(Debug, thiserror::Error)]
pub enum Cause<E: fmt::Debug + fmt::Display> {
    /// It returned an error.
    #[error("{0}")]
    Error(E),
    /// It panicked.
    #[error("panic: {0}")]
    Panic(String),
    /// Its thread could not be started.
    #[error(
        "its thread could not be started: {0}; lower the degrees or raise the limit on threads"
    )]
    Start(std::io::Error),
    /// The processes of a launcher are not the ranks.
    #[error("{0}")]
    Launch(String),
    /// A collective failed and the rank went on as if it had not.
    #[error("{0} (the rank ignored it)")]
    Ignored(FabricError),
}
