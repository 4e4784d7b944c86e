//! A fine-tuning run from its settings: data, plan, engine, loop, report.

use crate::built;
use crate::checks::{self, NotReady};
use crate::data_report;
use crate::device::{self, Compute, Device};
use crate::encoding::{self, EncodedData};
use crate::infer;
use crate::interrupt;
use crate::model::{self, Model, Source};
use crate::output::{Table, duration, thousands};
use crate::progress;
use anyhow::{Context, Result, anyhow, bail};
use data::{CacheOutcome, Dataset};
use engine::{Blueprint, Engine, Exchange, Fit, Fitter, Job};
use fabric::{Cause, RunError, Seat, World};
use indicatif::ProgressBar;
use program::keep::{Keep, Level};
use program::ledger::Bytes;
use program::store::heaviest_rank;
use program::{Graph, Lease, Ledger, Rank, Topology};
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use train::{EvalEvent, Flow, Observer, Requested, Resolved, Run, StepEvent, Surroundings};

/// Everything before the first step.
pub(crate) struct Tuning {
    pub(crate) model: Model,
    pub(crate) requested: Requested,
    pub(crate) resolved: Resolved,
    pub(crate) dataset: Dataset,
    /// How the encode cache served the data.
    pub(crate) cache: CacheOutcome,
    /// Bytes of the data files.
    pub(crate) data_bytes: usize,
    /// Steps of the run.
    pub(crate) steps: usize,
    /// Held-out samples, where the settings ask for evaluation.
    pub(crate) evaluation: Option<Dataset>,
    pub(crate) surroundings: Surroundings,
    pub(crate) device: Device,
    pub(crate) graph: Graph,
    pub(crate) job: Job,
    /// One a rank.
    pub(crate) blueprints: Vec<Blueprint>,
}

/// A run's model and settings, before its plan and its data.
struct Opened {
    model: Model,
    resolved: Resolved,
    graph: Graph,
    device: Device,
    surroundings: Surroundings,
}

impl Opened {
    fn new(requested: &Requested, source: &Source, quiet: bool) -> Result<Opened> {
        let model = model::open_asked(requested, source, quiet)?;
        let resolved = requested.resolve(&model.facts()?)?;
        let graph = families::build(model.checkpoint.config(), &resolved.build_options())?.graph;
        let threads = Some(threads_of_a_rank(&resolved));
        let device = Device::new(&Compute { threads, profile: resolved.profile.value })?;
        let mut surroundings = Surroundings { device: device.describe(), ..built::surroundings()? };
        surroundings.hashes.extend(model.identity_hashes()?);
        Ok(Opened { model, resolved, graph, device, surroundings })
    }
}

/// Opens the model, resolves settings, plans, and encodes the data; nothing large is allocated.
///
/// # Errors
/// What is wrong, under the check that it fails.
pub(crate) fn prepare(
    requested: Requested,
    source: &Source,
    rest: Job,
    quiet: bool,
) -> Result<Tuning, NotReady> {
    let opened = Opened::new(&requested, source, quiet).map_err(NotReady::at(checks::SETTINGS))?;
    let Opened { model, resolved, graph, device, surroundings } = opened;
    let rest = Job { score: resolved.score_shape(), ..rest };
    let (job, blueprints) =
        plan(&graph, &resolved, rest, &device).map_err(NotReady::at(checks::MEMORY))?;
    let Data { dataset, evaluation, cache, caches, bytes: data_bytes, .. } =
        datasets(&model, &resolved, source, quiet).map_err(NotReady::at(checks::SUPERVISED))?;
    let steps = resolved.schedule(&dataset).map_err(NotReady::at(checks::STEPS))?.steps();
    let surroundings = Surroundings { cache: caches, ..surroundings };
    Ok(Tuning {
        model,
        requested,
        resolved,
        dataset,
        cache,
        data_bytes,
        steps,
        evaluation,
        surroundings,
        device,
        graph,
        job,
        blueprints,
    })
}

/// Threads of each rank: ranks are threads of this process, or its siblings on the same machine, so they share its threads.
pub(crate) fn threads_of_a_rank(resolved: &Resolved) -> usize {
    resolved.threads.value / resolved.topology().ranks()
}

/// The data, and what is held out of it or given beside it.
pub(crate) struct Data {
    pub(crate) dataset: Dataset,
    pub(crate) evaluation: Option<Dataset>,
    /// Where a part is held out: the samples of the whole that stay, in order.
    pub(crate) stay: Option<Vec<usize>>,
    pub(crate) cache: CacheOutcome,
    /// The same as a record holds it, with that of held-out samples where they come from files of their own.
    caches: serde_json::Value,
    /// Of the files.
    pub(crate) bytes: usize,
    /// Which code turned text into ids, where the cache had none.
    pub(crate) way: Option<String>,
}

