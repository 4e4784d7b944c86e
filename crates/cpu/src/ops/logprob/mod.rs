//! Log-probability of chosen tokens: linear, soft-max and selection, in chunks.
//!
//! Active rows are gathered first, so inactive ones cost nothing. Then for each chunk
//! of active rows: one product makes the chunk's logits in the workspace, one pass
//! over blocks of rows that fit the second-level cache reads them for (max, Σexp) and
//! turns them into their own gradient where the coefficients are known, and one
//! product takes the gradient back to the input. No row of logits outlives its chunk.

mod block;
mod chunk;
mod combine;
mod gradient;
mod tiles;
mod truncate;

use arena::{ExecError, Frame};
use program::ops::{LogProb, LogProbBackward, LogProbStats, Measures};
use program::{BufferId, Program};

use super::{source, workspace};
use crate::bounds::Bounds;
use crate::context::{Context, Shared};
use block::{Chosen, Outcome, Rows, for_blocks};
use chunk::{Head, Want, Work, active_rows};
pub(crate) use combine::log_prob_combine;

/// A target that is none.
pub(super) const INACTIVE: u32 = u32::MAX;

/// `[max, Σexp, logit]` of a row without logits.
const NO_LOGITS: [f32; 3] = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];

/// The statistics of a row without logits.
fn no_logits(measures: Measures) -> impl Iterator<Item = f32> {
    let dot = measures.entropy.then_some(0.0);
    let full = measures.full.then_some(NO_LOGITS).into_iter().flatten();
    NO_LOGITS.into_iter().chain(dot).chain(full)
}

/// Live elements of a buffer that the operation reads and does not write.
fn read<'a>(frame: &Frame<'a>, id: BufferId) -> &'a [f32] {
    // SAFETY: as stated; the caller passes inputs only.
    unsafe { frame.f32(id) }
}

/// Target ids.
fn targets<'a>(frame: &Frame<'a>, id: BufferId) -> &'a [u32] {
    // SAFETY: targets are written by no operation here.
    unsafe { frame.u32(id) }
}

/// +0 in every row of `to` whose target is inactive.
fn clear_inactive(to: Shared<f32>, cols: usize, targets: &[u32]) {
    for (t, _) in targets.iter().enumerate().filter(|&(_, &target)| target == INACTIVE) {
        // SAFETY: the buffer has a row for every target.
        unsafe { to.get().add(t * cols).write_bytes(0, cols) };
    }
}

/// The first active row whose log-prob is not finite is an error; −∞ of a truncated policy
/// is that of a dropped target.
fn check_finite(
    logp: Shared<f32>,
    rows: &[u32],
    targets: &[u32],
    truncated: bool,
) -> Result<(), ExecError> {
    for &t in rows {
        // SAFETY: active rows are rows of the buffer.
        let value = unsafe { *logp.get().add(t as usize) };
        if !value.is_finite() {
            let (row, id) = (t as usize, targets[t as usize]);
            if truncated && value == f32::NEG_INFINITY {
                return Err(ExecError::TargetNotKept { row, id });
            }
            return Err(ExecError::NonFiniteLogProb { row, id, value });
        }
    }
    Ok(())
}

/// Log-probs and, with `grad`, the gradient of the input.
pub(crate) fn log_prob(
    context: &Context,
    op: &LogProb,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "LogProb";
    let head = Head::new(NAME, frame, op.x, op.weight, op.policy.scale, &op.shard);
    let targets = targets(frame, op.targets);
    let chosen = Chosen::new(frame, &op.policy);
    assert!(op.grad.is_none() || !chosen.truncated(), "a fused gradient is of every candidate");
    let out = |id| source(frame, id, targets.len());
    let (logp, lse, entropy) = (out(op.logp), op.lse.map(out), op.entropy.map(out));
    let full = op.full.map(|(logp, lse)| (out(logp), out(lse)));
    let grad = op
        .grad
        .map(|(coef, dx)| (read(frame, coef), source(frame, dx, targets.len() * head.hidden)));
    let want = Want { dx: grad.is_some(), ..Want::default() };
    let mut workspace = workspace(frame);
    let active = active_rows(NAME, targets, op.shard.vocab, &mut workspace)?;
    let mut work =
        Work::take(&head, (op.chunk, context.arithmetic()), targets.len(), want, workspace)?;
    let (full_logp, full_lse) = full.unzip();
    for to in [Some(logp), lse, entropy, full_logp, full_lse].into_iter().flatten() {
        clear_inactive(to, 1, targets);
    }
    if let Some((_, dx)) = grad {
        clear_inactive(dx, head.hidden, targets);
    }
    for index in active.chunks(work.chunk) {
        let rows = Rows { index, targets, chosen };
        work.compute_logits(context, &head, index)?;
        let coef = grad.map(|(coef, _)| coef);
        let outcome = Outcome::LogProbs { logp, lse, entropy, full, coef };
        for_blocks(context, work.rows_of_logits(), &op.shard, rows, outcome);
        check_finite(logp, index, targets, chosen.truncated())?;
        if let Some((_, dx)) = grad {
            work.input_gradient(context, &head, index, dx)?;
        }
    }
    Ok(())
}

