//! The update: gradient norm, clipping, AdamW.

use crate::error::EngineError;
use crate::run::Engine;
use program::buffer::Live;
use program::ops::exact_sum_from_u32;

/// Settings of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Largest gradient norm; larger gradients are scaled to it. 0 for no limit.
    pub max_grad_norm: f32,
}

/// What an update found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateReport {
    /// Norm of all gradients, before clipping.
    pub grad_norm: f32,
    /// What gradients were multiplied by.
    pub grad_scale: f32,
}

impl Engine<'_> {
    /// Updates every trained parameter from the gradients of the step's micro-batches; `step` counts from 1. All ranks
    /// must update together.
    ///
    /// # Errors
    /// A norm that is not finite: then nothing was updated, on any rank.
    pub fn update(&mut self, hyper: &Hyper, step: u64) -> Result<UpdateReport, EngineError> {
        let live = Live { micro_batches: self.micro_batches, ..Live::default() };
        let compiled =
            self.blueprint.optimizer.as_ref().ok_or(EngineError::NotPlanned("training"))?;
        let (norm_ops, all_ops) = (compiled.program.forward_ops, compiled.program.ops.len());
        self.run_planned(|b| &b.optimizer, live, Some(0..norm_ops))?;
        let store = &self.blueprint.store;
        let places = store.grad_squares.zip(store.hyper);
        let (squares, scalars) = places.ok_or(EngineError::NotPlanned("training"))?;
        let compiled =
            self.blueprint.optimizer.as_ref().ok_or(EngineError::NotPlanned("training"))?;
        let frame = self.frame(compiled, live);
        let squares = exact_sum_from_u32(&frame.load_u32(squares));
        let grad_norm = squares.map_err(|error| EngineError::NotASum(error.to_string()))?.norm();
        if !grad_norm.is_finite() {
            return Err(EngineError::NonFiniteGradient { norm: grad_norm });
        }
        let clips = hyper.max_grad_norm > 0.0 && grad_norm > hyper.max_grad_norm;
        let grad_scale = if clips { hyper.max_grad_norm / grad_norm } else { 1.0 };
        let correction = |beta: f32| (1.0 - canon::elementary::powi(f64::from(beta), step)) as f32;
        frame.store_f32(
            scalars,
            &[
                hyper.lr,
                hyper.beta1,
                hyper.beta2,
                hyper.eps,
                hyper.weight_decay,
                correction(hyper.beta1),
                correction(hyper.beta2),
                grad_scale,
            ],
        );
        self.run_planned(|b| &b.optimizer, live, Some(norm_ops..all_ops))?;
        self.note_new_weights();
        Ok(UpdateReport { grad_norm, grad_scale })
    }
}
