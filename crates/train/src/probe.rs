//! One real step on one sample, before a run: the loss is finite, gradients arrive, and what must change no bit changes
//! none. Leaves LoRA matrices with values that a run replaces, and nothing else.
//!
//! Ranks probe together, each with its own engine: what any of them finds wrong fails the check on all.

use canon::random::{Numbers, Purpose};
use data::Dataset;
use engine::{Engine, EngineError, MicroBatch, Sequence};
use program::keep::{Keep, Level};
use program::ops::Group;
use record::Gate;

use crate::batch::{StepBatches, sum_active};
use crate::contents;
use crate::error::TrainError;
use crate::gates::{self, LossBounds};
use crate::settings::Resolved;

/// The probed sample is the one whose length is nearest to this (or to half a micro-batch, where that is less): long enough
/// to see something, short enough for seconds and for another beside it.
const TOKENS: usize = 64;
/// Stream of the random numbers that fill B; parameters use the streams from 0 on.
const PROBE_STREAM: u64 = u64::MAX;
/// They lie between zero and this: far from what rounds to nothing, and small against weights.
const PROBE_BOUND: f32 = 1e-2;

const PACKED: &str = "packed = alone";
const CAUSAL: &str = "no token sees a later one";
const RECOMPUTED: &str = "recomputed = kept";
const AGREED: &str = "ranks agree";
const DEFECT: &str =
    "this build computes otherwise than it promises: report it with the model and the processor";

/// Runs one sample of the data through the training step, several times. All ranks must probe together, and find the
/// same.
///
/// # Errors
/// [`TrainError::Probe`]: whatever the engine gives, a loss that is not finite above all; another rank failed.
pub fn probe(
    engine: &mut Engine<'_>,
    dataset: &Dataset,
    resolved: &Resolved,
) -> Result<Vec<Gate>, TrainError> {
    let lengths = dataset.lengths();
    let middling = TOKENS.min(resolved.micro_tokens.value / 2);
    let sample = (0..lengths.len()).min_by_key(|&index| lengths[index].abs_diff(middling));
    let Some(sample) = sample else { return Ok(Vec::new()) };
    checks(engine, dataset, resolved, sample).map_err(|source| failed_on(dataset, sample, source))
}

fn failed_on(dataset: &Dataset, sample: usize, source: EngineError) -> TrainError {
    let sample = dataset.origin(sample).to_string();
    TrainError::Probe { sample, source: source.into() }
}

fn checks(
    engine: &mut Engine<'_>,
    dataset: &Dataset,
    resolved: &Resolved,
    sample: usize,
) -> Result<Vec<Gate>, EngineError> {
    let lengths = dataset.lengths();
    engine.init_adapter(resolved.seed.value);
    let mut checks =
        vec![loss(engine, dataset, resolved, sample)?, gates::gradients_together(engine)?];
    // B begins as zeros, which would hide the adapters from the rest.
    fill_adapters(engine, resolved.seed.value);
    let others = (0..lengths.len()).filter(|&index| index != sample);
    // Where there is no other, the sample stands before itself.
    let before = others.min_by_key(|&index| lengths[index]).unwrap_or(sample);
    let fits = lengths[before] + lengths[sample] <= resolved.micro_tokens.value;
    let before = fits.then(|| whole(dataset.sample(before).ids));
    let sample = whole(dataset.sample(sample).ids);
    let alone = Seen::of_planned(engine, &sample)?;
    checks.push(packed(engine, before, &sample, &alone)?);
    checks.push(causal(engine, &sample, &alone)?);
    checks.push(recomputed(engine, &sample, &alone)?);
    if engine.blueprint.store.topology.ranks() > 1 {
        checks.push(agreed(engine, &alone)?);
    }
    Ok(checks)
}

/// Tokens of the longest samples, which were run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Of those that are trained on: forward and backward.
    pub trained: usize,
    /// Of those that are held out: forward, as an evaluation does.
    pub held_out: Option<usize>,
}

