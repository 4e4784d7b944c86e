//! What every rank does: rollouts, advantages, log-probs, gradients, an update, weights back to rollout.

use crate::error::VerifyError;
use crate::perturb::Rule;
use crate::seen::{Parameter, Step, sha256, sha256_floats};
use crate::witness::{Log, WatchedExchange, WatchedExecutor};
use crate::work::{Pair, Settings, Work};
use arena::Executor;
use engine::{
    Blueprint, Engine, GenerateShape, INACTIVE, Job, MicroBatch, Part, Sequence, TrainShape,
};
use fabric::{Member, Seat};
use program::keep::{Keep, Level};
use program::{Op, ParamId, Program, Topology};
use rollout::{Completion, Ending, Request, Scheduler, Stops};

/// The advantage of every token, one vector a micro-batch.
type Advantages = Vec<Vec<f32>>;

/// Tokens of one forward pass of rollout.
const PASS_TOKENS: usize = 32;

/// One run of the updates.
pub(crate) struct Run<'a> {
    pub(crate) work: &'a Work<'a>,
    pub(crate) settings: &'a Settings,
    pub(crate) pair: Pair,
    pub(crate) rule: Option<Rule>,
    /// The step whose operations are watched, from 1, and one log a rank.
    pub(crate) watch: Option<(usize, &'a [Log])>,
}

/// A completion, on every rank of the world.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    prompt: usize,
    ids: Vec<u32>,
    log_probs: Vec<f32>,
    stopped: bool,
    advantage: f32,
}

/// One rank under way.
struct Worker<'r> {
    run: &'r Run<'r>,
    trainer: Option<Engine<'r>>,
    rollout: Option<Engine<'r>>,
}

impl Run<'_> {
    /// Everything that a rank does.
    pub(crate) fn rank(&self, seat: &mut Seat<'_>) -> Result<Vec<Step>, VerifyError> {
        let mut worker = Worker {
            run: self,
            trainer: seat.member(0).map(|m| self.engine(m, self.train_job(), false)).transpose()?,
            rollout: seat
                .member(1)
                .map(|m| self.engine(m, self.rollout_job(), true))
                .transpose()?,
        };
        (1..=self.settings.steps).map(|step| worker.step(seat, step)).collect()
    }

    fn log(&self, rank: usize) -> Option<&Log> {
        self.watch.and_then(|(_, logs)| logs.get(rank))
    }

    fn longest(&self) -> usize {
        let prompt = self.work.prompts.iter().map(Vec::len).max().unwrap_or(0);
        prompt + self.settings.max_response
    }

    fn completions(&self) -> usize {
        self.work.prompts.len() * self.settings.samples
    }

    fn train_job(&self) -> Job {
        let segments = self.completions() / self.settings.accumulation;
        let train = TrainShape {
            tokens: segments * self.longest(),
            segments,
            accumulation: self.settings.accumulation,
            // Everything is kept, so that every value is written once and has one place in the order.
            keep: Keep::uniform(Level::All),
            coef_known: false,
        };
        Job { train: Some(train), ..Job::default() }
    }

    fn rollout_job(&self) -> Job {
        let shape = GenerateShape::full(self.completions(), self.longest(), PASS_TOKENS);
        Job { generate: Some(shape), ..Job::default() }
    }

    fn engine<'r>(
        &self,
        member: Member<'r>,
        job: Job,
        rollout: bool,
    ) -> Result<Engine<'r>, VerifyError> {
        let (graph, rank, topology) = (&self.work.graph, member.rank(), *member.topology());
        let inner = (self.work.executor)();
        let workspace = |op: &Op, program: &Program| {
            let broken = self.rule.and_then(|rule| rule.broken(op, program));
            let broken = broken.map_or(0, |op| inner.workspace_bytes(&op, program));
            inner.workspace_bytes(op, program).max(broken)
        };
        let mut blueprint = Blueprint::new(graph, topology, rank, job, &workspace);
        if let Some(rule) = self.rule.filter(|_| !rollout)
            && !rule.apply(&mut blueprint)
        {
            let (rule, needed) = (rule.name(), rule.needed());
            return Err(VerifyError::NothingToPerturb { rule, needed });
        }
        let log = self.log(member.index()).cloned();
        let executor: Box<dyn Executor> = match log.clone() {
            None => inner,
            Some(log) => Box::new(WatchedExecutor { inner, log, rollout }),
        };
        let engine = Engine::new(graph.clone(), blueprint, executor)?;
        let mut engine = engine.with_exchange(match log {
            None => Box::new(member),
            Some(log) => Box::new(WatchedExchange { inner: member, log, rollout }),
        });
        (self.work.load)(&mut engine)?;
        Ok(engine)
    }
}

