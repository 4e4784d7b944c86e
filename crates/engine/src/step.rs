//! Scoring and the training step of one micro-batch.

use crate::batch::MicroBatch;
use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::exchange::{floats_of_bytes, floats_to_bytes};
use crate::run::Engine;
use arena::ExecError;
use canon::policy::Kept;
use program::BufferId;
use program::buffer::Live;
use program::lower;
use program::ops::Group;
use program::store::micro_batches_of;
use std::ops::Range;

/// A micro-batch between its forward and its backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded {
    live: Live,
    /// This rank's tokens of the micro-batch.
    tokens: Range<usize>,
    /// Where the micro-batch's gradient goes; see [`Engine::train_micro_batch`].
    place: (usize, usize),
}

/// Whose program.
type Which = fn(&Blueprint) -> &Option<Compiled>;

const TRAIN: Which = |blueprint| &blueprint.train;
const SCORE: Which = |blueprint| &blueprint.score;
const SCORE_BASE: Which = |blueprint| &blueprint.score_base;

/// What the head finds of a micro-batch's tokens, +0 where inactive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenMeasures {
    /// Log-prob of each token's target.
    pub logp: Vec<f32>,
    /// The same over the whole vocabulary; absent where the head keeps every candidate and it is the same.
    pub full_logp: Option<Vec<f32>>,
    /// Entropy of what each target is chosen from, where the head finds it.
    pub entropy: Option<Vec<f32>>,
}

/// d loss / d measure of each token of a micro-batch; empty where all are 0.
#[derive(Default)]
struct Coefs {
    logp: Vec<f32>,
    full: Vec<f32>,
    entropy: Vec<f32>,
}

