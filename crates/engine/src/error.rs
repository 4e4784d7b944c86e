//! What can go wrong while a model runs.

use arena::ExecError;
use formats::FormatError;
use program::Kind;

/// An engine error.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A checkpoint could not be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An operation could not be carried out.
    #[error("operation {index} ({op}{layer}): {source}", layer = layer.map_or(String::new(), |l| format!(", layer {l}")))]
    Exec {
        /// Index in its program.
        index: usize,
        /// Its name.
        op: &'static str,
        /// Its layer.
        layer: Option<usize>,
        /// What went wrong.
        source: ExecError,
    },
    /// Ranks could not exchange data.
    #[error("operation {index}: {message}")]
    Exchange {
        /// Index in its program.
        index: usize,
        /// What the exchange says.
        message: String,
    },
    /// Ranks could not exchange bytes of the host.
    #[error("{what}: {message}")]
    Gather {
        /// What was exchanged.
        what: String,
        /// What the exchange says.
        message: String,
    },
    /// A micro-batch that another replica runs.
    #[error(
        "micro-batch {index} of the step is another replica's: this one runs {first} to {end}, excluded"
    )]
    OtherReplica {
        /// The micro-batch.
        index: usize,
        /// First of this replica's.
        first: usize,
        /// Past its last.
        end: usize,
    },
    /// Not one coefficient a token.
    #[error(
        "{given} coefficients for {tokens} tokens; give one for each, 0 where the target is inactive"
    )]
    Coefficients {
        /// Coefficients given.
        given: usize,
        /// Tokens of the micro-batch.
        tokens: usize,
    },
    /// The words of the gradient norm's sum are none.
    #[error("gradient norm: {0}")]
    NotASum(String),
    /// More tokens or segments than the program was planned for.
    #[error(
        "a micro-batch of {tokens} tokens in {segments} sequences is over the planned {capacity} tokens in {most} sequences"
    )]
    OverCapacity {
        /// Tokens given.
        tokens: usize,
        /// Sequences given.
        segments: usize,
        /// Tokens planned.
        capacity: usize,
        /// Sequences planned.
        most: usize,
    },
    /// A sequence longer than its cache or the model's context.
    #[error("a sequence of {length} tokens is longer than {limit}, {what}")]
    TooLong {
        /// Tokens.
        length: usize,
        /// Most.
        limit: usize,
        /// Whose limit.
        what: &'static str,
    },
    /// A page that the cache does not have.
    #[error("page {page} is outside a cache of {pages} pages")]
    PageOutside {
        /// The page.
        page: u32,
        /// Pages there are.
        pages: usize,
    },
    /// A program that needs memory which has been released.
    #[error("`{program}` needs {} and they sleep: wake them first", kind.name())]
    Asleep {
        /// The program.
        program: &'static str,
        /// What sleeps.
        kind: Kind,
    },
    /// Weights that were given back and have not been written since.
    #[error(
        "{count} parameters slept and were not written since, `{name}` first: pass the weights before"
    )]
    Lost {
        /// How many.
        count: usize,
        /// The first.
        name: String,
    },
    /// A gradient norm that is not a number or infinite: nothing was updated.
    #[error("the gradient norm is {norm}: nothing was updated")]
    NonFiniteGradient {
        /// The norm.
        norm: f32,
    },
    /// The adapter does not fit the model.
    #[error("adapter: {0}")]
    Adapter(String),
    /// The system refused memory.
    #[error(transparent)]
    Alloc(#[from] arena::AllocError),
    /// A sequence without tokens.
    #[error("a sequence has no tokens")]
    Empty,
    /// The job did not plan for this.
    #[error("this engine was not planned for {0}")]
    NotPlanned(&'static str),
}
