//! What every rank does: rollouts, advantages, log-probs, gradients, an update, weights back to rollout.

use crate::disorder;
use crate::error::VerifyError;
use crate::learn::Learner;
use crate::perturb::Rule;
use crate::sample::{Sample, give_advantages, of_completion, read, write};
use crate::seen::{Initial, Parameter, Seen, Step, sha256, sha256_floats};
use crate::witness::{Log, WatchedExchange, WatchedExecutor};
use crate::work::{Pair, Settings, Work};
use arena::Executor;
use engine::{Blueprint, Engine, GenerateShape, Job, Part, TrainShape};
use fabric::{Member, Seat};
use program::keep::{Keep, Level};
use program::{Ledger, Op, ParamId, Program, Rank, Topology};
use rollout::{Moved, Request, Scheduler, ShardPlan, Since, Stops, WeightSync};

/// Tokens of one forward pass of rollout.
const PASS_TOKENS: usize = 32;

/// One run of the updates.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) work: &'a Work<'a>,
    pub(crate) settings: &'a Settings,
    pub(crate) pair: Pair,
    pub(crate) rule: Option<Rule>,
    /// The step whose operations are watched, from 1, and one log a rank.
    pub(crate) watch: Option<(usize, &'a [Log])>,
    /// Whether the ranks are the processes of a launcher, of which this is one, rather than threads.
    pub(crate) processes: bool,
}

/// What an engine is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Trainer,
    Rollout,
    /// The weights before the first update, where no program of the trainer's leaves its adapters out.
    Reference,
}

/// One rank under way.
struct Worker<'r> {
    run: &'r Run<'r>,
    learner: Option<Learner<'r>>,
    rollout: Option<Engine<'r>>,
    sync: WeightSync,
}

/// Ranks of a world of both topologies.
pub(crate) fn world(pair: &Pair) -> [Topology; 2] {
    [pair.train, pair.rollout]
}

impl Run<'_> {
    /// Everything that a rank does.
    pub(crate) fn rank(&self, seat: &mut Seat<'_>) -> Result<Seen, VerifyError> {
        let graph = &self.work.graph;
        let engine = |role, topology| {
            seat.member(topology).map(|member| self.engine(member, role)).transpose()
        };
        let mut learner = None;
        if let Some(trainer) = engine(Role::Trainer, 0)? {
            let reference = match self.roles().any(|(role, _)| role == Role::Reference) {
                true => engine(Role::Reference, 0)?,
                false => None,
            };
            learner = Some(Learner { run: self, trainer, reference });
        }
        let plan = ShardPlan::new(graph, Moved::Trained, &self.pair.train, &self.pair.rollout);
        let rollout = engine(Role::Rollout, 1)?;
        let mut worker = Worker { run: self, learner, rollout, sync: WeightSync::new(plan) };
        let initial = worker.initial()?;
        let lost = usize::from(self.rule == Some(Rule::LostStep));
        let steps = (1..=self.settings.steps - lost).map(|step| worker.step(seat, step));
        let seen = Seen { initial, steps: steps.collect::<Result<_, _>>()? };
        if self.processes { seen.of_first_rank(seat) } else { Ok(seen) }
    }

    fn has_adapters(&self) -> bool {
        self.work.graph.params.iter().any(|param| param.adapter)
    }

    /// Trained parameters.
    pub(crate) fn trained(&self) -> impl Iterator<Item = ParamId> {
        let graph = &self.work.graph;
        graph.param_ids().filter(|&id| graph.param_info(id).trainable)
    }

    fn name(&self, id: ParamId) -> String {
        self.work.graph.param_info(id).name.to_string()
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

    /// What training keeps from forward to backward: the reference everything, the verified run as little as can be, so
    /// that recomputing is proved beside topologies. Under witnesses every value is written once: it has one place in
    /// the order of operations.
    fn kept(&self) -> Level {
        let reference = self.pair == Pair::reference(self.pair.train.width) && self.rule.is_none();
        if reference || self.watch.is_some() { Level::All } else { Level::Input }
    }

    fn job(&self, role: Role) -> Job {
        let segments = self.completions() / self.settings.accumulation;
        let tokens = segments * self.longest();
        let job = Job { head: self.settings.head(), ..Job::default() };
        let score_base = (self.settings.kl_coef != 0.0).then_some((tokens, segments));
        match role {
            Role::Trainer => {
                let train = TrainShape {
                    tokens,
                    segments,
                    accumulation: self.settings.accumulation,
                    keep: Keep::uniform(self.kept()),
                    coef_known: true,
                };
                let score_base = score_base.filter(|_| self.has_adapters());
                Job { train: Some(train), score_base, ..job }
            }
            Role::Reference => Job { score_base, ..job },
            Role::Rollout => {
                let shape = GenerateShape::full(self.completions(), self.longest(), PASS_TOKENS);
                Job { generate: Some(shape), ..job }
            }
        }
    }

    /// Bytes of every rank's engines together.
    pub(crate) fn ledger(&self) -> Ledger {
        let executor = (self.work.executor)();
        let mut all = Ledger::default();
        for (role, topology) in self.roles() {
            for rank in (0..topology.ranks()).map(|index| Rank::of(index, &topology)) {
                all = all.plus(&self.blueprint(role, (topology, rank), executor.as_ref()).ledger);
            }
        }
        all
    }

    /// The engines of the run, each with the topology of its ranks.
    fn roles(&self) -> impl Iterator<Item = (Role, Topology)> {
        let reference = self.settings.kl_coef != 0.0 && !self.has_adapters();
        let reference = reference.then_some((Role::Reference, self.pair.train));
        let both = [(Role::Trainer, self.pair.train), (Role::Rollout, self.pair.rollout)];
        both.into_iter().chain(reference)
    }

    fn blueprint(
        &self,
        role: Role,
        (topology, rank): (Topology, Rank),
        executor: &dyn Executor,
    ) -> Blueprint {
        let workspace = |op: &Op, program: &Program| {
            let broken = self.rule.and_then(|rule| rule.broken(op, program));
            let broken = broken.map_or(0, |op| executor.workspace_bytes(&op, program));
            executor.workspace_bytes(op, program).max(broken)
        };
        Blueprint::new(&self.work.graph, topology, rank, self.job(role), &workspace)
    }

    fn engine<'r>(&self, member: Member<'r>, role: Role) -> Result<Engine<'r>, VerifyError> {
        let graph = &self.work.graph;
        let inner = (self.work.executor)();
        let place = (*member.topology(), member.rank());
        let mut blueprint = self.blueprint(role, place, inner.as_ref());
        if let Some(rule) = self.rule.filter(|_| role == Role::Trainer)
            && !(rule.concerns(self.completions(), self.settings, self.pair)
                && rule.apply(&mut blueprint))
        {
            let (rule, needed) = (rule.name(), rule.needed());
            return Err(VerifyError::NothingToPerturb { rule, needed });
        }
        // The reference's programs would be taken for the trainer's.
        let log = self.log(member.index()).filter(|_| role != Role::Reference).cloned();
        let rollout = role == Role::Rollout;
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
        if self.rule == Some(Rule::OtherWeights) {
            self.change_a_weight(&mut engine);
        }
        Ok(engine)
    }

    /// Changes the first value of the first trained parameter that the engine's rank has a part of.
    fn change_a_weight(&self, engine: &mut Engine<'_>) {
        for id in self.trained() {
            let mut values = engine.read_param(id);
            if let Some(first) = values.first_mut() {
                *first += 1.0;
                return engine.write_param(id, &values);
            }
        }
    }
}

