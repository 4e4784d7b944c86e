//! Everything a job will run, planned before anything is allocated.

use program::keep::Keep;
use program::lower::{self, Head, Mode, Options};
use program::ops::PAGE;
use program::store::StoreOptions;
use program::{Graph, Ledger, Op, Plan, Program, Rank, Store, Topology};

/// A program with its plan.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program.
    pub program: Program,
    /// Where its buffers are.
    pub plan: Plan,
    /// Sequences it takes.
    pub segments: usize,
}

/// A training job's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainShape {
    /// Token capacity of a logical micro-batch.
    pub tokens: usize,
    /// Most sequences in it.
    pub segments: usize,
    /// Logical micro-batches in an optimizer step, at most.
    pub accumulation: usize,
    /// Keep or recompute.
    pub keep: Keep,
    /// Whether coefficients are known before the forward pass (supervised fine-tuning).
    pub coef_known: bool,
}

/// A generation job's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerateShape {
    /// Sequences in one forward pass.
    pub sequences: usize,
    /// Tokens of the longest sequence, prompt and completion.
    pub length: usize,
    /// Tokens of one forward pass, those of prompts and decoded ones together: at least one a sequence.
    pub tokens: usize,
    /// Pages of the key/value cache over all context ranks, each of [`PAGE`] tokens.
    pub pages: usize,
    /// Pages in turn of each context rank.
    pub interleave: usize,
}

impl GenerateShape {
    /// A cache in which every sequence may reach its full length.
    pub fn full(sequences: usize, length: usize, tokens: usize) -> Self {
        let pages = sequences * length.div_ceil(PAGE);
        GenerateShape { sequences, length, tokens: tokens.max(sequences), pages, interleave: 1 }
    }

    /// Pages of one sequence of full length.
    pub fn pages_each(&self) -> usize {
        self.length.div_ceil(PAGE)
    }

    /// The pages of sequence `slot` when each has its own, one after the other.
    ///
    /// # Panics
    /// On a slot that the cache has no pages for.
    pub fn slot(&self, slot: usize) -> Vec<u32> {
        let each = self.pages_each();
        assert!((slot + 1) * each <= self.pages, "slot {slot} of a cache of {} pages", self.pages);
        (slot * each..(slot + 1) * each).map(|page| page as u32).collect()
    }
}

/// What a job will do; each part may be absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Job {
    /// Training.
    pub train: Option<TrainShape>,
    /// Scoring: tokens and sequences of a micro-batch.
    pub score: Option<(usize, usize)>,
    /// Scoring by the base model, without its adapters: tokens and sequences of a micro-batch.
    pub score_base: Option<(usize, usize)>,
    /// What training and scoring find of each token: temperature, truncation, entropy.
    pub head: Head,
    /// Generation.
    pub generate: Option<GenerateShape>,
}

impl Job {
    /// What the store makes room for, training apart.
    pub(crate) fn pages(&self) -> StoreOptions {
        let default = StoreOptions::default();
        let of =
            |g: GenerateShape| StoreOptions { pages: g.pages, interleave: g.interleave, ..default };
        self.generate.map_or(default, of)
    }
}

/// A job's programs and the bytes that they need together.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The job.
    pub job: Job,
    /// Persistent buffers.
    pub store: Store,
    /// The store alone.
    pub resident: Compiled,
    /// The training step of one micro-batch.
    pub train: Option<Compiled>,
    /// The tree over micro-batches of a step.
    pub accumulate: Option<Compiled>,
    /// Gradient norm and update.
    pub optimizer: Option<Compiled>,
    /// Scoring.
    pub score: Option<Compiled>,
    /// Scoring by the base model.
    pub score_base: Option<Compiled>,
    /// A forward pass over the cache: chunks of prompts and decoded tokens of many sequences.
    pub generate: Option<Compiled>,
    /// Bytes by kind, the maximum over the programs, which run in turn.
    pub ledger: Ledger,
}

/// Rows of logits that exist at once: about 32 MiB of them, a multiple of 16.
pub fn head_chunk(vocab: usize) -> usize {
    const LOGIT_BYTES: usize = 32 << 20;
    (LOGIT_BYTES / (vocab * 4)).clamp(16, 512) / 16 * 16
}

impl Blueprint {
    /// Plans a job. `workspace` tells the scratch bytes that the executor's kernel of an operation needs.
    pub fn new(
        graph: &Graph,
        topology: Topology,
        rank: Rank,
        job: Job,
        workspace: &dyn Fn(&Op, &Program) -> usize,
    ) -> Blueprint {
        let options =
            StoreOptions { accumulation: job.train.map_or(0, |t| t.accumulation), ..job.pages() };
        let store = Store::new(graph, topology, rank, options);
        Blueprint::over(store, graph, job, workspace)
    }

    /// Plans a job over a store that was made for it (or for more).
    pub(crate) fn over(
        store: Store,
        graph: &Graph,
        job: Job,
        workspace: &dyn Fn(&Op, &Program) -> usize,
    ) -> Blueprint {
        let compile = |program: Program, segments: usize| {
            let scratch = program.ops.iter().map(|op| workspace(op, &program)).max().unwrap_or(0);
            let plan = Plan::new(&store, &program, scratch);
            Compiled { program, plan, segments }
        };
        let lower = |mode: Mode, tokens: usize, segments: usize, keep: Vec<bool>| {
            let (chunk, head) = (head_chunk(graph.vocab), job.head);
            let options = Options { mode, tokens, segments, chunk, head, adapters: true, keep };
            compile(lower::lower(graph, &store, &options), segments)
        };
        let train = job.train.map(|t| {
            let mode = Mode::Train { coef_known: t.coef_known };
            lower(mode, t.tokens, t.segments, t.keep.set(graph))
        });
        let accumulate = job.train.map(|_| compile(lower::accumulate(&store), 0));
        let optimizer = job.train.map(|_| compile(lower::optimizer(graph, &store), 0));
        let score =
            job.score.map(|(tokens, segments)| lower(Mode::Score, tokens, segments, vec![]));
        let score_base = job.score_base.map(|(tokens, segments)| {
            // The reference has no candidates of its own: it is asked over the whole vocabulary.
            let head = Head { truncated: false, entropy: false, ..job.head };
            let (mode, chunk) = (Mode::Score, head_chunk(graph.vocab));
            let keep = vec![];
            let options = Options { mode, tokens, segments, chunk, head, adapters: false, keep };
            compile(lower::lower(graph, &store, &options), segments)
        });
        let generate = job.generate.map(|g| {
            let mode = Mode::Generate { picked: g.sequences, blocks: g.sequences * g.pages_each() };
            lower(mode, g.tokens, g.sequences, vec![])
        });
        let resident = compile(lower::resident(&store), 0);
        let programs = [&train, &optimizer, &score, &score_base, &generate];
        let ledger = programs
            .into_iter()
            .flatten()
            .fold(resident.plan.ledger, |ledger, compiled| ledger.max(&compiled.plan.ledger));
        Blueprint {
            job,
            resident,
            train,
            accumulate,
            optimizer,
            score,
            score_base,
            generate,
            ledger,
            store,
        }
    }
}