impl Engine<'_> {
    /// Log-prob of every token's target, +0 where inactive, of the whole micro-batch on every rank. Forward only.
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
        self.forward_only(SCORE, batch)
    }

    /// [`Engine::score`] by the base model, its adapters left out: over the whole vocabulary, at the head's temperature.
    ///
    /// # Errors
    /// As [`Engine::score`].
    pub fn score_base(&mut self, batch: &MicroBatch) -> Result<Vec<f32>, EngineError> {
        Ok(self.forward_only(SCORE_BASE, batch)?.logp)
    }

    fn forward_only(
        &mut self,
        which: Which,
        batch: &MicroBatch,
    ) -> Result<TokenMeasures, EngineError> {
        let (live, tokens) = self.write_inputs(which, batch)?;
        self.run_planned(which, live, None).map_err(|error| in_micro_batch(error, tokens.start))?;
        self.gather_measures(which, live)
    }

    /// The logical micro-batches of a step of `total` that this rank's replica runs.
    pub fn micro_batches_of(&self, total: usize) -> Range<usize> {
        let store = &self.blueprint.store;
        micro_batches_of(total, &store.topology, store.rank)
    }

    /// Runs logical micro-batch `index` of the `total` of this optimizer step forward and backward. The gradients of a
    /// step are added by the canon's tree: each replica gives its own micro-batches ([`Engine::micro_batches_of`]), in
    /// order. Coefficients come with the batch. Returns log-probs as [`Engine::score`] does.
    ///
    /// # Errors
    /// As [`Engine::score`]; a micro-batch that is not this replica's, or more of them than planned.
    pub fn train_micro_batch(
        &mut self,
        batch: &MicroBatch,
        index: usize,
        total: usize,
    ) -> Result<Vec<f32>, EngineError> {
        Ok(self.train_and_measure(batch, index, total)?.logp)
    }

    /// [`Engine::train_micro_batch`] with everything that the head finds; coefficients of every measure come with the
    /// batch.
    ///
    /// # Errors
    /// As [`Engine::train_micro_batch`].
    pub fn train_and_measure(
        &mut self,
        batch: &MicroBatch,
        index: usize,
        total: usize,
    ) -> Result<TokenMeasures, EngineError> {
        let forwarded = self.write_train_inputs(batch, index, total)?;
        let coefs = Coefs {
            logp: batch.all_coef(),
            full: batch.all_coef_full(),
            entropy: batch.all_coef_entropy(),
        };
        self.write_coefs(&forwarded, coefs)?;
        let measures = self.forward(&forwarded)?;
        self.backward(&forwarded)?;
        Ok(measures)
    }

    /// The forward half of [`Engine::train_micro_batch`], where coefficients are a function of the log-probs that it
    /// returns; [`Engine::backward_micro_batch`] must follow. The job must be planned with coefficients not known before
    /// ([`crate::TrainShape::coef_known`]).
    ///
    /// # Errors
    /// As [`Engine::train_micro_batch`].
    pub fn forward_micro_batch(
        &mut self,
        batch: &MicroBatch,
        index: usize,
        total: usize,
    ) -> Result<Vec<f32>, EngineError> {
        if self.blueprint.job.train.is_some_and(|train| train.coef_known) {
            return Err(EngineError::NotPlanned("coefficients that come after the forward pass"));
        }
        let forwarded = self.write_train_inputs(batch, index, total)?;
        let measures = self.forward(&forwarded)?;
        self.forwarded = Some(forwarded);
        Ok(measures.logp)
    }

    /// The backward half: `coef` is d loss / d log-prob of every token of the micro-batch, the same on every rank.
    ///
    /// # Errors
    /// No forward pass before it; not one coefficient a token.
    pub fn backward_micro_batch(&mut self, coef: &[f32]) -> Result<(), EngineError> {
        let forwarded =
            self.forwarded.take().ok_or(EngineError::NotPlanned("a backward pass alone"))?;
        self.write_coefs(&forwarded, Coefs { logp: coef.to_vec(), ..Coefs::default() })?;
        self.backward(&forwarded)
    }

    /// Every micro-batch's values of a step of `total`, from those of this replica's own micro-batches: per-token vectors
    /// in data order, the same on every rank.
    ///
    /// # Errors
    /// Another rank failed.
    pub fn gather_micro_batches(
        &self,
        total: usize,
        mine: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let topology = &self.blueprint.store.topology;
        if topology.dp == 1 {
            return Ok(mine);
        }
        let mut bytes = Vec::new();
        for values in &mine {
            bytes.extend((values.len() as u32).to_le_bytes());
            bytes.extend(floats_to_bytes(values));
        }
        let all = self.all_gather(Group::Data, "per-token values", &bytes)?;
        let mut whole: Vec<Vec<f32>> = Vec::with_capacity(total);
        for (replica, bytes) in all.iter().enumerate() {
            let rank = program::Rank { dp: replica, ..self.blueprint.store.rank };
            let mut rest = bytes.as_slice();
            for index in micro_batches_of(total, topology, rank) {
                let Some((count, after)) = rest.split_first_chunk::<4>() else { break };
                let (values, after) = after.split_at(4 * u32::from_le_bytes(*count) as usize);
                rest = after;
                // Replicas that share a micro-batch have the same values.
                if index == whole.len() {
                    whole.push(floats_of_bytes(values).collect());
                }
            }
        }
        Ok(whole)
    }

    fn write_train_inputs(
        &mut self,
        batch: &MicroBatch,
        index: usize,
        total: usize,
    ) -> Result<Forwarded, EngineError> {
        let planned = self.blueprint.job.train.map_or(0, |t| t.accumulation);
        if index >= total || total > planned {
            return Err(EngineError::NotPlanned("so many micro-batches in a step"));
        }
        let mine = self.micro_batches_of(total);
        if !mine.contains(&index) {
            return Err(EngineError::OtherReplica { index, first: mine.start, end: mine.end });
        }
        let (live, tokens) = self.write_inputs(TRAIN, batch)?;
        self.micro_batches = total;
        Ok(Forwarded { live, tokens, place: (index - mine.start, mine.len()) })
    }

    fn forward(&mut self, forwarded: &Forwarded) -> Result<TokenMeasures, EngineError> {
        let end = self.train_program()?.program.forward_ops;
        self.run_planned(TRAIN, forwarded.live, Some(0..end))
            .map_err(|error| in_micro_batch(error, forwarded.tokens.start))?;
        self.gather_measures(TRAIN, forwarded.live)
    }

    fn backward(&mut self, forwarded: &Forwarded) -> Result<(), EngineError> {
        let program = &self.train_program()?.program;
        let range = program.forward_ops..program.ops.len();
        self.run_planned(TRAIN, forwarded.live, Some(range))?;
        let (index, total) = forwarded.place;
        for range in lower::accumulation_ranges(&self.blueprint.store, index, total) {
            self.run_planned(|b| &b.accumulate, Live::default(), Some(range))?;
        }
        Ok(())
    }

    fn train_program(&self) -> Result<&Compiled, EngineError> {
        self.blueprint.train.as_ref().ok_or(EngineError::NotPlanned("this step"))
    }

    fn write_coefs(&self, forwarded: &Forwarded, coefs: Coefs) -> Result<(), EngineError> {
        let tokens = forwarded.live.all_tokens;
        let compiled = self.train_program()?;
        let frame = self.frame(compiled, forwarded.live);
        let io = &compiled.program.io;
        let write = |mine: Option<BufferId>, all: Option<BufferId>, coef: &[f32]| {
            if coef.len() != tokens {
                return Err(EngineError::Coefficients { given: coef.len(), tokens });
            }
            if let Some(id) = mine {
                frame.store_f32(id, &coef[forwarded.tokens.clone()]);
            }
            if let Some(id) = all.filter(|&id| Some(id) != mine) {
                frame.store_f32(id, coef);
            }
            Ok(())
        };
        let or_zeros = |coef: Vec<f32>| if coef.is_empty() { vec![0.0; tokens] } else { coef };
        write(io.coef, io.all_coef, &coefs.logp)?;
        write(io.coef_full, io.all_coef_full, &or_zeros(coefs.full))?;
        write(io.coef_entropy, io.all_coef_entropy, &or_zeros(coefs.entropy))
    }

    fn write_inputs(
        &mut self,
        which: Which,
        batch: &MicroBatch,
    ) -> Result<(Live, Range<usize>), EngineError> {
        self.forwarded = None;
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        self.check_awake(compiled)?;
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
        let u32_input = |id: Option<BufferId>, values: &[u32]| {
            if let Some(id) = id {
                frame.store_u32(id, values);
            }
        };
        u32_input(io.ids, &inputs.ids);
        u32_input(io.positions, &inputs.positions);
        u32_input(io.targets, &inputs.targets);
        u32_input(io.segments, &inputs.segments);
        let kept_input = |ids: Option<(BufferId, BufferId)>, kept: &[Kept]| {
            if let Some((logits, ids)) = ids {
                frame.store_f32(logits, &kept.iter().map(|k| k.logit).collect::<Vec<_>>());
                frame.store_u32(ids, &kept.iter().map(|k| k.id).collect::<Vec<_>>());
            }
        };
        kept_input(io.kept, &inputs.kept);
        if io.all_segments != io.segments {
            u32_input(io.all_segments, &inputs.all_segments);
        }
        if store.topology.cp > 1 {
            u32_input(io.all_ids, &batch.all_ids());
            u32_input(io.all_targets, &batch.all_targets());
            kept_input(io.all_kept, &batch.all_kept());
        }
        Ok((inputs.live, inputs.tokens))
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

    /// What the head found of the whole micro-batch.
    fn gather_measures(&self, which: Which, live: Live) -> Result<TokenMeasures, EngineError> {
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        let (io, frame) = (&compiled.program.io, self.frame(compiled, live));
        let gather = |id: BufferId, what: &str| {
            let mine = frame.load_f32(id);
            if self.blueprint.store.topology.cp == 1 {
                return Ok(mine);
            }
            let all = self.all_gather(Group::Context, what, &floats_to_bytes(&mine))?;
            Ok::<_, EngineError>(all.iter().flat_map(|bytes| floats_of_bytes(bytes)).collect())
        };
        Ok(TokenMeasures {
            logp: gather(io.logp.ok_or(EngineError::NotPlanned("log-probs"))?, "log-probs")?,
            full_logp: io.full_logp.map(|id| gather(id, "whole log-probs")).transpose()?,
            entropy: io.entropy.map(|id| gather(id, "entropies")).transpose()?,
        })
    }
}

/// Counts the rows that an error names from the micro-batch's first token, not from this rank's.
fn in_micro_batch(mut error: EngineError, first: usize) -> EngineError {
    use ExecError::{
        NonFiniteLogProb, TargetNotKept, TargetOutsideVocabulary, TokenOutsideVocabulary,
    };
    if let EngineError::Exec {
        source:
            NonFiniteLogProb { row, .. }
            | TokenOutsideVocabulary { row, .. }
            | TargetNotKept { row, .. }
            | TargetOutsideVocabulary { row, .. },
        ..
    } = &mut error
    {
        *row += first;
    }
    error
}
