//! The executor: operations of a program on this crate's kernels.

use arena::{ExecError, Executor, Frame, Kernel};
use program::{Op, Program};

use crate::bounds::Bounds;
use crate::context::{Arithmetic, Context, ContextError};
use crate::isa::Isa;
use crate::ops;

/// The arithmetic profile of products.
pub use crate::context::Arithmetic as Precision;

/// How an executor computes. Results depend on the precision only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads, at least 1.
    pub threads: usize,
    /// Arithmetic profile: `cpu-f32`, `cpu-bf16` or `cpu-bf16-tiles`.
    pub precision: Arithmetic,
    /// Instruction set; `None` for the one that [`Isa::detect`] finds.
    pub isa: Option<Isa>,
}

/// Runs every operation of a program but collectives, with the bytes of the oracle
/// executor on every instruction set and number of threads.
///
/// Kernels allocate nothing: what they need besides buffers is
/// [`Executor::workspace_bytes`].
pub struct Cpu {
    context: Context,
    bounds: Bounds,
    /// Of the last operation.
    kernel: Kernel,
}

impl Cpu {
    /// An executor with its own threads.
    ///
    /// # Errors
    /// [`ContextError`]: no threads, an instruction set that the processor lacks, or
    /// threads that the system refuses.
    pub fn new(settings: Settings) -> Result<Self, ContextError> {
        let isa = match settings.isa {
            Some(isa) => isa,
            None => Isa::detect()?,
        };
        let context = Context::new(isa, settings.precision, settings.threads)?;
        let bounds = Bounds::new(context.arithmetic(), context.threads());
        Ok(Self { context, bounds, kernel: Kernel::default() })
    }

    /// What the kernels run with.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Executor for Cpu {
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError> {
        let context = &self.context;
        match op {
            Op::Embed(o) => ops::embed(context, o, frame)?,
            Op::EmbedBackward(o) => ops::embed_backward(context, o, frame)?,
            Op::Norm(o) => ops::norm(context, o, frame)?,
            Op::NormBackward(o) => ops::norm_backward(context, o, frame)?,
            Op::NormWeightGrad(o) => ops::norm_weight_grad(context, o, frame)?,
            Op::MatMul(o) => ops::matmul(context, o, frame)?,
            Op::RopeTable(o) => ops::rope_table(context, o, frame),
            Op::Rope(o) => ops::rope(context, o, frame),
            Op::Attention(o) => ops::attention(context, o, frame)?,
            Op::AttentionBackward(o) => ops::attention_backward(context, o, frame)?,
            Op::Gate(o) => ops::gate(context, o, frame),
            Op::GateBackward(o) => ops::gate_backward(context, o, frame),
            Op::Add(o) => ops::add(context, o, frame),
            Op::AddRow(o) => ops::add_row(context, o, frame)?,
            Op::Copy(o) => ops::copy(context, o, frame)?,
            Op::ColumnSum(o) => ops::column_sum(context, o, frame),
            Op::FoldRows(o) => ops::fold_rows(context, o, frame),
            Op::PickRows(o) => ops::pick_rows(o, frame)?,
            Op::CacheWrite(o) => ops::cache_write(o, frame)?,
            Op::LogProb(o) => ops::log_prob(context, o, frame)?,
            Op::LogProbStats(o) => ops::log_prob_stats(context, o, frame)?,
            Op::LogProbCombine(o) => ops::log_prob_combine(o, frame)?,
            Op::LogProbBackward(o) => ops::log_prob_backward(context, o, frame)?,
            Op::AdamW(o) => ops::adamw(context, o, frame),
            Op::SumSquares(o) => ops::sum_squares(context, o, frame),
            Op::Collective(_) => {
                return Err(ExecError::Unsupported {
                    op: op.name(),
                    why: "a collective takes several ranks: the fabric that joins them runs it",
                });
            }
        }
        // An operation without products has one way.
        let (isa, way) = context.take_note().unwrap_or((context.isa(), ""));
        self.kernel = Kernel { device: isa.name(), way };
        Ok(())
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn workspace_bytes(&self, op: &Op, program: &Program) -> usize {
        let bounds = &self.bounds;
        match op {
            Op::MatMul(o) => ops::matmul_bytes(o, program, bounds),
            Op::Attention(o) => ops::attention_bytes(o, program, &self.context),
            Op::AttentionBackward(o) => ops::attention_backward_bytes(o, program, &self.context),
            Op::Norm(o) => ops::norm_bytes(o.weight, program),
            Op::NormBackward(o) => ops::norm_bytes(o.weight, program),
            Op::NormWeightGrad(o) => ops::norm_weight_grad_bytes(o, program),
            Op::AddRow(o) => ops::add_row_bytes(o, program),
            Op::LogProb(o) => ops::log_prob_bytes(o, program, bounds),
            Op::LogProbStats(o) => ops::log_prob_stats_bytes(o, program, bounds),
            Op::LogProbBackward(o) => ops::log_prob_backward_bytes(o, program, bounds),
            _ => 0,
        }
    }
}
