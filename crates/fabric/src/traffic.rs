//! Bytes that move between ranks.

use program::ops::CollectiveKind;

/// Kinds of movement, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Movement {
    /// Subtree sums.
    TreeSum,
    /// Embedding rows of other owners.
    OwnerRows,
    /// Rows of other ranks' tokens.
    GatherTokens,
    /// Columns of other ranks' tokens.
    ExchangeColumns,
    /// Column slices of other ranks.
    GatherColumns,
    /// Contributions kept apart.
    Collect,
    /// Sums of micro-batches' gradients.
    StepSum,
    /// Updated slices of parameters.
    GatherSlices,
    /// Exact sums.
    ExactSum,
    /// Bytes of the host.
    Host,
}

impl Movement {
    /// Every kind.
    pub const ALL: [Movement; 10] = [
        Movement::TreeSum,
        Movement::OwnerRows,
        Movement::GatherTokens,
        Movement::ExchangeColumns,
        Movement::GatherColumns,
        Movement::Collect,
        Movement::StepSum,
        Movement::GatherSlices,
        Movement::ExactSum,
        Movement::Host,
    ];

    /// The kind of a collective.
    pub fn of(kind: &CollectiveKind) -> Movement {
        match kind {
            CollectiveKind::TreeSum { .. } => Movement::TreeSum,
            CollectiveKind::OwnerRows { .. } => Movement::OwnerRows,
            CollectiveKind::GatherTokens => Movement::GatherTokens,
            CollectiveKind::ExchangeColumns { .. } => Movement::ExchangeColumns,
            CollectiveKind::GatherColumns { .. } => Movement::GatherColumns,
            CollectiveKind::Collect { .. } => Movement::Collect,
            CollectiveKind::StepSum { .. } => Movement::StepSum,
            CollectiveKind::GatherSlices { .. } => Movement::GatherSlices,
            CollectiveKind::ExactSum => Movement::ExactSum,
        }
    }

    /// Lower-case name, as in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Movement::TreeSum => "tree_sum",
            Movement::OwnerRows => "owner_rows",
            Movement::GatherTokens => "gather_tokens",
            Movement::ExchangeColumns => "exchange_columns",
            Movement::GatherColumns => "gather_columns",
            Movement::Collect => "collect",
            Movement::StepSum => "step_sum",
            Movement::GatherSlices => "gather_slices",
            Movement::ExactSum => "exact_sum",
            Movement::Host => "host",
        }
    }
}

/// Bytes that one rank has received from others, by kind: what its results are made of, each byte once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    bytes: [u64; Movement::ALL.len()],
}

impl Traffic {
    /// Bytes of a kind.
    pub fn bytes(&self, movement: Movement) -> u64 {
        self.bytes[movement as usize]
    }

    /// Bytes of every kind together.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    pub(crate) fn add(&mut self, movement: Movement, bytes: u64) {
        self.bytes[movement as usize] += bytes;
    }
}