/// Workspace of [`log_prob`].
pub(crate) fn log_prob_bytes(op: &LogProb, program: &Program, bounds: &Bounds) -> usize {
    let want = Want { dx: op.grad.is_some(), ..Want::default() };
    chunk::bytes(program, op.x, &op.shard, op.chunk, want, bounds)
}

/// (max, Σexp) of the rank's share and the target's logit, of active rows; the stats of no
/// logits in the others.
pub(crate) fn log_prob_stats(
    context: &Context,
    op: &LogProbStats,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "LogProbStats";
    let head = Head::new(NAME, frame, op.x, op.weight, op.policy.scale, &op.shard);
    let targets = targets(frame, op.targets);
    let chosen = Chosen::new(frame, &op.policy);
    let columns = op.measures.columns();
    let stats = source(frame, op.stats, targets.len() * columns);
    let mut workspace = workspace(frame);
    let active = active_rows(NAME, targets, op.shard.vocab, &mut workspace)?;
    let mut work = Work::take(
        &head,
        (op.chunk, context.arithmetic()),
        targets.len(),
        Want::default(),
        workspace,
    )?;
    for (t, _) in targets.iter().enumerate().filter(|&(_, &target)| target == INACTIVE) {
        for (column, value) in no_logits(op.measures).enumerate() {
            // SAFETY: the buffer has a row for every target.
            unsafe { stats.get().add(columns * t + column).write(value) };
        }
    }
    for index in active.chunks(work.chunk) {
        let rows = Rows { index, targets, chosen };
        work.compute_logits(context, &head, index)?;
        let outcome = Outcome::Stats { stats, measures: op.measures };
        for_blocks(context, work.rows_of_logits(), &op.shard, rows, outcome);
    }
    Ok(())
}

/// Workspace of [`log_prob_stats`].
pub(crate) fn log_prob_stats_bytes(op: &LogProbStats, program: &Program, bounds: &Bounds) -> usize {
    chunk::bytes(program, op.x, &op.shard, op.chunk, Want::default(), bounds)
}

/// Gradients of the input and of the head's share from coefficients.
pub(crate) fn log_prob_backward(
    context: &Context,
    op: &LogProbBackward,
    frame: &Frame<'_>,
) -> Result<(), ExecError> {
    const NAME: &str = "LogProbBackward";
    let head = Head::new(NAME, frame, op.x, op.weight, op.policy.scale, &op.shard);
    let targets = targets(frame, op.targets);
    let (lse, coef) = (read(frame, op.lse), read(frame, op.coef));
    let chosen = Chosen::new(frame, &op.policy);
    let pair = |ids: Option<(BufferId, BufferId)>| {
        ids.map(|(value, coef)| (read(frame, value), read(frame, coef)))
    };
    let (entropy, full) = (pair(op.entropy), pair(op.full));
    assert!(lse.len() == targets.len() && coef.len() == targets.len(), "one value a target");
    let dx = op.dx.map(|dx| source(frame, dx, targets.len() * head.hidden));
    let want = Want { dx: op.dx.is_some(), dw: op.dw.is_some() };
    let mut workspace = workspace(frame);
    let active = active_rows(NAME, targets, op.shard.vocab, &mut workspace)?;
    let mut work =
        Work::take(&head, (op.chunk, context.arithmetic()), targets.len(), want, workspace)?;
    if let Some(dx) = dx {
        clear_inactive(dx, head.hidden, targets);
    }
    // SAFETY: the gradient is no operand, and this is its only user.
    let mut dw = op.dw.map(|dw| unsafe { frame.f32_mut(dw) });
    if let Some(dw) = &mut dw
        && active.is_empty()
    {
        dw.fill(0.0);
    }
    for (number, index) in active.chunks(work.chunk).enumerate() {
        let rows = Rows { index, targets, chosen };
        work.compute_logits(context, &head, index)?;
        let outcome = Outcome::Gradient { lse, coef, entropy, full };
        for_blocks(context, work.rows_of_logits(), &op.shard, rows, outcome);
        if let Some(dx) = dx {
            work.input_gradient(context, &head, index, dx)?;
        }
        if let Some(dw) = &mut dw {
            work.weight_gradient(context, &head, index.len(), dw, number == 0)?;
        }
    }
    Ok(())
}

/// Workspace of [`log_prob_backward`].
pub(crate) fn log_prob_backward_bytes(
    op: &LogProbBackward,
    program: &Program,
    bounds: &Bounds,
) -> usize {
    let want = Want { dx: op.dx.is_some(), dw: op.dw.is_some() };
    chunk::bytes(program, op.x, &op.shard, op.chunk, want, bounds)
}
