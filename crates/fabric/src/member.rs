//! One rank's handle.

use crate::collectives;
use crate::contribution::{Contribution, Rows, Values};
use crate::error::FabricError;
use crate::traffic::{Movement, Traffic};
use crate::transport::{Circle, Transport};
use arena::Frame;
use program::ops::{Collective, CollectiveKind, Group};
use program::topology::Rank;
use program::{BufferId, DType, Topology};
use std::sync::Arc;

/// A rank's place among the others of a topology, and what it does with them.
pub struct Member<'a> {
    transport: &'a dyn Transport,
    /// The topology's index among the world's.
    space: usize,
    index: usize,
    traffic: Traffic,
}

impl<'a> Member<'a> {
    pub(crate) fn new(transport: &'a dyn Transport, space: usize, index: usize) -> Member<'a> {
        Member { transport, space, index, traffic: Traffic::default() }
    }

    /// Number of this rank.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The topology in which this is a rank.
    pub fn topology(&self) -> &Topology {
        &self.transport.spaces()[self.space]
    }

    /// Place of this rank.
    pub fn rank(&self) -> Rank {
        Rank::of(self.index, self.topology())
    }

    /// Says what the rank is about to do, for the message that others get if it fails there.
    pub fn entering(&mut self, operation: &str) {
        self.transport.entering(self.index, operation);
    }

    /// Bytes received from other ranks so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Every rank's bytes, in the order of the group's ranks. `what` names the exchange, alike on every rank.
    ///
    /// # Errors
    /// Another rank failed or called something else.
    pub fn all_gather(
        &mut self,
        group: Group,
        what: &str,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, FabricError> {
        let operation = format!("{} gather of {what}", group.name());
        let all = self.meet(group, &operation, Contribution::Bytes(mine.to_vec()))?;
        let place = group.place(self.rank(), self.topology());
        let mut gathered = Vec::with_capacity(all.len());
        for (rank, given) in all.iter().enumerate() {
            let bytes = given.bytes(&operation, rank).map_err(|error| self.refused(error))?;
            if rank != place {
                self.traffic.add(Movement::Host, bytes.len() as u64);
            }
            gathered.push(bytes.to_vec());
        }
        Ok(gathered)
    }

    /// Gives each rank of the group its own bytes (`parts` in the order of the group's ranks), and takes what they have
    /// for this one, in the same order.
    ///
    /// # Errors
    /// As [`Member::all_gather`]; not one part a rank.
    pub fn exchange(
        &mut self,
        group: Group,
        what: &str,
        parts: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, FabricError> {
        let operation = format!("{} exchange of {what}", group.name());
        let ranks = group.size(self.topology());
        if parts.len() != ranks {
            let given = parts.len();
            return Err(self.refused(FabricError::Parts { operation, given, ranks }));
        }
        let all = self.meet(group, &operation, Contribution::Parts(parts))?;
        let place = group.place(self.rank(), self.topology());
        let mut taken = Vec::with_capacity(all.len());
        for (rank, given) in all.iter().enumerate() {
            let bytes = given.part(&operation, rank, place).map_err(|error| self.refused(error))?;
            if rank != place {
                self.traffic.add(Movement::Host, bytes.len() as u64);
            }
            taken.push(bytes.to_vec());
        }
        Ok(taken)
    }

    fn meet(
        &mut self,
        group: Group,
        operation: &str,
        mine: Contribution,
    ) -> Result<Vec<Arc<Contribution>>, FabricError> {
        self.transport.entering(self.index, operation);
        let first = group.first(self.rank(), self.topology());
        let circle = Circle { space: self.space, group, first };
        self.transport.exchange(circle, self.index, operation, mine)
    }

    fn refused(&self, error: FabricError) -> FabricError {
        self.transport.refuse(self.index, &error);
        error
    }

    /// Carries out a collective with the ranks of its group; returns when this rank's result is written.
    ///
    /// # Errors
    /// Another rank failed or called something else; contributions or the operation itself do not fit the group. Every
    /// rank's next wait then ends too.
    pub fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), FabricError> {
        let operation = describe(op, frame);
        self.transport.entering(self.index, &operation);
        self.carry_out(op, frame, &operation).map_err(|error| self.refused(error))
    }

    fn carry_out(
        &mut self,
        op: &Collective,
        frame: &Frame<'_>,
        operation: &str,
    ) -> Result<(), FabricError> {
        let ranks = op.group.size(self.topology());
        let place = op.group.place(self.rank(), self.topology());
        for buffer in float_buffers(op) {
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
        let mine = contribution(op, frame, place);
        let all = self.meet(op.group, operation, mine)?;
        let round = collectives::Exchanged { operation, place, all: &all };
        let bytes = collectives::write(op, frame, &round)?;
        self.traffic.add(Movement::of(&op.kind), bytes);
        Ok(())
    }
}

/// What a rank gives in a collective.
fn contribution(op: &Collective, frame: &Frame<'_>, place: usize) -> Contribution {
    match &op.kind {
        CollectiveKind::ExactSum => {
            let words = frame.load_u32(op.x);
            Contribution::Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect())
        }
        CollectiveKind::GatherSlices { ranges } => {
            let values = frame.publish(op.x, ranges[place].clone());
            Contribution::Rows(Rows {
                rows: 1,
                cols: values.len(),
                values: Values::Published(values),
            })
        }
        _ => {
            let (rows, cols) = (frame.rows(op.x), frame.cols(op.x));
            let values = Values::Published(frame.publish(op.x, 0..rows * cols));
            Contribution::Rows(Rows { rows, cols, values })
        }
    }
}

/// Buffers of a collective that must hold floats.
fn float_buffers(op: &Collective) -> Vec<BufferId> {
    let mut buffers = vec![op.x];
    match &op.kind {
        CollectiveKind::ExactSum => return Vec::new(),
        CollectiveKind::Collect { outs } => buffers.extend(outs),
        CollectiveKind::TreeSum { bias, .. } => buffers.extend(bias.iter().chain([&op.out])),
        _ => buffers.push(op.out),
    }
    buffers
}

/// The operation in words, alike on every rank that calls the same one.
fn describe(op: &Collective, frame: &Frame<'_>) -> String {
    let name = &frame.buffer(op.x).name;
    let group = op.group.name();
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
        CollectiveKind::StepSum { .. } => {
            format!("{group} StepSum of {name} ({} micro-batches)", frame.live.micro_batches)
        }
        CollectiveKind::GatherSlices { .. } => format!("{group} GatherSlices of {name}"),
        CollectiveKind::ExactSum => format!("{group} ExactSum of {name}"),
    }
}
