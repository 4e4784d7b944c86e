//! A reinforcement-learning run from its settings: prompts, plans of every rank, engines, the loop.

mod plan;

pub(crate) use plan::Plan;

use crate::built;
use crate::checks;
use crate::device::{Compute, Device};
use crate::encoding;
use crate::infer;
use crate::model::Model;
use anyhow::{Context, Result, bail};
use arena::Account;
use data::PromptEncoder;
use engine::{Blueprint, Engine, Job, Phase};
use fabric::{Cause, Seat, World};
use program::{Graph, Op, Program, Rank, Topology};
use rl::{
    Data, Engines, Method, Observer, Outcome, Pair, Prompt, Resolved, Reward, RlSettings, Run,
    read_pairs, read_prompts,
};
use rollout::ShardPlan;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use text::Tokenizer;
use train::{Facts, Requested, Surroundings};

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
    pub(crate) plan: Plan,
}

/// Tokens of the longest sequence.
fn longest(resolved: &Resolved, prompts: [&[Prompt]; 2], pairs: &[Pair]) -> usize {
    let completion = match &resolved.method {
        Method::Grpo(g) => g.max_tokens.value,
        Method::Dpo(_) => 0,
    };
    let prompts = prompts.into_iter().flatten().map(|p| p.ids.len() + completion);
    let pairs = pairs.iter().map(|p| p.prompt.ids.len() + p.chosen.len().max(p.rejected.len()));
    prompts.chain(pairs).max().unwrap_or(1)
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
        // Prompts that are given as they are meet no template.
        let asks = requested.settings.raw != Some(true) && model.text_identity()?.uses_clock;
        let facts = Facts::of(&model.checkpoint).with_template(asks);
        let resolved = Resolved::new(&requested, &facts)?;
        let graph =
            families::build(model.checkpoint.config(), &resolved.train.build_options())?.graph;
        let tokenizer = model.tokenizer()?;
        let template = (!resolved.raw.value).then(|| model.template()).transpose()?;
        let template = template.map(|template| encoding::dated(template, &resolved.train));
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
        let threads = resolved.train.threads.value / world;
        let profile = resolved.train.profile.value;
        let device = Device::new(&Compute { threads: Some(threads), profile })?;
        let longest = longest(&resolved, [&prompts, &eval], &pairs);
        let plan = Plan::new(&resolved, &graph, &device, longest)?;
        Ok(Learning {
            model,
            requested,
            resolved,
            tokenizer,
            prompts,
            eval,
            pairs,
            graph,
            device,
            plan,
        })
    }

    fn blueprint(&self, topology: Topology, rank: Rank, job: Job) -> Blueprint {
        let workspace = self.device.workspace();
        let workspace: &dyn Fn(&Op, &Program) -> usize = &workspace;
        Blueprint::new(&self.graph, topology, rank, job, workspace)
    }

    /// What the record holds beside the run, with what was checked before it; refuses where a check failed.
    pub(crate) fn surroundings(&self, allow_dirty: bool) -> Result<Surroundings> {
        let current = built::surroundings()?;
        let checks = vec![checks::git(&current.git, allow_dirty)];
        checks::refuse_failed(&checks)?;
        let mut hashes = self.model.identity_hashes()?;
        if let Some(grader) = self.grader_hash()? {
            hashes.insert("grader".into(), grader);
        }
        let stops = self.model.stops(&self.tokenizer);
        let stops = stops.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        hashes.insert("end_tokens".into(), blake3::hash(&stops).to_hex().to_string());
        Ok(Surroundings { device: self.device.describe(), hashes, checks, ..current })
    }

    /// Hash of the files that grade: a schema, and every argument of a program that is a file.
    fn grader_hash(&self) -> Result<Option<String>> {
        let Method::Grpo(g) = &self.resolved.method else { return Ok(None) };
        let files: Vec<&Path> = match &g.reward.value {
            Reward::JsonSchema(path) => vec![path],
            Reward::Program(command, _) => command.iter().map(Path::new).collect(),
            _ => Vec::new(),
        };
        let files: Vec<&Path> = files.into_iter().filter(|file| file.is_file()).collect();
        if files.is_empty() {
            return Ok(None);
        }
        let mut hasher = blake3::Hasher::new();
        for file in files {
            hasher.update(record::hash_file(file)?.as_bytes());
        }
        Ok(Some(hasher.finalize().to_hex().to_string()))
    }

    /// What will run, in a few lines.
    pub(crate) fn summary(&self) -> String {
        let (training, generating) = (self.resolved.training(), self.resolved.generating());
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
            "{} · {}\ndata: {data}\ntraining {} · rollout {}\n{}",
            self.model.identity,
            self.device.describe(),
            topology(training),
            topology(generating),
            self.plan.text(),
        )
    }

    fn engine<'r>(
        &self,
        blueprint: &Blueprint,
        member: Option<fabric::Member<'r>>,
        account: &Arc<Account>,
        quiet: bool,
    ) -> Result<Engine<'r>> {
        let (graph, executor) = (self.graph.clone(), self.device.executor()?);
        let engine = Engine::within(graph, blueprint.clone(), executor, account)?;
        let mut engine = match member {
            Some(member) => engine.with_exchange(Box::new(member)),
            None => engine,
        };
        infer::load(&mut engine, &self.model, quiet)?;
        Ok(engine)
    }

    /// This rank's engines.
    fn engines<'r>(&self, seat: Option<Seat<'r>>, quiet: bool) -> Result<Engines<'r>> {
        let index = seat.as_ref().map_or(0, Seat::index);
        let quiet = quiet || index > 0;
        let member = |topology: usize| seat.as_ref().and_then(|seat| seat.member(topology));
        let plan = &self.plan.ranks[index];
        let account = plan.account();
        let engine = |blueprint: &Option<Blueprint>, topology: usize| {
            let make = |blueprint| self.engine(blueprint, member(topology), &account, quiet);
            blueprint.as_ref().map(make).transpose()
        };
        let mut trainer = engine(&plan.trainer, 0)?;
        let (Some(phases), Some(seat)) = (plan.phases, &seat) else {
            let trainer = trainer.context("the only engine of a rank trains")?;
            return Ok(Engines::one(trainer, seat));
        };
        // There is no room for what both need at once: the trainer makes room before the other engine is made.
        phases.enter(Phase::Rollout, trainer.as_mut(), None)?;
        let roller = engine(&plan.roller, 1)?;
        let (training, generating) = (self.resolved.training(), self.resolved.generating());
        let moved = rl::moved(self.plan.keeps_weights);
        let passed = ShardPlan::new(&self.graph, moved, &training, &generating);
        Ok(Engines::two(trainer, roller, passed, phases, seat.again()))
    }

    /// Runs on every rank; the observer is rank 0's.
    pub(crate) fn run(
        &self,
        observer: &mut (dyn Observer + Send),
        surroundings: &Surroundings,
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
                surroundings,
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
            .map_err(|error| match error.cause {
                // What the lead rank says is what the record says; which rank it was adds nothing.
                Cause::Error(cause) if error.rank == 0 => cause,
                cause => {
                    anyhow::anyhow!("rank {} failed at {}: {cause}", error.rank, error.operation)
                }
            })?;
        outcomes.into_iter().next().context("no rank ran")
    }

    /// An engine that scores by the adapter, for a replay: base weights loaded, the adapter at its initial values.
    pub(crate) fn scorer(&self, quiet: bool) -> Result<Engine<'static>> {
        let train = &self.resolved.train;
        let shape = (train.micro_tokens.value, train.micro_sequences.value);
        let job = Job {
            score: Some(shape),
            score_base: self.plan.trainer.score_base,
            train: self.plan.trainer.train,
            head: self.resolved.head(),
            ..Job::default()
        };
        let blueprint = self.blueprint(Topology::single(), Rank::FIRST, job);
        let account = Account::new(blueprint.ledger.total());
        let mut engine = self.engine(&blueprint, None, &account, quiet)?;
        if train.lora().is_some() {
            engine.init_adapter(train.seed.value);
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
