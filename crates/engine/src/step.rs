//! Scoring and the training step of one micro-batch.

use crate::batch::MicroBatch;
use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::run::Engine;
use canon::policy::Kept;
use program::buffer::Live;
use program::{Plan, lower};

/// What the head finds of this rank's tokens, +0 where inactive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenMeasures {
    /// Log-prob of each token's target.
    pub logp: Vec<f32>,
    /// The same over the whole vocabulary; absent where the head keeps every candidate and it is the same.
    pub full_logp: Option<Vec<f32>>,
    /// Entropy of what each target is chosen from, where the head finds it.
    pub entropy: Option<Vec<f32>>,
}

impl Engine<'_> {
    /// Log-prob of every token's target on this rank's tokens, +0 where inactive. Forward only.
    ///
    /// # Errors
    /// A micro-batch over the planned capacity, ids or targets outside the vocabulary, a log-prob that is not finite.
    pub fn score(&mut self, batch: &MicroBatch) -> Result<Vec<f32>, EngineError> {
        Ok(self.measure(batch)?.logp)
    }

    /// [`Engine::score`] with everything that the head finds.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn measure(&mut self, batch: &MicroBatch) -> Result<TokenMeasures, EngineError> {
        let live = self.write_inputs(|b| &b.score, batch)?;
        self.run_planned(|b| &b.score, live, None)?;
        self.read_measures(|b| &b.score, live)
    }

    /// [`Engine::score`] by the base model, its adapters left out: over the whole vocabulary, at the head's
    /// temperature.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn score_base(&mut self, batch: &MicroBatch) -> Result<Vec<f32>, EngineError> {
        let live = self.write_inputs(|b| &b.score_base, batch)?;
        self.run_planned(|b| &b.score_base, live, None)?;
        self.read_logp(|b| &b.score_base, live)
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
        let f32_input = |id: Option<program::BufferId>, values: &[f32]| {
            if let Some(id) = id {
                frame.store_f32(id, values);
            }
        };
        let kept_input = |ids: Option<(program::BufferId, program::BufferId)>, kept: &[Kept]| {
            if let Some((logits, ids)) = ids {
                frame.store_f32(logits, &kept.iter().map(|k| k.logit).collect::<Vec<_>>());
                frame.store_u32(ids, &kept.iter().map(|k| k.id).collect::<Vec<_>>());
            }
        };
        if let Some(id) = io.coef {
            assert_eq!(inputs.coef.len(), inputs.ids.len(), "training takes a coefficient a token");
            frame.store_f32(id, &inputs.coef);
        }
        f32_input(io.coef_entropy, &inputs.coef_entropy);
        f32_input(io.coef_full, &inputs.coef_full);
        kept_input(io.kept, &inputs.kept);
        if store.topology.cp > 1 {
            u32_input(io.all_ids, &batch.all_ids());
            u32_input(io.all_targets, &batch.all_targets());
            f32_input(io.all_coef, &batch.all_coef());
            f32_input(io.all_coef_entropy, &batch.all_coef_entropy());
            f32_input(io.all_coef_full, &batch.all_coef_full());
            kept_input(io.all_kept, &batch.all_kept());
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

    fn read_measures(
        &self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        live: Live,
    ) -> Result<TokenMeasures, EngineError> {
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        let (io, frame) = (&compiled.program.io, self.frame(compiled, live));
        Ok(TokenMeasures {
            logp: self.read_logp(which, live)?,
            full_logp: io.full_logp.map(|id| frame.load_f32(id)),
            entropy: io.entropy.map(|id| frame.load_f32(id)),
        })
    }
}
