//! Buffers: the named, typed, shaped pieces of memory that operations read and write.

use crate::ops::PAGE;
use std::fmt;
use std::sync::Arc;

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Unsigned 32-bit integer (token ids, positions, tables).
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
        })
    }
}

/// What a buffer is for: the rows of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Frozen or trained model weights.
    Weight,
    /// LoRA matrices.
    Adapter,
    /// Gradients of trained parameters, with the partial sums of accumulation.
    Gradient,
    /// Optimizer state.
    Optimizer,
    /// Key/value and recurrent caches.
    Context,
    /// Inputs written by the host: ids, positions, targets, coefficients, segment tables.
    Input,
    /// Activations and gradients of activations; they share an arena by lifetime.
    Graph,
    /// Scratch memory of kernels.
    Workspace,
    /// What the rank publishes in an exchange, for others to read.
    Exchange,
}

impl Kind {
    /// Every kind, in ledger order.
    pub const ALL: [Kind; 9] = [
        Kind::Weight,
        Kind::Adapter,
        Kind::Gradient,
        Kind::Optimizer,
        Kind::Context,
        Kind::Input,
        Kind::Graph,
        Kind::Workspace,
        Kind::Exchange,
    ];

    /// Lower-case name, as in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weight => "weights",
            Kind::Adapter => "adapters",
            Kind::Gradient => "gradients",
            Kind::Optimizer => "optimizer",
            Kind::Context => "context",
            Kind::Input => "inputs",
            Kind::Graph => "graph",
            Kind::Workspace => "workspace",
            Kind::Exchange => "exchange",
        }
    }
}

/// How many of a buffer's rows hold data in a given run of the program.
///
/// A program is planned for a capacity; a run may use fewer tokens. Rows past the live count are neither read nor
/// written, which changes no bit of the live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Every row, always.
    Fixed,
    /// Tokens of this rank (context parallel cuts the micro-batch in contiguous ranges).
    Tokens,
    /// Tokens of the whole logical micro-batch.
    AllTokens,
    /// Rows picked for logits (one a sequence, in decoding).
    Picked,
    /// Rows of the segment table of this rank's queries.
    Segments,
    /// Rows of the segment table of the whole micro-batch.
    AllSegments,
    /// Entries of the block table: cache pages of the sequences of a forward pass.
    Blocks,
    /// Rows of those pages.
    BlockRows,
}

/// Index of a buffer in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A two-dimensional buffer, row-major. A vector has one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// For people: parameters carry their checkpoint name; a value that is computed again keeps its name.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Row capacity.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// How many rows are live.
    pub axis: Axis,
    /// Ledger row.
    pub kind: Kind,
}

impl Buffer {
    /// Bytes of the whole buffer.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.bytes()
    }
}

/// Live row counts of one run, by axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Tokens of this rank.
    pub tokens: usize,
    /// Tokens of the logical micro-batch.
    pub all_tokens: usize,
    /// Rows picked for logits.
    pub picked: usize,
    /// Segments with queries on this rank.
    pub segments: usize,
    /// Segments of the logical micro-batch.
    pub all_segments: usize,
    /// Entries of the block table.
    pub blocks: usize,
    /// Logical micro-batches of the optimizer step, over all data ranks; no axis.
    pub micro_batches: usize,
}

impl Live {
    /// Live rows of a buffer, given its axis and capacity.
    pub fn rows(&self, buffer: &Buffer) -> usize {
        let live = match buffer.axis {
            Axis::Fixed => buffer.rows,
            Axis::Tokens => self.tokens,
            Axis::AllTokens => self.all_tokens,
            Axis::Picked => self.picked,
            Axis::Segments => self.segments,
            Axis::AllSegments => self.all_segments,
            Axis::Blocks => self.blocks,
            Axis::BlockRows => self.blocks * PAGE,
        };
        assert!(live <= buffer.rows, "{}: {live} live rows of {}", buffer.name, buffer.rows);
        live
    }
}