/// Encodes the data of a run and holds out what its settings say.
pub(crate) fn datasets(
    model: &Model,
    resolved: &Resolved,
    source: &Source,
    quiet: bool,
) -> Result<Data> {
    let EncodedData { dataset: whole, cache, bytes, way } =
        encoding::encode(model, resolved, &resolved.sources(), source, quiet)?;
    let mut held_out_cache = None;
    let (dataset, evaluation, stay) = if let Some(files) = &resolved.eval {
        let files = data::Source::of_files(&files.value);
        let held_out = encoding::encode(model, resolved, &files, source, quiet)?;
        held_out_cache = Some(held_out.cache);
        (whole, Some(held_out.dataset), None)
    } else if let Some(fraction) = &resolved.eval_fraction {
        let split = train::held_out(whole.len(), fraction.value, resolved.seed.value);
        let (stay, out) = split
            .context("eval_fraction: the data has one sample, of which no part can be held out")?;
        (whole.subset(&stay), Some(whole.subset(&out)), Some(stay))
    } else {
        (whole, None, None)
    };
    let mut caches = serde_json::to_value(&cache)?;
    caches[checks::EVALUATION] = serde_json::to_value(&held_out_cache)?;
    Ok(Data { dataset, evaluation, stay, cache, caches, bytes, way })
}

/// The fastest keep set within the lease of each rank, or a refusal with what would fit.
fn plan(
    graph: &Graph,
    resolved: &Resolved,
    rest: Job,
    device: &Device,
) -> Result<(Job, Vec<Blueprint>)> {
    let topology = resolved.topology();
    let shape = resolved.train_shape(Keep::uniform(Level::All));
    let mut job = Job { train: Some(shape), ..rest };
    let workspace = device.workspace();
    let heaviest = heaviest_rank(graph, topology);
    let fitter = Fitter::new(graph, topology, heaviest, &job, &workspace);
    let limit = resolved.memory.as_ref().map_or(usize::MAX, |m| m.value.0);
    let Some(Fit { keep, .. }) = fitter.fastest(shape.step(), limit) else {
        let least = fitter.ledger(shape.step(), Keep::uniform(Level::Input));
        let largest = fitter.largest(shape.tokens, true, limit);
        bail!(
            "micro-batches of {} tokens do not fit: with every layer recomputed they need {} and the lease is {} ({least}); \
             {}",
            thousands(shape.tokens),
            Bytes(least.total()),
            Bytes(limit),
            if largest.sequence == 0 {
                "no number of tokens fits: raise memory, or store weights in bf16".to_string()
            } else {
                format!("the most that fits is micro_tokens = {}", largest.sequence)
            }
        );
    };
    job.train = Some(resolved.train_shape(keep));
    let blueprints: Vec<Blueprint> = (0..topology.ranks())
        .map(|rank| Blueprint::new(graph, topology, Rank::of(rank, &topology), job, &workspace))
        .collect();
    let mut all = Ledger::default();
    for blueprint in &blueprints {
        Lease { bytes: limit }.check(&blueprint.ledger)?;
        blueprint.ledger.rows().for_each(|(kind, bytes)| all.add(kind, bytes));
    }
    device::check_available(&all)?;
    Ok((job, blueprints))
}

