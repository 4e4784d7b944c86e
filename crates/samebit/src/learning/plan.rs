//! What every rank of a reinforcement-learning run holds, phase by phase, before anything is allocated.

use crate::device::{self, Device};
use anyhow::Result;
use arena::Account;
use engine::{Blueprint, Fit, Fitter, GenerateShape, Job, Phase, Phases, TrainShape};
use fabric::World;
use program::keep::{Keep, Level};
use program::ledger::Bytes;
use program::store::heaviest_rank;
use program::{Graph, Ledger, Rank, Topology};
use rl::{Method, Resolved};
use serde::Serialize;
use std::sync::Arc;

/// Tokens of a forward pass of the rollout.
const PASS_TOKENS: usize = 512;

/// The plan of a run.
#[derive(Serialize)]
pub(crate) struct Plan {
    /// What is kept between forward and backward pass.
    pub(crate) keep: String,
    /// Bytes that a rank may use.
    lease_bytes: Option<usize>,
    /// Whether one engine trains and generates.
    one_engine: bool,
    /// Whether rollout engines keep their weights while trainers step.
    pub(crate) keeps_weights: bool,
    /// The most that all ranks may hold together.
    pub(crate) peak_bytes: usize,
    /// Each rank of the world.
    pub(crate) ranks: Vec<RankPlan>,
    /// What trains; it generates too where one engine has both jobs.
    #[serde(skip)]
    pub(crate) trainer: Job,
}

/// One rank's part.
#[derive(Serialize)]
pub(crate) struct RankPlan {
    #[serde(skip)]
    pub(crate) trainer: Option<Blueprint>,
    #[serde(skip)]
    pub(crate) roller: Option<Blueprint>,
    /// Of two engines.
    #[serde(skip)]
    pub(crate) phases: Option<Phases>,
    /// The most that the rank holds.
    peak_bytes: usize,
    /// Bytes in each phase; none where one engine holds its memory all the time.
    #[serde(rename = "phases")]
    rows: Vec<Row>,
}

/// A phase's bytes.
#[derive(Clone, Copy, Serialize)]
struct Row {
    phase: &'static str,
    trainer_bytes: usize,
    rollout_bytes: usize,
    total_bytes: usize,
}

impl RankPlan {
    fn new(
        trainer: Option<Blueprint>,
        roller: Option<Blueprint>,
        phases: Option<Phases>,
    ) -> RankPlan {
        let alone = trainer.as_ref().map_or(0, |trainer| trainer.ledger.total());
        let row = |phases: &Phases, phase: Phase| {
            let ledger = phases.ledger(phase);
            Row {
                phase: phase.name(),
                trainer_bytes: ledger.trainer.total(),
                rollout_bytes: ledger.rollout.total(),
                total_bytes: ledger.total(),
            }
        };
        let rows =
            phases.as_ref().map(|phases| Phase::ALL.map(|phase| row(phases, phase)).to_vec());
        let peak_bytes = phases.map_or(alone, |phases| phases.peak());
        RankPlan { trainer, roller, phases, peak_bytes, rows: rows.unwrap_or_default() }
    }

    /// An account with exactly the room that was planned.
    pub(crate) fn account(&self) -> Arc<Account> {
        Account::new(self.peak_bytes)
    }
}

/// What is planned for.
struct Planner<'a> {
    graph: &'a Graph,
    device: &'a Device,
    training: Topology,
    generating: Topology,
    /// Bytes that a rank may use.
    limit: usize,
}

impl Plan {
    /// Plans a run whose longest sequence has `longest` tokens: the fastest keep set within the lease of each rank.
    /// Rollout engines give their weights back while trainers step where every weight passes at each sync anyway (mode
    /// full), or where the lease has no room for them.
    pub(crate) fn new(
        resolved: &Resolved,
        graph: &Graph,
        device: &Device,
        longest: usize,
    ) -> Result<Plan> {
        let lease_bytes = resolved.train.memory.as_ref().map(|chosen| chosen.value.0);
        let planner = Planner {
            graph,
            device,
            training: resolved.training(),
            generating: resolved.generating(),
            limit: lease_bytes.unwrap_or(usize::MAX),
        };
        let generate = match &resolved.method {
            Method::Grpo(g) => {
                Some(GenerateShape::full(g.rollout_sequences.value, longest, PASS_TOKENS))
            }
            Method::Dpo(_) => None,
        };
        let mut trainer = resolved.training_job(longest, Keep::uniform(Level::All));
        let one_engine = planner.training == planner.generating;
        let roller = match one_engine {
            true => {
                trainer.generate = generate;
                None
            }
            false => Some(Job { generate, head: resolved.head(), ..Job::default() }),
        };
        let lora = resolved.train.lora().is_some();
        let choices: &[bool] = if lora { &[true, false] } else { &[false] };
        let rollers = planner.blueprints(planner.generating, roller);
        for &keeps_weights in choices {
            let Some(job) = planner.fitted(trainer, &rollers, keeps_weights) else { continue };
            let trainers = planner.blueprints(planner.training, Some(job));
            let ranks = planner.ranks(trainers, rollers.clone(), keeps_weights);
            if ranks.iter().any(|rank| rank.peak_bytes > planner.limit) {
                continue;
            }
            let peak_bytes = ranks.iter().map(|rank| rank.peak_bytes).sum();
            let keep = job.train.map_or(String::new(), |train| train.keep.to_string());
            let plan = Plan {
                keep,
                lease_bytes,
                one_engine,
                keeps_weights,
                peak_bytes,
                ranks,
                trainer: job,
            };
            device::check_available(&plan.ledger())?;
            return Ok(plan);
        }
        Err(planner.refusal(trainer, &rollers))
    }

