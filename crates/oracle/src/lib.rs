//! A slow, plain executor of every operation: the canon as code.
//!
//! Each operation is one small file under `ops`, of the name it has in [`program::ops`], written as its order of
//! operations reads: no vectors, no threads, no tiles, no unsafe code, and copies of whole buffers in and out. A faster
//! executor of the same profile must leave the same bytes in every buffer.
//!
//! Collectives belong to who drives the ranks; the oracle refuses them.

#![forbid(unsafe_code)]

mod lanes;
mod matrix;
mod ops;
mod precision;

pub use precision::Precision;

use arena::{ExecError, Executor, Frame};
use program::{Op, Program};

/// The executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oracle {
    precision: Precision,
}

impl Oracle {
    /// An executor of one arithmetic profile.
    pub fn new(precision: Precision) -> Oracle {
        Oracle { precision }
    }
}

impl Executor for Oracle {
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError> {
        let precision = self.precision;
        match op {
            Op::Embed(o) => ops::embed(o, frame)?,
            Op::EmbedBackward(o) => ops::embed_backward(o, frame)?,
            Op::Norm(o) => ops::norm(o, frame),
            Op::NormBackward(o) => ops::norm_backward(o, frame),
            Op::NormWeightGrad(o) => ops::norm_weight_grad(o, frame),
            Op::MatMul(o) => ops::matmul(o, frame, precision),
            Op::RopeTable(o) => ops::rope_table(o, frame),
            Op::Rope(o) => ops::rope(o, frame),
            Op::Attention(o) => ops::attention(o, frame)?,
            Op::AttentionBackward(o) => ops::attention_backward(o, frame)?,
            Op::Gate(o) => ops::gate(o, frame),
            Op::GateBackward(o) => ops::gate_backward(o, frame),
            Op::Add(o) => ops::add(o, frame),
            Op::AddRow(o) => ops::add_row(o, frame),
            Op::Copy(o) => ops::copy(o, frame)?,
            Op::ColumnSum(o) => ops::column_sum(o, frame),
            Op::FoldRows(o) => ops::fold_rows(o, frame),
            Op::PickRows(o) => ops::pick_rows(o, frame)?,
            Op::CacheWrite(o) => ops::cache_write(o, frame)?,
            Op::LogProb(o) => ops::log_prob(o, frame, precision)?,
            Op::LogProbStats(o) => ops::log_prob_stats(o, frame, precision)?,
            Op::LogProbCombine(o) => ops::log_prob_combine(o, frame)?,
            Op::LogProbBackward(o) => ops::log_prob_backward(o, frame, precision)?,
            Op::AdamW(o) => ops::adamw(o, frame),
            Op::SumSquares(o) => ops::sum_squares(o, frame),
            Op::Collective(_) => {
                return Err(ExecError::Unsupported {
                    op: op.name(),
                    why: "a collective takes several ranks: the fabric that joins them runs it",
                });
            }
        }
        Ok(())
    }

    /// The oracle allocates as it goes and plans no scratch memory.
    fn workspace_bytes(&self, _op: &Op, _program: &Program) -> usize {
        0
    }
}
