//! Fitting a training job in a lease: the fastest keep set, or what would fit instead.

use crate::blueprint::{Job, TrainShape, head_chunk};
use program::keep::{self, Keep, Level};
use program::lower::{self, Head, Mode, Options, Program};
use program::store::StoreOptions;
use program::{Graph, Ledger, Op, Plan, Rank, Store, Topology};

/// Scratch bytes that the executor's kernel of an operation needs.
pub type Workspace<'a> = dyn Fn(&Op, &Program) -> usize + 'a;

/// Plans training steps of one model on one rank, again and again with other shapes.
pub struct Fitter<'a> {
    graph: &'a Graph,
    store: Store,
    /// What the job's other programs need (optimizer, generation, …).
    others: Ledger,
    head: Head,
    workspace: &'a Workspace<'a>,
}

/// A micro-batch's shape and whether logits of a chunk serve both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepShape {
    /// Tokens.
    pub tokens: usize,
    /// Most sequences.
    pub segments: usize,
    /// See [`TrainShape::coef_known`].
    pub coef_known: bool,
}

/// A training step and what a job needs with it.
#[derive(Clone, Debug)]
pub struct Fit {
    /// What it keeps.
    pub keep: Keep,
    /// The step.
    pub program: Program,
    /// Bytes by kind of the whole job.
    pub ledger: Ledger,
}

/// What would fit where the asked-for shape does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Longest single sequence, tokens; 0 when not even one token fits.
    pub sequence: usize,
    /// Most sequences of the asked-for length.
    pub micro_batch: usize,
}

impl<'a> Fitter<'a> {
    /// A fitter for a job's store. The job's own training shape gives only its accumulation.
    pub fn new(
        graph: &'a Graph,
        topology: Topology,
        rank: Rank,
        job: &Job,
        workspace: &'a Workspace<'a>,
    ) -> Self {
        let options =
            StoreOptions { accumulation: job.train.map_or(1, |t| t.accumulation), ..job.pages() };
        let store = Store::new(graph, topology, rank, options);
        let without = Job { train: None, ..*job };
        let others = crate::Blueprint::over(store.clone(), graph, without, workspace).ledger;
        Fitter { graph, store, others, head: job.head, workspace }
    }

    /// Positions that the model was made for.
    pub fn max_positions(&self) -> usize {
        self.graph.max_positions
    }

    /// The training program of a shape.
    pub fn program(&self, shape: StepShape, keep: Keep) -> Program {
        let options = Options {
            mode: Mode::Train { coef_known: shape.coef_known },
            tokens: shape.tokens,
            segments: shape.segments,
            chunk: head_chunk(self.graph.vocab),
            head: self.head,
            adapters: true,
            keep: keep.set(self.graph),
        };
        lower::lower(self.graph, &self.store, &options)
    }

    /// Bytes by kind of the whole job with this training step.
    pub fn ledger(&self, shape: StepShape, keep: Keep) -> Ledger {
        self.ledger_of(&self.program(shape, keep))
    }

    /// A training step with its bytes, whether they fit somewhere or not.
    pub fn step(&self, shape: StepShape, keep: Keep) -> Fit {
        let program = self.program(shape, keep);
        let ledger = self.ledger_of(&program);
        Fit { keep, program, ledger }
    }

    fn ledger_of(&self, program: &Program) -> Ledger {
        let scratch = program.ops.iter().map(|op| (self.workspace)(op, program)).max().unwrap_or(0);
        Plan::new(&self.store, program, scratch).ledger.max(&self.others)
    }

    /// The step with the fastest keep set within `limit` bytes.
    pub fn fastest(&self, shape: StepShape, limit: usize) -> Option<Fit> {
        let (keep, step) = keep::fastest(self.graph.layers, limit, |keep| {
            let step = self.step(shape, keep);
            (step.ledger.total(), step)
        })?;
        Some(Fit { keep, ..step })
    }

    /// The largest shapes that fit in `limit` bytes when everything is computed again.
    pub fn largest(&self, length: usize, coef_known: bool, limit: usize) -> Largest {
        let fits = |tokens: usize, segments: usize| {
            let shape = StepShape { tokens, segments, coef_known };
            self.ledger(shape, Keep::uniform(Level::Input)).total() <= limit
        };
        let most = |ceiling: usize, fits: &dyn Fn(usize) -> bool| {
            let (mut low, mut high) = (0, ceiling + 1);
            while low + 1 < high {
                let mid = low + (high - low) / 2;
                if fits(mid) { low = mid } else { high = mid }
            }
            low
        };
        Largest {
            sequence: most(self.graph.max_positions, &|tokens| fits(tokens, 1)),
            micro_batch: most(MAX_MICRO_BATCH, &|count| fits(count * length, count)),
        }
    }
}

/// Most sequences that [`Fitter::largest`] looks at.
const MAX_MICRO_BATCH: usize = 1024;

impl TrainShape {
    /// The step's shape.
    pub fn step(&self) -> StepShape {
        StepShape { tokens: self.tokens, segments: self.segments, coef_known: self.coef_known }
    }
}
