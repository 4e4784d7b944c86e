//! One micro-batch through the training step with another choice of what to keep, in the memory that the engine has:
//! shows that the choice changes no bit, before a run depends on it.

use crate::batch::MicroBatch;
use crate::blueprint::{Compiled, head_chunk};
use crate::error::EngineError;
use crate::run::Engine;
use program::Plan;
use program::keep::Keep;
use program::lower::{self, Mode, Options};

impl Engine<'_> {
    /// Runs a micro-batch forward and backward as [`Engine::train_micro_batch`] runs the only one of a step, by a program
    /// planned for its very shape and for `keep`. Returns its log-probs, or `None` where that program does not fit in the
    /// memory of the one that the engine was planned for, on some rank. All ranks must probe together.
    ///
    /// # Errors
    /// As [`Engine::train_micro_batch`].
    pub fn probe(
        &mut self,
        batch: &MicroBatch,
        keep: Keep,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let train = self.blueprint.job.train.ok_or(EngineError::NotPlanned("training"))?;
        let options = Options {
            mode: Mode::Train { coef_known: train.coef_known },
            tokens: batch.tokens(),
            segments: batch.sequences.len(),
            chunk: head_chunk(self.graph.vocab),
            head: self.blueprint.job.head,
            adapters: true,
            keep: keep.set(&self.graph),
        };
        let program = lower::lower(&self.graph, &self.blueprint.store, &options);
        let scratch = program.ops.iter().map(|op| self.workspace_bytes(op, &program)).max();
        let plan = Plan::new(&self.blueprint.store, &program, scratch.unwrap_or(0));
        let has = self.ledger();
        let fits = plan.ledger.rows().all(|(kind, bytes)| bytes <= has.bytes(kind));
        // Ranks hold different amounts, and all run it or none.
        if self.of_ranks("whether the probed step fits", fits.into())?.contains(&0) {
            return Ok(None);
        }
        let segments = options.segments;
        let own = self.blueprint.train.replace(Compiled { program, plan, segments });
        let logp = self.train_micro_batch(batch, 0, 1);
        self.blueprint.train = own;
        logp.map(Some)
    }
}
