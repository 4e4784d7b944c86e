//! Scoring and the training step of one micro-batch.

use crate::batch::MicroBatch;
use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::run::Engine;
use program::buffer::Live;
use program::{Plan, lower};

impl Engine<'_> {
    /// Log-prob of every token's target on this rank's tokens, +0 where inactive. Forward only.
    ///
    /// # Errors
    /// A micro-batch over the planned capacity, ids or targets outside the vocabulary, a log-prob that is not finite.
    pub fn score(&mut self, batch: &MicroBatch) -> Result<Vec<f32>, EngineError> {
        let live = self.write_inputs(|b| &b.score, batch)?;
        self.run_planned(|b| &b.score, live, None)?;
        self.read_logp(|b| &b.score, live)
    }

    /// Runs one logical micro-batch forward and backward, `index` of the `total` of this optimizer step, whose gradients
    /// are added by the canon's tree. Coefficients come with the batch. Returns log-probs as [`Engine::score`] does.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn train_micro_batch(
        &mut self,
        batch: &MicroBatch,
        index: usize,
        total: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let planned = self.blueprint.job.train.map_or(0, |t| t.accumulation);
        if index >= total || total > planned {
            return Err(EngineError::NotPlanned("so many micro-batches in a step"));
        }
        let live = self.write_inputs(|b| &b.train, batch)?;
        self.run_planned(|b| &b.train, live, None)?;
        let logp = self.read_logp(|b| &b.train, live)?;
        if total > 1 {
            let program = lower::accumulate(&self.blueprint.store, index, total);
            let plan = Plan::new(&self.blueprint.store, &program, 0);
            self.run_stored(&Compiled { program, plan, segments: 0 })?;
        }
        Ok(logp)
    }

    fn write_inputs(
        &mut self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        batch: &MicroBatch,
    ) -> Result<Live, EngineError> {
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        for sequence in &batch.sequences {
            if sequence.ids.is_empty() {
                return Err(EngineError::Empty);
            }
            self.check_length(sequence.ids.len())?;
        }
        let store = &self.blueprint.store;
        let (tokens, segments) = (compiled.program.tokens, compiled.segments);
        let inputs = batch.inputs(&store.topology, store.rank, tokens, segments)?;
        let frame = self.frame(compiled, inputs.live);
        let io = &compiled.program.io;
        let u32_input = |id: Option<program::BufferId>, values: &[u32]| {
            if let Some(id) = id {
                frame.store_u32(id, values);
            }
        };
        u32_input(io.ids, &inputs.ids);
        u32_input(io.positions, &inputs.positions);
        u32_input(io.targets, &inputs.targets);
        u32_input(io.segments, &inputs.segments);
        if io.all_segments != io.segments {
            u32_input(io.all_segments, &inputs.all_segments);
        }
        if let Some(id) = io.coef {
            assert_eq!(inputs.coef.len(), inputs.ids.len(), "training takes a coefficient a token");
            frame.store_f32(id, &inputs.coef);
        }
        if store.topology.cp > 1 {
            u32_input(io.all_ids, &batch.all_ids());
            u32_input(io.all_targets, &batch.all_targets());
            if let Some(id) = io.all_coef {
                frame.store_f32(id, &batch.all_coef());
            }
        }
        Ok(inputs.live)
    }

    /// Refuses a sequence with positions that the model was not made for.
    pub(crate) fn check_length(&self, length: usize) -> Result<(), EngineError> {
        let limit = self.graph.max_positions;
        if length <= limit {
            return Ok(());
        }
        let what = "the model's context (max_position_embeddings)";
        Err(EngineError::TooLong { length, limit, what })
    }

    fn read_logp(
        &self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        live: Live,
    ) -> Result<Vec<f32>, EngineError> {
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        let logp = compiled.program.io.logp.ok_or(EngineError::NotPlanned("log-probs"))?;
        Ok(self.frame(compiled, live).load_f32(logp))
    }
}
