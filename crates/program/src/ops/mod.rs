//! The operations that an executor runs, one file each, named for the maths.
//!
//! Each operation states its shapes, its order of summation, what it reads and writes, and what it costs.
//! Backward rules are in [`crate::lower`], beside the forward emission of each node.

mod adamw;
mod add;
mod attention;
mod cache;
mod collective;
mod column_sum;
mod copy;
mod embed;
mod gate;
mod logprob;
mod matmul;
mod norm;
mod pick;
mod rope;

pub use adamw::{AdamW, EXACT_SUM_WORDS, SumSquares, exact_sum_from_u32, exact_sum_to_u32};
pub use add::{Add, AddRow};
pub use attention::{Attention, AttentionBackward, Keys, PAGE};
pub use cache::{CacheWrite, ELSEWHERE};
pub use collective::{Collective, CollectiveKind, Group};
pub use column_sum::{ColumnSum, FoldRows};
pub use copy::Copy;
pub use embed::{Embed, EmbedBackward};
pub use gate::{Activation, Gate, GateBackward};
pub use logprob::{
    LogProb, LogProbBackward, LogProbCombine, LogProbStats, Measures, Policy, VocabShard,
};
pub use matmul::{Init, MatMul, Operand, Term};
pub use norm::{Norm, NormBackward, NormWeightGrad};
pub use pick::PickRows;
pub use rope::{Rope, RopeTable};