impl Tuning {
    /// Allocates what was planned for the first rank and loads the base weights.
    pub(crate) fn engine(&self, quiet: bool) -> Result<Engine<'static>> {
        self.rank_engine(0, None, quiet)
    }

    /// The same for a rank, with its means to exchange with the others.
    pub(crate) fn rank_engine<'r>(
        &self,
        rank: usize,
        exchange: Option<Box<dyn Exchange + 'r>>,
        quiet: bool,
    ) -> Result<Engine<'r>> {
        let executor = self.device.executor()?;
        let mut engine = Engine::new(self.graph.clone(), self.blueprints[rank].clone(), executor)?;
        if let Some(exchange) = exchange {
            engine = engine.with_exchange(exchange);
        }
        infer::load(&mut engine, &self.model, quiet || rank > 0)?;
        Ok(engine)
    }

    /// Runs on every rank with its engine, the base weights loaded: on threads of this process, or as this one of a
    /// launcher's. Gives what the ranks that ran here gave, in order; `quiet` ones tell nobody how loading goes.
    pub(crate) fn on_ranks<T: Send>(
        &self,
        quiet: bool,
        body: impl Fn(usize, &mut Engine<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let topology = self.resolved.topology();
        let rank = |seat: &mut Seat<'_>| {
            let exchange = seat.member(0).map(|member| Box::new(member) as Box<dyn Exchange>);
            let mut engine = self.rank_engine(seat.index(), exchange, quiet)?;
            body(seat.index(), &mut engine)
        };
        let world = World::new(&[topology]);
        let ranks = match fabric::launched() {
            None => world.run(rank),
            Some(_) => world.run_process(rank).map(|mine| vec![mine]),
        };
        ranks.map_err(|error| of_ranks(error, &topology))
    }

    /// Bytes of every rank together.
    pub(crate) fn planned_bytes(&self) -> usize {
        self.blueprints.iter().map(|blueprint| blueprint.ledger.total()).sum()
    }

    /// The surroundings of a run with the checks before it; refuses where one failed.
    pub(crate) fn checked(
        &self,
        engine: &mut Engine<'_>,
        options: checks::Options,
    ) -> Result<Surroundings> {
        let mut checks = checks::standing(self, engine, options)?;
        checks.extend(checks::trial(self, engine, options)?);
        checks::refuse_failed(&checks)?;
        Ok(Surroundings { checks, ..self.surroundings.clone() })
    }

    /// The run of an engine of [`Tuning::engine`]; `extra_files` go beside the weights of a tuned model.
    pub(crate) fn run<'a, 'r>(
        &'a self,
        engine: &'a mut Engine<'r>,
        surroundings: &'a Surroundings,
        extra_files: &'a [(&'a str, &'a [u8])],
    ) -> Run<'a, 'r> {
        Run {
            engine,
            checkpoint: &self.model.checkpoint,
            dataset: &self.dataset,
            evaluation: self.evaluation.as_ref(),
            requested: &self.requested,
            resolved: &self.resolved,
            surroundings,
            extra_files,
        }
    }

    /// What will run, in a few lines.
    pub(crate) fn summary(&self) -> String {
        let r = &self.resolved;
        let size = self.dataset.size();
        let keep = self.job.train.map_or(String::new(), |t| t.keep.to_string());
        format!(
            "{} · {} trained of {} parameters · {}\n\
             data: {} samples, {} tokens, {} learnt · {} steps of {} × {} tokens\n\
             {}{}\n\
             plan: {}{} ({keep})\n",
            self.model.identity,
            thousands(self.graph.trainable_elements()),
            thousands(self.graph.params.iter().filter(|p| !p.adapter).map(|p| p.elements()).sum()),
            self.device.describe(),
            thousands(size.samples),
            thousands(size.tokens),
            thousands(size.supervised),
            self.steps,
            r.accumulation.value,
            thousands(r.micro_tokens.value),
            shared_text(self.evaluation.as_ref().map_or(0, |e| e.shared_with(&self.dataset))),
            data_report::cache(&self.cache, self.data_bytes),
            Bytes(self.planned_bytes()),
            ranks_text(&r.topology(), r.accumulation.value),
        )
    }
}

/// What evaluation is not worth, where samples are on both sides.
pub(crate) fn shared_text(shared: usize) -> String {
    match shared {
        0 => String::new(),
        n => format!(
            "note: {n} samples to evaluate on are trained on too: their loss says nothing of new ones\n"
        ),
    }
}

/// The failure of the first rank to fail; which one it was is told where there are several.
fn of_ranks(error: RunError<anyhow::Error>, topology: &Topology) -> anyhow::Error {
    match error.cause {
        Cause::Error(cause) if topology.ranks() == 1 => cause,
        Cause::Error(cause) => {
            cause.context(format!("rank {} failed at {}", error.rank, error.operation))
        }
        cause => anyhow!("rank {} failed at {}: {cause}", error.rank, error.operation),
    }
}

/// Ranks in words, where there are several; `micro_batches` are those of a step.
fn ranks_text(topology: &Topology, micro_batches: usize) -> String {
    let Topology { tp, cp, dp, .. } = *topology;
    let over = match topology.ranks() {
        1 => return String::new(),
        ranks => format!(" over {ranks} ranks, tp {tp} × cp {cp} × dp {dp}"),
    };
    if dp <= micro_batches {
        return over;
    }
    let idle = dp - micro_batches;
    format!("{over}; {idle} of {dp} data ranks only repeat others: accumulation is {micro_batches}")
}

