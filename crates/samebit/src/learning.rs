//! A reinforcement-learning run from its settings: prompts, plans of every rank, engines, the loop.

use crate::device::{self, Compute, Device};
use crate::infer;
use crate::model::Model;
use anyhow::{Context, Result, bail};
use data::PromptEncoder;
use engine::{Blueprint, Engine, Fit, Fitter, GenerateShape, Job};
use fabric::{Seat, World};
use program::keep::{Keep, Level};
use program::ledger::Bytes;
use program::{Graph, Lease, Ledger, Op, Program, Rank, Topology};
use rl::{
    Data, Engines, Method, Observer, Outcome, Pair, Prompt, Resolved, RlSettings, Run, read_pairs,
    read_prompts,
};
use std::path::PathBuf;
use std::sync::Mutex;
use text::Tokenizer;
use train::{Facts, Requested};

/// Tokens of a forward pass of the rollout.
const PASS_TOKENS: usize = 512;

/// Everything before the first step.
pub(crate) struct Learning {
    pub(crate) model: Model,
    pub(crate) requested: Requested<RlSettings>,
    pub(crate) resolved: Resolved,
    tokenizer: Tokenizer,
    prompts: Vec<Prompt>,
    eval: Vec<Prompt>,
    pairs: Vec<Pair>,
    graph: Graph,
    device: Device,
    /// What trains, and what generates where that is another engine.
    trainer: Job,
    roller: Option<Job>,
}

/// The data files. Prompts are drawn by step, so a weight of a source would be ignored.
fn files(resolved: &Resolved) -> Result<Vec<PathBuf>> {
    let sources = resolved.train.sources();
    if let Some(source) = sources.iter().find(|source| source.weight != 1.0) {
        bail!(
            "`data`: {} has the weight {}, which reinforcement learning does not read; leave it out",
            source.path.display(),
            source.weight
        );
    }
    Ok(sources.into_iter().map(|source| source.path).collect())
}

impl Learning {
    /// Resolves settings, reads the data and plans; nothing large is allocated.
    pub(crate) fn new(requested: Requested<RlSettings>, model: Model) -> Result<Learning> {
        let resolved = Resolved::new(&requested, &Facts::of(&model.checkpoint))?;
        let graph =
            families::build(model.checkpoint.config(), &resolved.train.build_options())?.graph;
        let tokenizer = model.tokenizer()?;
        let template = (!resolved.raw.value).then(|| model.template()).transpose()?;
        let encoder =
            PromptEncoder { tokenizer: &tokenizer, template: template.as_ref(), system: None };
        let length = resolved.train.max_length.value;
        let (mut prompts, mut eval, mut pairs) = (vec![], vec![], vec![]);
        let files = &files(&resolved)?;
        match &resolved.method {
            Method::Grpo(g) => {
                // A wrong pattern or schema, or an answer that no completion can be compared with, is told before
                // anything is loaded.
                let grader = g.reward.value.grader()?;
                prompts = read_prompts(files, &encoder, length, g.max_tokens.value)?;
                if let Some(files) = &resolved.train.eval {
                    eval = read_prompts(&files.value, &encoder, length, g.max_tokens.value)?;
                }
                grader.check(&prompts)?;
                grader.check(&eval)?;
            }
            Method::Dpo(_) => {
                let end = tokenizer.eos().or_else(|| model.stops(&tokenizer).first().copied());
                let end = end.context(
                    "the model names no token that ends a completion, which pairs need: name `eos_token` in \
                     tokenizer_config.json or `eos_token_id` in config.json",
                )?;
                pairs = read_pairs(files, &encoder, length, end)?;
            }
        }
        let (training, generating) = (resolved.training(), resolved.generating());
        for topology in [training, generating] {
            topology.check()?;
        }
        let world = World::new(&[training, generating]).size();
        let threads = (resolved.train.threads.value / world).max(1);
        let profile = resolved.train.profile.value;
        let device = Device::new(&Compute { threads: Some(threads), profile })?;
        let mut learning = Learning {
            model,
            requested,
            resolved,
            tokenizer,
            prompts,
            eval,
            pairs,
            graph,
            device,
            trainer: Job::default(),
            roller: None,
        };
        learning.plan()?;
        Ok(learning)
    }