/// Runs the longest sample forward and backward, and the longest that is held out forward, each as packed with nothing.
/// All ranks must run them together.
///
/// # Errors
/// [`TrainError::Probe`], as [`probe`].
pub fn longest(
    engine: &mut Engine<'_>,
    dataset: &Dataset,
    held_out: Option<&Dataset>,
) -> Result<Longest, TrainError> {
    let mut run = |dataset: &Dataset, learns: bool| -> Result<usize, TrainError> {
        let lengths = dataset.lengths();
        let Some(longest) = (0..lengths.len()).max_by_key(|&index| lengths[index]) else {
            return Ok(0);
        };
        for batch in &StepBatches::new(dataset, &[vec![longest]]).batches {
            let ran = match learns {
                true => engine.train_micro_batch(batch, 0, 1),
                false => engine.score(batch),
            };
            ran.map_err(|source| failed_on(dataset, longest, source))?;
        }
        Ok(lengths[longest])
    };
    let trained = run(dataset, true)?;
    let held_out = held_out.map(|dataset| run(dataset, false)).transpose()?;
    Ok(Longest { trained, held_out })
}

fn loss(
    engine: &mut Engine<'_>,
    dataset: &Dataset,
    resolved: &Resolved,
    sample: usize,
) -> Result<Gate, EngineError> {
    let StepBatches { batches, supervised, .. } = StepBatches::new(dataset, &[vec![sample]]);
    let mut sum = 0.0;
    for batch in &batches {
        sum += sum_active(batch, &engine.train_micro_batch(batch, 0, 1)?);
    }
    let given = resolved.loss_limit.as_ref().map(|chosen| chosen.value);
    let bounds = LossBounds::new(engine.graph.vocab, given);
    Ok(bounds.judge(1, supervised, -sum / supervised as f64).at(0))
}

fn fill_adapters(engine: &mut Engine<'_>, seed: u64) {
    let is_b = |name: &str| name.ends_with(".lora_B.weight");
    let ids: Vec<_> = engine.graph.param_ids().collect();
    for id in ids {
        let param = engine.graph.param_info(id);
        if !is_b(&param.name) {
            continue;
        }
        let mut values = vec![0.0; param.elements()];
        let numbers = Numbers::new(seed, Purpose::Init, PROBE_STREAM);
        numbers.fill_uniform(0, 0.0, PROBE_BOUND, &mut values);
        engine.write_whole(id, &values);
    }
}

/// A sample of which every token but the first is learnt, each with the same weight.
fn whole(ids: &[u32]) -> Sequence {
    let mut sequence = Sequence::next_tokens(ids, &vec![true; ids.len()]);
    sequence.coef = vec![-1.0 / ids.len() as f32; ids.len()];
    sequence
}

/// What a pass gave, as bits.
#[derive(PartialEq)]
struct Seen {
    logp: Vec<u32>,
    gradients: String,
}

impl Seen {
    fn of(engine: &Engine<'_>, logp: &[f32]) -> Seen {
        let mut hasher = blake3::Hasher::new();
        for id in contents::trained(engine) {
            let gradient = engine.read_grad(id).unwrap_or_default();
            hasher.update(bytemuck::cast_slice(&gradient));
        }
        Seen { logp: bits(logp), gradients: hasher.finalize().to_hex().to_string() }
    }

