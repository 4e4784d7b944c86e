//! One rank's handle.

use crate::collectives;
use crate::error::FabricError;
use crate::meeting::{Contribution, Meeting};
use crate::traffic::{Movement, Traffic};
use arena::Frame;
use program::ops::{Collective, CollectiveKind, Group};
use program::topology::Rank;
use program::{BufferId, DType};

/// A rank's place among the others, and what it does with them.
pub struct Member<'a> {
    meeting: &'a Meeting,
    index: usize,
    operation: String,
    traffic: Traffic,
}

impl<'a> Member<'a> {
    pub(crate) fn new(meeting: &'a Meeting, index: usize) -> Member<'a> {
        let operation = "its first operation".into();
        Member { meeting, index, operation, traffic: Traffic::default() }
    }

    /// Number of this rank.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Place of this rank.
    pub fn rank(&self) -> Rank {
        Rank::of(self.index, self.meeting.topology())
    }

    /// Says what the rank is about to do, for the message that others get if it fails there.
    pub fn entering(&mut self, operation: impl Into<String>) {
        self.operation = operation.into();
    }

    /// What the rank is at.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Bytes received from other ranks so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Carries out a collective with the ranks of its group; returns when this rank's result is written.
    ///
    /// # Errors
    /// Another rank failed or called something else; contributions or the operation itself do not fit the group. Every
    /// rank's next wait then ends too.
    pub fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), FabricError> {
        let operation = describe(op, frame);
        self.operation.clone_from(&operation);
        let result = self.carry_out(op, frame, &operation);
        if let Err(error) = &result {
            self.meeting.refuse(self.index, error);
        }
        result
    }

    fn carry_out(
        &mut self,
        op: &Collective,
        frame: &Frame<'_>,
        operation: &str,
    ) -> Result<(), FabricError> {
        let (topology, rank) = (self.meeting.topology(), self.rank());
        let (ranks, place) = match op.group {
            Group::Tensor => (topology.tp, rank.tp),
            Group::Context => (topology.cp, rank.cp),
        };
        for buffer in buffers(op) {
            let buffer = frame.buffer(buffer);
            if buffer.dtype == DType::U32 {
                let (operation, buffer) = (operation.into(), buffer.name.to_string());
                return Err(FabricError::NotFloat { operation, buffer });
            }
        }
        let lowered = collectives::lowered_for(&op.kind).unwrap_or(ranks);
        if lowered != ranks {
            return Err(FabricError::Degree { operation: operation.into(), lowered, ranks });
        }
        let (rows, cols) = (frame.rows(op.x), frame.cols(op.x));
        let mine = Contribution { rows, cols, values: frame.load_f32(op.x) };
        let all = self.meeting.exchange(op.group, self.index, operation, mine)?;
        let round = collectives::Exchanged { operation, place, all: &all };
        let bytes = collectives::write(op, frame, &round)?;
        self.traffic.add(Movement::of(&op.kind), bytes);
        Ok(())
    }
}

/// Float buffers of a collective.
fn buffers(op: &Collective) -> Vec<BufferId> {
    let mut buffers = vec![op.x];
    match &op.kind {
        CollectiveKind::Collect { outs } => buffers.extend(outs),
        CollectiveKind::TreeSum { bias, .. } => buffers.extend(bias.iter().chain([&op.out])),
        _ => buffers.push(op.out),
    }
    buffers
}

/// The operation in words, alike on every rank that calls the same one.
fn describe(op: &Collective, frame: &Frame<'_>) -> String {
    let name = &frame.buffer(op.x).name;
    let group = match op.group {
        Group::Tensor => "tensor",
        Group::Context => "context",
    };
    match &op.kind {
        CollectiveKind::TreeSum { leaves, alpha, accumulate, bias } => format!(
            "{group} TreeSum of {name} ({leaves} leaves, alpha {alpha}, {} bias, {})",
            if bias.is_some() { "with" } else { "no" },
            if *accumulate { "accumulated" } else { "overwriting" },
        ),
        CollectiveKind::OwnerRows { bounds, .. } => {
            format!("{group} OwnerRows of {name} (bounds {bounds:?})")
        }
        CollectiveKind::GatherTokens => format!("{group} GatherTokens of {name}"),
        CollectiveKind::ExchangeColumns { ranges } => {
            format!("{group} ExchangeColumns of {name} (columns {ranges:?})")
        }
        CollectiveKind::GatherColumns { ranges } => {
            format!("{group} GatherColumns of {name} (columns {ranges:?})")
        }
        CollectiveKind::Collect { .. } => format!("{group} Collect of {name}"),
    }
}