impl Worker<'_> {
    fn step(&mut self, seat: &mut Seat<'_>, step: usize) -> Result<Step, VerifyError> {
        self.watch(seat.index(), step);
        seat.entering("rollout");
        let samples = self.roll_out(seat, step)?;
        seat.entering("training");
        let (mut seen, batches, advantages) = self.describe(&samples, step)?;
        let logps = self.train(&batches, &advantages, seen.active)?;
        // Ranks without a trainer learn what training saw from the first rank.
        let trained = match (&mut self.trainer, logps) {
            (Some(trainer), Some(logps)) => {
                let report = trainer.update(&self.run.settings.hyper, step as u64)?;
                judge_log_probs(&mut seen, &samples, &batches, &logps, &advantages)?;
                seen.grad_norm_bits = format!("{:08x}", report.grad_norm.to_bits());
                seen.grad_scale_bits = format!("{:08x}", report.grad_scale.to_bits());
                Some(())
            }
            _ => None,
        };
        self.hash_and_sync(seat, &mut seen, trained.is_some())?;
        Ok(seen)
    }

    /// Turns the witnesses on at their step.
    fn watch(&self, rank: usize, step: usize) {
        let Some((watched, logs)) = self.run.watch else { return };
        let Some(log) = logs.get(rank).filter(|_| watched == step) else { return };
        let place = |engine: &Option<Engine<'_>>| {
            engine.as_ref().map(|e| (e.blueprint.store.topology, e.blueprint.store.rank))
        };
        let total = self.run.settings.accumulation;
        let first = self.trainer.as_ref().map_or(0, |t| t.micro_batches_of(total).start);
        log.start([place(&self.trainer), place(&self.rollout)], first);
    }

    /// Completions of every prompt, the same on every rank of the world.
    fn roll_out(&mut self, seat: &mut Seat<'_>, step: usize) -> Result<Vec<Sample>, VerifyError> {
        let run = self.run;
        let mine = match &mut self.rollout {
            None => Vec::new(),
            Some(engine) => {
                let mut scheduler = Scheduler::new(engine, None)?;
                let sampling = match run.rule {
                    Some(rule) => rule.sampling(run.settings.sampling),
                    None => run.settings.sampling,
                };
                for index in 0..run.completions() {
                    let sample = ((step - 1) * run.completions() + index) as u64;
                    scheduler.submit(Request {
                        sample,
                        prompt: run.work.prompts[index / run.settings.samples].clone(),
                        max_tokens: run.settings.max_response,
                        sampling,
                        stops: Stops { ids: run.work.stops.clone(), texts: Vec::new() },
                        policy: false,
                    })?;
                }
                let completions = scheduler.run(engine, |_| Ok::<(), rollout::RolloutError>(()))?;
                write(&completions)
            }
        };
        let all = seat.all_gather("completions", &mine)?;
        for (rank, bytes) in all.iter().enumerate() {
            if !bytes.is_empty() && *bytes != all[0] {
                return Err(VerifyError::RolloutRanks { step, rank });
            }
        }
        let mut samples = read(&all[0]).ok_or(VerifyError::Completions { step })?;
        for (index, sample) in samples.iter_mut().enumerate() {
            sample.prompt = index / run.settings.samples;
        }
        give_advantages(&mut samples, run.settings.samples);
        Ok(samples)
    }

    /// What is known before training: the step's beginning, its micro-batches, and the advantage of every token.
    fn describe(
        &self,
        samples: &[Sample],
        step: usize,
    ) -> Result<(Step, Vec<MicroBatch>, Advantages), VerifyError> {
        let (work, settings) = (self.run.work, self.run.settings);
        let each = samples.len() / settings.accumulation;
        let batches: Vec<MicroBatch> = samples
            .chunks(each)
            .map(|chunk| MicroBatch {
                sequences: chunk
                    .iter()
                    .map(|sample| sequence(&work.prompts[sample.prompt], &sample.ids))
                    .collect(),
            })
            .collect();
        let advantages = samples
            .chunks(each)
            .map(|chunk| {
                let of = |s: &Sample| {
                    let prompt = work.prompts[s.prompt].len();
                    let active = std::iter::repeat_n(s.advantage, s.ids.len());
                    std::iter::repeat_n(0.0, prompt - 1).chain(active).chain([0.0]).collect()
                };
                chunk.iter().flat_map(|s| -> Vec<f32> { of(s) }).collect()
            })
            .collect();
        let active = batches.iter().map(MicroBatch::active).sum();
        if active == 0 {
            return Err(VerifyError::NoActiveTokens { step });
        }
        if samples.iter().all(|sample| sample.advantage == 0.0) {
            return Err(VerifyError::NoAdvantage { step });
        }
        let tokens = samples.iter().flat_map(|s| {
            (s.ids.len() as u32)
                .to_le_bytes()
                .into_iter()
                .chain(s.ids.iter().flat_map(|id| id.to_le_bytes()))
        });
        let log_probs: Vec<f32> = samples.iter().flat_map(|s| s.log_probs.clone()).collect();
        let given: Vec<f32> = samples.iter().map(|s| s.advantage).collect();
        let seen = Step {
            step,
            tokens: sha256(tokens.collect::<Vec<u8>>()),
            generated: samples.iter().map(|s| s.ids.len()).sum(),
            natural_stops: samples.iter().filter(|s| s.stopped).count(),
            rollout_log_probs: sha256_floats(&log_probs),
            train_log_probs: String::new(),
            differing_log_prob_bytes: 0,
            advantages: sha256_floats(&given),
            active,
            loss: 0.0,
            loss_bits: String::new(),
            grad_norm_bits: String::new(),
            grad_scale_bits: String::new(),
            parameters: Vec::new(),
        };
        Ok((seen, batches, advantages))
    }

    /// Forward and backward of this replica's micro-batches; log-probs of all of them.
    fn train(
        &mut self,
        batches: &[MicroBatch],
        advantages: &[Vec<f32>],
        active: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, VerifyError> {
        let rule = self.run.rule;
        let Some(engine) = &mut self.trainer else { return Ok(None) };
        let total = batches.len();
        let mut mine = Vec::new();
        for index in engine.micro_batches_of(total) {
            let (mut batch, mut advantages) = (batches[index].clone(), advantages[index].clone());
            let swaps = rule == Some(Rule::TokenOrder) && batch.sequences.len() > 1;
            let first = batch.sequences[0].ids.len();
            if swaps {
                let second = batch.sequences[1].ids.len();
                batch.sequences.swap(0, 1);
                advantages[..first + second].rotate_left(first);
            }
            let count = match rule {
                Some(Rule::LossCount) => batch.active(),
                _ => active,
            };
            let mut logp = engine.forward_micro_batch(&batch, index, total)?;
            // On-policy the ratio is exp(logp - itself), exactly 1: the derivative of the clipped objective.
            let coef: Vec<f32> =
                advantages.iter().map(|a| (-f64::from(*a) / count as f64) as f32).collect();
            engine.backward_micro_batch(&coef)?;
            if swaps {
                let second = batch.sequences[0].ids.len();
                logp[..first + second].rotate_left(second);
            }
            mine.push(logp);
        }
        Ok(Some(engine.gather_micro_batches(total, mine)?))
    }

    /// Hashes of every trained parameter; weights to rollout; both sides must hold the same.
    fn hash_and_sync(
        &mut self,
        seat: &mut Seat<'_>,
        seen: &mut Step,
        trained: bool,
    ) -> Result<(), VerifyError> {
        let graph = &self.run.work.graph;
        let trainable: Vec<ParamId> =
            graph.param_ids().filter(|&id| graph.param_info(id).trainable).collect();
        let all_train = self.run.pair.train.ranks() == seat.size();
        for id in trainable {
            let name = graph.param_info(id).name.to_string();
            let mut value = Vec::new();
            if let (Some(trainer), true) = (&self.trainer, trained) {
                let whole = |part| Ok::<_, VerifyError>(trainer.gather_whole(id, part)?);
                value = whole(Part::Value)?.unwrap_or_default();
                let gradient = whole(Part::Gradient)?.unwrap_or_default();
                let zero_gradient = gradient.iter().all(|g| *g == 0.0);
                seen.parameters.push(Parameter {
                    name: name.clone(),
                    gradient: sha256_floats(&gradient),
                    first_moment: sha256_floats(&whole(Part::FirstMoment)?.unwrap_or_default()),
                    second_moment: sha256_floats(&whole(Part::SecondMoment)?.unwrap_or_default()),
                    value: sha256_floats(&value),
                    zero_gradient,
                });
            }
            if !all_train {
                let bytes: Vec<u8> = value.iter().flat_map(|v| v.to_le_bytes()).collect();
                let mine = if seat.index() == 0 { bytes } else { Vec::new() };
                let all = seat.all_gather(&format!("the value of {name}"), &mine)?;
                value = floats(&all[0]);
            }
            if let Some(engine) = &mut self.rollout {
                engine.write_whole(id, &value);
                let theirs = engine.gather_whole(id, Part::Value)?.unwrap_or_default();
                if sha256_floats(&theirs) != sha256_floats(&value) {
                    return Err(VerifyError::Sync { step: seen.step, parameter: name });
                }
            }
        }
        Ok(())
    }
}