impl Worker<'_> {
    /// Hashes of what is trained before the first update; empty on a rank that does not train.
    fn initial(&self) -> Result<Vec<Initial>, VerifyError> {
        let Some(learner) = &self.learner else { return Ok(Vec::new()) };
        let of = |id| {
            let value = learner.trainer.gather_whole(id, Part::Value)?.unwrap_or_default();
            Ok(Initial { name: self.run.name(id), value: sha256_floats(&value) })
        };
        self.run.trained().map(of).collect()
    }

    fn step(&mut self, seat: &mut Seat<'_>, step: usize) -> Result<Step, VerifyError> {
        self.watch(seat.index(), step);
        seat.entering("rollout");
        let mut samples = self.roll_out(seat, step)?;
        seat.entering("training");
        let mut seen = describe(&samples, step)?;
        // Ranks that do not train learn what was seen from the first rank.
        if let Some(learner) = &mut self.learner {
            learner.step(&mut seen, &mut samples)?;
        }
        self.hash(&mut seen)?;
        self.sync(seat, &seen)?;
        Ok(seen)
    }

    /// Turns the witnesses on at their step.
    fn watch(&self, rank: usize, step: usize) {
        let Some((watched, logs)) = self.run.watch else { return };
        let Some(log) = logs.get(rank).filter(|_| watched == step) else { return };
        let place = |engine: &Engine<'_>| {
            let store = &engine.blueprint.store;
            (store.topology, store.rank)
        };
        let trainer = self.learner.as_ref().map(|learner| &learner.trainer);
        let total = self.run.settings.accumulation;
        let first = trainer.map_or(0, |t| t.micro_batches_of(total).start);
        log.start([trainer.map(place), self.rollout.as_ref().map(place)], first);
    }

    /// Completions of every prompt, the same on every rank of the world.
    fn roll_out(&mut self, seat: &mut Seat<'_>, step: usize) -> Result<Vec<Sample>, VerifyError> {
        let run = self.run;
        let settings = run.settings;
        let mine = match &mut self.rollout {
            None => Vec::new(),
            Some(engine) => {
                let mut scheduler = Scheduler::new(engine, None)?;
                for index in 0..run.completions() {
                    scheduler.submit(Request {
                        sample: ((step - 1) * run.completions() + index) as u64,
                        prompt: run.work.prompts[index / settings.samples].clone(),
                        max_tokens: settings.max_response,
                        sampling: disorder::sampling(run.rule, settings.sampling),
                        stops: Stops { ids: run.work.stops.clone(), texts: Vec::new() },
                        policy: true,
                    })?;
                }
                let completions = scheduler.run(engine, |_| Ok::<(), rollout::RolloutError>(()))?;
                let mut samples: Vec<Sample> = completions.iter().map(of_completion).collect();
                let last = seat.index() + 1 == run.pair.rollout.ranks();
                disorder::completions(run.rule, last, &mut samples);
                write(&samples)
            }
        };
        let all = seat.all_gather("completions", &mine)?;
        let first = all.first().ok_or(VerifyError::Completions { step })?;
        let rollout = all.iter().take(run.pair.rollout.ranks());
        if let Some(rank) = rollout.into_iter().position(|bytes| bytes != first) {
            return Err(VerifyError::RolloutRanks { step, rank });
        }
        let mut samples = read(first).ok_or(VerifyError::Completions { step })?;
        for (index, sample) in samples.iter_mut().enumerate() {
            sample.prompt = index / settings.samples;
            sample.prompt_tokens = run.work.prompts[sample.prompt].len();
        }
        give_advantages(&mut samples, settings.samples);
        Ok(samples)
    }

    /// Hashes of every trained parameter after the update.
    fn hash(&self, seen: &mut Step) -> Result<(), VerifyError> {
        let Some(learner) = &self.learner else { return Ok(()) };
        let trainer = &learner.trainer;
        for id in self.run.trained() {
            let whole = |part| Ok::<_, VerifyError>(trainer.gather_whole(id, part)?);
            let gradient = whole(Part::Gradient)?.unwrap_or_default();
            let hash =
                |part| Ok::<_, VerifyError>(sha256_floats(&whole(part)?.unwrap_or_default()));
            seen.parameters.push(Parameter {
                name: self.run.name(id),
                gradient: sha256_floats(&gradient),
                first_moment: hash(Part::FirstMoment)?,
                second_moment: hash(Part::SecondMoment)?,
                value: hash(Part::Value)?,
                zero_gradient: gradient.iter().all(|g| *g == 0.0),
            });
        }
        Ok(())
    }

    /// Weights to rollout, which must hold what was hashed after the update. The sync's own fingerprints are not relied on:
    /// they are part of what is proved.
    fn sync(&mut self, seat: &mut Seat<'_>, seen: &Step) -> Result<(), VerifyError> {
        let run = self.run;
        let last = seat.index() + 1 == run.pair.train.ranks() && seen.step == run.settings.steps;
        if let (Some(Rule::LostReplica), Some(learner), true) = (run.rule, &mut self.learner, last)
        {
            run.change_a_weight(&mut learner.trainer);
        }
        let trainer = self.learner.as_ref().map(|learner| &learner.trainer);
        // Fingerprints of every replica are compared, so that the last update is looked at on every rank.
        // Whether an update changed what it should is judged parameter by parameter.
        self.sync.run(seat, trainer, self.rollout.as_mut(), Since::Anything)?;
        let hashes: String = seen.parameters.iter().map(|p| p.value.as_str()).collect();
        let mine = if seat.index() == 0 { hashes.as_bytes() } else { &[] };
        let all = seat.all_gather("hashes of trained weights", mine)?;
        let Some(engine) = &mut self.rollout else { return Ok(()) };
        if self.run.rule == Some(Rule::LostSync) {
            self.run.change_a_weight(engine);
        }
        let hashes = all.first().map(Vec::as_slice).unwrap_or_default();
        for (at, id) in self.run.trained().enumerate() {
            let theirs = engine.gather_whole(id, Part::Value)?.unwrap_or_default();
            let theirs = sha256_floats(&theirs);
            let length = theirs.len();
            if hashes.get(at * length..(at + 1) * length) != Some(theirs.as_bytes()) {
                let parameter = self.run.name(id);
                return Err(VerifyError::Sync { step: seen.step, parameter });
            }
        }
        Ok(())
    }
}

/// What is known of a step before training.
fn describe(samples: &[Sample], step: usize) -> Result<Step, VerifyError> {
    let active = samples.iter().map(|sample| sample.ids.len()).sum();
    if active == 0 {
        return Err(VerifyError::NoActiveTokens { step });
    }
    if samples.iter().all(|sample| sample.advantage == 0.0) {
        return Err(VerifyError::NoAdvantage { step });
    }
    let words = |sample: &Sample| {
        let ids = sample.ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        (sample.ids.len() as u32).to_le_bytes().into_iter().chain(ids)
    };
    let floats = |of: fn(&Sample) -> &[f32]| {
        sha256_floats(&samples.iter().flat_map(|s| of(s).to_vec()).collect::<Vec<f32>>())
    };
    Ok(Step {
        step,
        tokens: sha256(samples.iter().flat_map(words)),
        generated: active,
        natural_stops: samples.iter().filter(|s| s.stopped).count(),
        rollout_log_probs: floats(|s| &s.logp),
        rollout_full_log_probs: floats(|s| &s.full_logp),
        advantages: floats(|s| std::slice::from_ref(&s.advantage)),
        active,
        ..Step::default()
    })
}