    /// By the program that the run will use.
    fn of_planned(engine: &mut Engine<'_>, sample: &Sequence) -> Result<Seen, EngineError> {
        let batch = MicroBatch { sequences: vec![sample.clone()] };
        let logp = engine.train_micro_batch(&batch, 0, 1)?;
        Ok(Seen::of(engine, &logp))
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// How many of two lists, which are as long, differ.
fn differing(a: &[u32], b: &[u32]) -> usize {
    debug_assert_eq!(a.len(), b.len());
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// The largest of the ranks' counts.
fn most(engine: &Engine<'_>, what: &str, mine: usize) -> Result<usize, EngineError> {
    let all = engine.of_ranks(what, mine as u64)?;
    Ok(all.into_iter().max().map_or(mine, |most| most as usize))
}

/// The smallest of them.
fn least(engine: &Engine<'_>, what: &str, mine: usize) -> Result<usize, EngineError> {
    let all = engine.of_ranks(what, mine as u64)?;
    Ok(all.into_iter().min().map_or(mine, |least| least as usize))
}

/// The same log-probs with another sample before it in the micro-batch.
fn packed(
    engine: &mut Engine<'_>,
    before: Option<Sequence>,
    sample: &Sequence,
    alone: &Seen,
) -> Result<Gate, EngineError> {
    let name = PACKED;
    let room = engine.blueprint.job.train.map_or(0, |train| train.segments);
    let Some(before) = before.filter(|_| room >= 2) else {
        return Ok(Gate::skipped(name, "no second sample fits beside the first"));
    };
    let skip = before.ids.len();
    let sequences = vec![before, sample.clone()];
    let logp = engine.train_micro_batch(&MicroBatch { sequences }, 0, 1)?;
    let count = most(engine, name, differing(&bits(&logp[skip..]), &alone.logp))?;
    let figure =
        format!("{count} of {} log-probs differ behind {skip} other tokens", alone.logp.len());
    Ok(Gate::of(name, count == 0, figure, DEFECT))
}

/// A token in the middle is changed: log-probs of tokens before it stay, and one after it changes.
fn causal(engine: &mut Engine<'_>, sample: &Sequence, alone: &Seen) -> Result<Gate, EngineError> {
    let name = CAUSAL;
    let at = sample.ids.len() / 2;
    if at < 2 {
        return Ok(Gate::skipped(name, "the sample is too short"));
    }
    let mut ids = sample.ids.clone();
    ids[at] = u32::from(ids[at] == 0);
    let changed = Seen::of_planned(engine, &whole(&ids))?;
    // Row t is the log-prob of token t + 1.
    let (before, after) = (0..at - 1, at..alone.logp.len());
    let early = differing(&changed.logp[before.clone()], &alone.logp[before]);
    let early = most(engine, name, early)?;
    let late = differing(&changed.logp[after.clone()], &alone.logp[after]);
    let late = least(engine, name, late)?;
    let figure =
        format!("token {at} changed: {early} earlier log-probs differ, {late} later ones do");
    Ok(Gate::of(name, early == 0 && late > 0, figure, DEFECT))
}

/// The same log-probs and gradients when everything or nothing is computed again.
fn recomputed(
    engine: &mut Engine<'_>,
    sample: &Sequence,
    alone: &Seen,
) -> Result<Gate, EngineError> {
    let name = RECOMPUTED;
    let batch = MicroBatch { sequences: vec![sample.clone()] };
    let (mut good, mut words) = (true, Vec::new());
    for level in [Level::All, Level::Input] {
        let Some(logp) = engine.probe(&batch, Keep::uniform(level))? else {
            return Ok(Gate::skipped(name, format!("`{}` does not fit the plan", level.name())));
        };
        let differs = usize::from(Seen::of(engine, &logp) != *alone);
        let same = most(engine, name, differs)? == 0;
        good &= same;
        let bytes = if same { "the same bytes" } else { "other bytes" };
        words.push(format!("{}: {bytes}", level.name()));
    }
    let figure = format!("log-probs and gradients as planned; {}", words.join(", "));
    Ok(Gate::of(name, good, figure, DEFECT))
}

/// The same log-probs on every rank: all see the whole sample.
fn agreed(engine: &Engine<'_>, alone: &Seen) -> Result<Gate, EngineError> {
    let hash = *blake3::hash(bytemuck::cast_slice(&alone.logp)).as_bytes();
    let all = engine.all_gather(Group::All, AGREED, &hash)?;
    let first = all.first();
    let others: Vec<String> = (0..all.len())
        .filter(|&rank| all.get(rank) != first)
        .map(|rank| rank.to_string())
        .collect();
    let figure = match others.is_empty() {
        true => format!("{} log-probs, the same bytes on {} ranks", alone.logp.len(), all.len()),
        false => format!("other log-probs than rank 0's on ranks {}", others.join(", ")),
    };
    Ok(Gate::of(AGREED, others.is_empty(), figure, DEFECT))
}