/// Compares rollout's log-probs with training's, byte by byte, and takes the loss.
fn judge_log_probs(
    seen: &mut Step,
    samples: &[Sample],
    batches: &[MicroBatch],
    logps: &[Vec<f32>],
    advantages: &[Vec<f32>],
) -> Result<(), VerifyError> {
    let targets = batches.iter().flat_map(|b| b.sequences.iter().flat_map(|s| &s.targets));
    let rows = targets.zip(logps.iter().flatten()).zip(advantages.iter().flatten());
    let active: Vec<(f32, f32)> = rows
        .filter(|((target, _), _)| **target != INACTIVE)
        .map(|((_, logp), advantage)| (*logp, *advantage))
        .collect();
    let trained: Vec<f32> = active.iter().map(|(logp, _)| *logp).collect();
    let rolled = samples.iter().flat_map(|s| &s.log_probs);
    seen.differing_log_prob_bytes = trained
        .iter()
        .zip(rolled)
        .flat_map(|(a, b)| a.to_le_bytes().into_iter().zip(b.to_le_bytes()))
        .filter(|(a, b)| a != b)
        .count();
    seen.train_log_probs = sha256_floats(&trained);
    let weighted: f64 = active.iter().map(|(logp, a)| -f64::from(*logp) * f64::from(*a)).sum();
    seen.loss = weighted / active.len() as f64;
    seen.loss_bits = format!("{:016x}", seen.loss.to_bits());
    if !seen.loss.is_finite() {
        return Err(VerifyError::NonFinite { step: seen.step, value: seen.loss });
    }
    Ok(())
}