/// Draws the loop's progress (a line now and then where there is no terminal) and stops it on Ctrl-C or SIGTERM.
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    quiet: bool,
    /// Whether the run was begun before.
    resumes: bool,
    stop: Arc<AtomicBool>,
    pub(crate) steps: Vec<StepEvent>,
}

impl Bar {
    pub(crate) fn new(quiet: bool, resumes: bool) -> Result<Bar> {
        let stop = interrupt::stop_flag()?;
        Ok(Bar { bar: None, quiet, resumes, stop, steps: Vec::new() })
    }
}

/// Lines of progress in a run whose error stream is no terminal.
const PLAIN_LINES: usize = 10;

impl Observer for Bar {
    fn start(&mut self, step: usize, steps: usize) {
        if self.resumes && !self.quiet {
            match step {
                0 => tell!("there is no checkpoint: the run begins again at its first step"),
                _ => tell!("goes on from the checkpoint after step {step} of {steps}"),
            }
        }
        let bar = progress::steps(steps as u64, self.quiet);
        bar.set_position(step as u64);
        self.bar = Some(bar);
    }

    fn evaluated(&mut self, event: &EvalEvent) {
        let EvalEvent { step, loss, best_loss, best_step, .. } = event;
        let line = format!(
            "evaluation after step {step}: loss {loss:.4} (best {best_loss:.4} after step {best_step})"
        );
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{line}")),
            None => tell!("{line}"),
        }
    }

    fn step(&mut self, event: &StepEvent) -> Flow {
        if let Some(bar) = &self.bar {
            bar.set_position(event.step as u64);
            bar.set_message(format!(
                "loss {:.4}  {:.0} tokens/s  norm {:.3}  lr {:.1e}",
                event.loss,
                event.tokens as f64 / event.seconds,
                event.grad_norm,
                event.lr
            ));
            if event.step == event.steps {
                bar.finish_and_clear();
            }
        }
        let part = |step: usize| step * PLAIN_LINES / event.steps;
        if !self.quiet
            && !std::io::stderr().is_terminal()
            && part(event.step) > part(event.step - 1)
        {
            let rate = event.tokens as f64 / event.seconds;
            tell!(
                "step {} of {}: loss {:.4}, {rate:.0} tokens/s",
                event.step,
                event.steps,
                event.loss
            );
        }
        self.steps.push(event.clone());
        if self.stop.load(Ordering::SeqCst) { Flow::Stop } else { Flow::Continue }
    }
}

/// Planned against used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemoryReport {
    pub(crate) planned_bytes: usize,
    pub(crate) allocated_bytes: usize,
    pub(crate) resident_before_bytes: Option<usize>,
    pub(crate) peak_resident_bytes: Option<usize>,
}

impl MemoryReport {
    /// Compares an engine with its plan; `before` is the resident size before it was made.
    pub(crate) fn of(engine: &Engine<'_>, before: Option<usize>) -> MemoryReport {
        MemoryReport::of_ranks(engine.blueprint.ledger.total(), engine.ledger().total(), before)
    }

    /// The same for the bytes of every rank together.
    pub(crate) fn of_ranks(
        planned_bytes: usize,
        allocated_bytes: usize,
        before: Option<usize>,
    ) -> MemoryReport {
        MemoryReport {
            planned_bytes,
            allocated_bytes,
            resident_before_bytes: before,
            peak_resident_bytes: device::peak_resident_bytes().ok(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut table = Table::new(&["memory", "", "bytes"]);
        let mut row = |name: &str, bytes: usize| {
            table.row([name.to_string(), Bytes(bytes).to_string(), thousands(bytes)]);
        };
        row("planned", self.planned_bytes);
        row("allocated", self.allocated_bytes);
        if let (Some(before), Some(peak)) = (self.resident_before_bytes, self.peak_resident_bytes) {
            row("resident growth", peak.saturating_sub(before));
            row("peak resident", peak);
        }
        table.text()
    }
}

/// Loss and rate of a finished loop.
pub(crate) fn steps_text(steps: &[StepEvent]) -> String {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return "no step was left to run".into();
    };
    let tokens: usize = steps.iter().map(|s| s.tokens).sum();
    let seconds: f64 = steps.iter().map(|s| s.seconds).sum();
    format!(
        "{} steps in {}: loss {:.4} → {:.4}, {:.0} tokens/s",
        steps.len(),
        duration(seconds),
        first.loss,
        last.loss,
        tokens as f64 / seconds
    )
}