    /// Tokens of the longest sequence.
    fn longest(&self) -> usize {
        let completion = match &self.resolved.method {
            Method::Grpo(g) => g.max_tokens.value,
            Method::Dpo(_) => 0,
        };
        let prompts = self.prompts.iter().chain(&self.eval).map(|p| p.ids.len() + completion);
        let pairs =
            self.pairs.iter().map(|p| p.prompt.ids.len() + p.chosen.len().max(p.rejected.len()));
        prompts.chain(pairs).max().unwrap_or(1)
    }

    /// Whether one engine trains and generates.
    fn shared(&self) -> bool {
        self.resolved.training() == self.resolved.generating()
    }

    /// The fastest keep set within the lease, over the ranks that hold most.
    fn plan(&mut self) -> Result<()> {
        let longest = self.longest();
        let generate = match &self.resolved.method {
            Method::Grpo(g) => {
                Some(GenerateShape::full(g.rollout_sequences.value, longest, PASS_TOKENS))
            }
            Method::Dpo(_) => None,
        };
        let head = self.resolved.head();
        let mut trainer = self.resolved.training_job(longest, Keep::uniform(Level::All));
        if self.shared() {
            trainer.generate = generate;
        } else {
            self.roller = Some(Job { generate, head, ..Job::default() });
        }
        let limit = self.resolved.train.memory.as_ref().map_or(usize::MAX, |m| m.value.0);
        let ranks = self.resolved.training().ranks();
        let rolled = self.roller_ledgers();
        let workspace = self.device.workspace();
        let fitter =
            Fitter::new(&self.graph, self.resolved.training(), Rank::FIRST, &trainer, &workspace);
        let Some(mut shape) = trainer.train else { unreachable!("the job trains") };
        let each = limit.saturating_sub(rolled) / ranks;
        let Some(Fit { keep, .. }) = fitter.fastest(shape.step(), each) else {
            let least = fitter.ledger(shape.step(), Keep::uniform(Level::Input));
            bail!(
                "micro-batches of {} tokens do not fit: with every layer recomputed they need {} on each of {ranks} ranks \
                 beside {} of rollout engines, and the lease is {}; lower micro_tokens, rollout_sequences or max_tokens",
                shape.tokens,
                Bytes(least.total()),
                Bytes(rolled),
                Bytes(limit)
            );
        };
        shape.keep = keep;
        trainer.train = Some(shape);
        drop(workspace);
        self.trainer = trainer;
        let total = self.ledger();
        Lease { bytes: limit }.check(&total)?;
        device::check_available(&total)
    }

    fn blueprint(&self, topology: Topology, rank: Rank, job: Job) -> Blueprint {
        let workspace = self.device.workspace();
        let workspace: &dyn Fn(&Op, &Program) -> usize = &workspace;
        Blueprint::new(&self.graph, topology, rank, job, workspace)
    }

    fn ledgers(&self, topology: Topology, job: Job) -> Ledger {
        let ranks = (0..topology.ranks()).map(|index| Rank::of(index, &topology));
        let ledgers = ranks.map(|rank| self.blueprint(topology, rank, job).ledger);
        ledgers.fold(Ledger::default(), |sum, ledger| sum.plus(&ledger))
    }

    fn roller_ledgers(&self) -> usize {
        let generating = self.resolved.generating();
        self.roller.map_or(0, |job| self.ledgers(generating, job).total())
    }

    /// Bytes by kind of every rank's engines.
    pub(crate) fn ledger(&self) -> Ledger {
        let trainers = self.ledgers(self.resolved.training(), self.trainer);
        match self.roller {
            None => trainers,
            Some(job) => trainers.plus(&self.ledgers(self.resolved.generating(), job)),
        }
    }

    /// What will run, in a few lines.
    pub(crate) fn summary(&self) -> String {
        let (training, generating) = (self.resolved.training(), self.resolved.generating());
        let keep = self.trainer.train.map_or(String::new(), |t| t.keep.to_string());
        let topology = |t: Topology| format!("TP {} × CP {} × DP {}", t.tp, t.cp, t.dp);
        let data = match &self.resolved.method {
            Method::Grpo(g) => format!(
                "{} prompts, {} held out · {} steps of {} × {} completions of at most {} tokens",
                self.prompts.len(),
                self.eval.len(),
                self.resolved.steps(),
                g.prompts.value,
                g.group.value,
                g.max_tokens.value
            ),
            Method::Dpo(dpo) => format!(
                "{} pairs · {} steps of {}",
                self.pairs.len(),
                self.resolved.steps(),
                dpo.pairs.value
            ),
        };
        format!(
            "{} · {}\ndata: {data}\ntraining {} · rollout {}\nplan: {} ({keep})\n",
            self.model.identity,
            self.device.describe(),
            topology(training),
            topology(generating),
            Bytes(self.ledger().total()),
        )
    }