    /// The most bytes by kind of all ranks.
    fn ledger(&self) -> Ledger {
        let most = |rank: &RankPlan| match (&rank.phases, &rank.trainer) {
            (Some(phases), _) => {
                let ledgers = Phase::ALL.map(|phase| phases.ledger(phase));
                let most = ledgers.into_iter().max_by_key(|ledger| ledger.total());
                most.map_or(Ledger::default(), |most| most.trainer.plus(&most.rollout))
            }
            (None, trainer) => trainer.as_ref().map_or(Ledger::default(), |trainer| trainer.ledger),
        };
        self.ranks.iter().map(most).fold(Ledger::default(), |sum, ledger| sum.plus(&ledger))
    }

    /// In a few lines.
    pub(crate) fn text(&self) -> String {
        let Plan { keep, peak_bytes, ranks, one_engine, .. } = self;
        let of_ranks = match ranks.len() {
            1 => String::new(),
            ranks => format!(" over {ranks} ranks"),
        };
        let mut text = format!("plan: {}{of_ranks} ({keep})\n", Bytes(*peak_bytes));
        if *one_engine {
            return text
                + "phases: one engine trains and generates, in the same memory all the time\n";
        }
        for (index, rank) in ranks.iter().enumerate() {
            let row = |row: &Row| {
                format!(
                    "{} {} (trainer {}, rollout {})",
                    row.phase,
                    Bytes(row.total_bytes),
                    Bytes(row.trainer_bytes),
                    Bytes(row.rollout_bytes)
                )
            };
            let rows: Vec<String> = rank.rows.iter().map(row).collect();
            text += &format!("  rank {index}: {}\n", rows.join(" · "));
        }
        if !self.keeps_weights {
            text += "rollout engines give their weights back while trainers step; every sync passes all of them\n";
        }
        text
    }
}

impl Planner<'_> {
    fn blueprints(&self, topology: Topology, job: Option<Job>) -> Vec<Blueprint> {
        let workspace = self.device.workspace();
        let of = |job| {
            let ranks = (0..topology.ranks()).map(|index| Rank::of(index, &topology));
            ranks.map(|rank| Blueprint::new(self.graph, topology, rank, job, &workspace)).collect()
        };
        job.map_or(Vec::new(), of)
    }

    /// Bytes that a rollout engine holds while its trainer steps, at most.
    fn beside(&self, rollers: &[Blueprint], keeps_weights: bool) -> usize {
        let held = |roller: &Blueprint| {
            let phases = Phases::new(&Ledger::default(), &roller.ledger, keeps_weights);
            phases.ledger(Phase::Train).total()
        };
        rollers.iter().map(held).max().unwrap_or(0)
    }

    /// The training job with the fastest keep set that fits beside rollout engines.
    fn fitted(&self, trainer: Job, rollers: &[Blueprint], keeps_weights: bool) -> Option<Job> {
        let workspace = self.device.workspace();
        let heaviest = heaviest_rank(self.graph, self.training);
        let fitter = Fitter::new(self.graph, self.training, heaviest, &trainer, &workspace);
        let shape = trainer.train?;
        let room = self.limit.saturating_sub(self.beside(rollers, keeps_weights));
        let Fit { keep, .. } = fitter.fastest(shape.step(), room)?;
        Some(Job { train: Some(TrainShape { keep, ..shape }), ..trainer })
    }

    fn ranks(
        &self,
        trainers: Vec<Blueprint>,
        rollers: Vec<Blueprint>,
        keeps_weights: bool,
    ) -> Vec<RankPlan> {
        let world = World::new(&[self.training, self.generating]).size();
        let two = !rollers.is_empty();
        let (mut trainers, mut rollers) = (trainers.into_iter(), rollers.into_iter());
        (0..world)
            .map(|_| {
                let (trainer, roller) = (trainers.next(), rollers.next());
                let ledger =
                    |of: &Option<Blueprint>| of.as_ref().map_or(Ledger::default(), |b| b.ledger);
                let phases =
                    two.then(|| Phases::new(&ledger(&trainer), &ledger(&roller), keeps_weights));
                RankPlan::new(trainer, roller, phases)
            })
            .collect()
    }

    fn refusal(&self, trainer: Job, rollers: &[Blueprint]) -> anyhow::Error {
        let workspace = self.device.workspace();
        let heaviest = heaviest_rank(self.graph, self.training);
        let fitter = Fitter::new(self.graph, self.training, heaviest, &trainer, &workspace);
        let Some(shape) = trainer.train else { unreachable!("the job trains") };
        let least = fitter.ledger(shape.step(), Keep::uniform(Level::Input));
        let rollout = rollers.iter().map(|roller| roller.ledger.total()).max().unwrap_or(0);
        anyhow::anyhow!(
            "micro-batches of {} tokens do not fit: with every layer recomputed a rank needs {} beside {} of its rollout \
             engine while it steps, and {} for that engine while it generates; the lease of a rank is {}. Lower \
             micro_tokens, rollout_sequences or max_tokens, or raise memory",
            shape.tokens,
            Bytes(least.total()),
            Bytes(self.beside(rollers, false)),
            Bytes(rollout),
            Bytes(self.limit)
        )
    }
}