/// A prompt with its completion: every token of the completion is a target.
fn sequence(prompt: &[u32], completion: &[u32]) -> Sequence {
    let ids: Vec<u32> = prompt.iter().chain(completion).copied().collect();
    let supervised: Vec<bool> = (0..ids.len()).map(|at| at >= prompt.len()).collect();
    Sequence::next_tokens(&ids, &supervised)
}

/// The reward is a plain function of the tokens; advantages are its distance from the mean of the group.
fn give_advantages(samples: &mut [Sample], group: usize) {
    let reward = |sample: &Sample| {
        let sum: u64 = sample.ids.iter().map(|id| u64::from(*id) % 7).sum();
        sum as f64 / sample.ids.len().max(1) as f64
    };
    for group in samples.chunks_mut(group) {
        let mean = group.iter().map(reward).sum::<f64>() / group.len() as f64;
        for sample in group {
            sample.advantage = (reward(sample) - mean) as f32;
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Completions as bytes: count, whether stopped, ids, log-probs of each.
fn write(completions: &[Completion]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for c in completions {
        bytes.extend((c.ids.len() as u32).to_le_bytes());
        bytes.push(u8::from(c.ending == Ending::EndToken));
        bytes.extend(c.ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(c.logprobs.iter().flat_map(|logp| logp.to_le_bytes()));
    }
    bytes
}

/// What [`write`] wrote.
fn read(mut bytes: &[u8]) -> Option<Vec<Sample>> {
    let mut samples = Vec::new();
    while !bytes.is_empty() {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let (stopped, rest) = rest.split_first()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (ids, rest) = rest.split_at_checked(4 * count)?;
        let (log_probs, rest) = rest.split_at_checked(4 * count)?;
        bytes = rest;
        let ids = ids.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        samples.push(Sample {
            prompt: 0,
            ids: ids.collect(),
            log_probs: floats(log_probs),
            stopped: *stopped == 1,
            advantage: 0.0,
        });
    }
    Some(samples)
}

/// Ranks of a world of both topologies.
pub(crate) fn world(pair: &Pair) -> [Topology; 2] {
    [pair.train, pair.rollout]
}