    fn engine<'r>(
        &self,
        blueprint: Blueprint,
        member: Option<fabric::Member<'r>>,
        quiet: bool,
    ) -> Result<Engine<'r>> {
        let engine = Engine::new(self.graph.clone(), blueprint, self.device.executor()?)?;
        let mut engine = match member {
            Some(member) => engine.with_exchange(Box::new(member)),
            None => engine,
        };
        infer::load(&mut engine, &self.model, quiet)?;
        Ok(engine)
    }

    /// This rank's engines.
    fn engines<'r>(&self, seat: Option<Seat<'r>>, quiet: bool) -> Result<Engines<'r>> {
        let (training, generating) = (self.resolved.training(), self.resolved.generating());
        let index = seat.as_ref().map_or(0, Seat::index);
        let quiet = quiet || index > 0;
        let member = |topology: usize| seat.as_ref().and_then(|seat| seat.member(topology));
        let trainer = (index < training.ranks())
            .then(|| {
                let rank = Rank::of(index, &training);
                self.engine(self.blueprint(training, rank, self.trainer), member(0), quiet)
            })
            .transpose()?;
        let roller = self
            .roller
            .filter(|_| index < generating.ranks())
            .map(|job| {
                let rank = Rank::of(index, &generating);
                self.engine(self.blueprint(generating, rank, job), member(1), quiet)
            })
            .transpose()?;
        Ok(Engines { trainer, roller, shared: self.roller.is_none(), seat })
    }

    /// Runs on every rank; the observer is rank 0's.
    pub(crate) fn run(
        &self,
        observer: &mut (dyn Observer + Send),
        resume: bool,
        quiet: bool,
    ) -> Result<Outcome> {
        if let (Method::Grpo(g), Some(prompt)) = (&self.resolved.method, self.prompts.first()) {
            g.reward.value.grader()?.try_out(prompt)?;
        }
        let ends = self.model.stops(&self.tokenizer);
        let companions = crate::commands::merge::companions(&self.model)?;
        let extra: Vec<(&str, &[u8])> =
            companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
        let data = Data {
            prompts: &self.prompts,
            eval: &self.eval,
            pairs: &self.pairs,
            tokenizer: &self.tokenizer,
            ends: &ends,
        };
        let one = |engines: &mut Engines<'_>, observer: &mut dyn Observer| {
            let mut run = Run {
                engines,
                checkpoint: &self.model.checkpoint,
                data,
                requested: &self.requested,
                resolved: &self.resolved,
                extra_files: &extra,
            };
            if resume { run.resume(observer) } else { run.start(observer) }
        };
        let world = World::new(&[self.resolved.training(), self.resolved.generating()]);
        if world.size() == 1 {
            return Ok(one(&mut self.engines(None, quiet)?, observer)?);
        }
        let observer = Mutex::new(observer);
        let outcomes = world
            .run(|seat| -> Result<Outcome> {
                let lead = seat.index() == 0;
                let mut engines = self.engines(Some(seat.again()), quiet)?;
                if lead {
                    let mut observer = observer.lock().unwrap_or_else(|e| e.into_inner());
                    return Ok(one(&mut engines, &mut **observer)?);
                }
                Ok(one(&mut engines, &mut Silent)?)
            })
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        outcomes.into_iter().next().context("no rank ran")
    }

    /// An engine that scores by the adapter, for a replay: base weights loaded, the adapter at its initial values.
    pub(crate) fn scorer(&self, quiet: bool) -> Result<Engine<'static>> {
        let train = &self.resolved.train;
        let shape = (train.micro_tokens.value, train.micro_sequences.value);
        let job = Job {
            score: Some(shape),
            train: self.trainer.train,
            head: self.resolved.head(),
            ..Job::default()
        };
        let blueprint = self.blueprint(Topology::single(), Rank::FIRST, job);
        let mut engine = self.engine(blueprint, None, quiet)?;
        if train.lora().is_some() {
            let seed = train.seed.value;
            engine.load_adapter(&engine::AdapterSource::Fresh { seed })?;
        }
        Ok(engine)
    }
}

/// Ranks that tell nobody.
struct Silent;

impl Observer for Silent {
    fn step(&mut self, _: &rl::RlEvent) -> rl::Flow {
        rl::Flow::Continue
    }
}
