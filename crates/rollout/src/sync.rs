//! Weights from the ranks of training to those of rollout, with proof that they arrived.

use crate::fingerprint::{Fingerprint, FingerprintError};
use engine::{Engine, EngineError};
use fabric::{FabricError, Seat};
use program::graph::Param;
use program::store::share;
use program::{Graph, ParamId, Rank, Topology};
use std::ops::Range;

/// Which parameters move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Trained ones: with LoRA, adapters alone.
    Trained,
    /// All: where the rollout engine has given its weights back.
    All,
}

/// A part of a parameter that goes from one rank of training to one of rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The parameter.
    pub param: ParamId,
    /// Rank of the training topology.
    pub from: usize,
    /// Rank of the rollout topology.
    pub to: usize,
    /// Rows of the whole parameter.
    pub rows: Range<usize>,
    /// Columns of it.
    pub cols: Range<usize>,
}

impl Piece {
    fn elements(&self) -> usize {
        self.rows.len() * self.cols.len()
    }
}

/// Which rank gives which part of which parameter to whom.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardPlan {
    params: Vec<ParamId>,
    /// What both engines must have in the place of each.
    shapes: Vec<Param>,
    pieces: Vec<Piece>,
}

impl ShardPlan {
    /// Plans the move of a trained graph's parameters. A rank that holds a part takes it from itself; otherwise it comes
    /// from the lowest rank of the first replica that has it.
    pub fn new(graph: &Graph, moved: Moved, from: &Topology, to: &Topology) -> ShardPlan {
        let moves = |id: &ParamId| moved == Moved::All || graph.param_info(*id).trainable;
        let params: Vec<ParamId> = graph.param_ids().filter(moves).collect();
        let shapes = params.iter().map(|&id| graph.param_info(id).clone()).collect();
        let mut pieces = Vec::new();
        for &id in &params {
            for rank in 0..to.ranks() {
                let (rows, cols) = share(graph.param_info(id), to, Rank::of(rank, to));
                take(graph, id, from, rank, (rows, cols), &mut pieces);
            }
        }
        ShardPlan { params, shapes, pieces }
    }

    /// The parameters that move.
    pub fn params(&self) -> &[ParamId] {
        &self.params
    }

    /// What goes where.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes that a rank of rollout takes from other ranks.
    pub fn received_bytes(&self, rank: usize) -> usize {
        let from_others = self.pieces.iter().filter(|p| p.to == rank && p.from != rank);
        from_others.map(|piece| piece.elements() * size_of::<f32>()).sum()
    }

    /// Refuses an engine with other parameters.
    fn check(&self, graph: &Graph) -> Result<(), SyncError> {
        for (&id, wanted) in self.params.iter().zip(&self.shapes) {
            let found = graph.params.get(id.0 as usize);
            let alike = found.is_some_and(|found| {
                (&found.name, found.padded_rows, found.cols, &found.split)
                    == (&wanted.name, wanted.padded_rows, wanted.cols, &wanted.split)
            });
            if !alike {
                return Err(SyncError::Params { name: wanted.name.to_string() });
            }
        }
        Ok(())
    }
}

/// Finds the sources of a region of a parameter, row by row of shares that cover it.
fn take(
    graph: &Graph,
    id: ParamId,
    from: &Topology,
    to: usize,
    (rows, cols): (Range<usize>, Range<usize>),
    pieces: &mut Vec<Piece>,
) {
    let param = graph.param_info(id);
    let overlap = |rank: usize| {
        let (r, c) = share(param, from, Rank::of(rank, from));
        let part = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
        (part(&rows, &r), part(&cols, &c))
    };
    let whole = |rank: usize| overlap(rank) == (rows.clone(), cols.clone());
    if to < from.ranks() && whole(to) {
        pieces.push(Piece { param: id, from: to, to, rows, cols });
        return;
    }
    // Shares of tensor ranks are equal or disjoint, and in order.
    let (mut next_row, mut next_col) = (rows.start, cols.start);
    for source in 0..from.tp {
        let (r, c) = overlap(source);
        let new = !r.is_empty() && !c.is_empty() && r.end > next_row && c.end > next_col;
        if !new {
            continue;
        }
        if r.len() < rows.len() {
            next_row = r.end;
        } else if c.len() < cols.len() {
            next_col = c.end;
        } else {
            (next_row, next_col) = (r.end, c.end);
        }
        pieces.push(Piece { param: id, from: source, to, rows: r, cols: c });
    }
}

/// What must be true of the weights since the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// They were updated by a gradient that is not zero: the same fingerprint is an error.
    Updated,
    /// Nothing, or nothing that must change a bit.
    Anything,
}

/// Moves weights again and again, and compares fingerprints each time.
#[derive(Clone, Debug)]
pub struct WeightSync {
    plan: ShardPlan,
    last: Option<Fingerprint>,
}

impl WeightSync {
    /// A sync by a plan, the same on every rank of the world.
    pub fn new(plan: ShardPlan) -> WeightSync {
        WeightSync { plan, last: None }
    }

    /// The plan.
    pub fn plan(&self) -> &ShardPlan {
        &self.plan
    }

    /// Moves the weights and compares what both sides hold. Every rank of the world calls it, with the engines that it
    /// has: one of each topology in which it is a rank.
    ///
    /// # Errors
    /// Another rank failed, an engine has other parameters, sides or replicas differ, or an update changed nothing.
    pub fn run(
        &mut self,
        seat: &mut Seat<'_>,
        trainer: Option<&Engine<'_>>,
        mut rollout: Option<&mut Engine<'_>>,
        since: Since,
    ) -> Result<Fingerprint, SyncError> {
        let me = seat.index();
        let mut parts = vec![Vec::new(); seat.size()];
        if let Some(engine) = trainer {
            self.plan.check(&engine.graph)?;
            self.pack(engine, me, &mut parts);
        }
        let received = seat.exchange("weights for rollout", parts)?;
        if let Some(engine) = rollout.as_deref_mut() {
            self.plan.check(&engine.graph)?;
            self.unpack(engine, me, &received)?;
        }
        let of = |engine: Option<&Engine<'_>>| -> Result<Vec<u8>, SyncError> {
            let Some(engine) = engine else { return Ok(Vec::new()) };
            Ok(Fingerprint::of(engine, &self.plan.params)?.bytes().to_vec())
        };
        let sides = [("training", of(trainer)?), ("rollout", of(rollout.as_deref())?)];
        let mut common: Option<(String, Vec<u8>)> = None;
        for (side, mine) in sides {
            for (rank, print) in
                seat.all_gather(&format!("fingerprints of {side}"), &mine)?.iter().enumerate()
            {
                let who = format!("{side} rank {rank}");
                match &common {
                    _ if print.is_empty() => {}
                    None => common = Some((who, print.clone())),
                    Some((_, first)) if first == print => {}
                    Some((first, _)) => {
                        return Err(SyncError::Differ { first: first.clone(), second: who });
                    }
                }
            }
        }
        let (_, bytes) = common.ok_or(SyncError::NobodyHasWeights)?;
        let fingerprint = Fingerprint::from_bytes(&bytes).ok_or(SyncError::NobodyHasWeights)?;
        if since == Since::Updated && self.last == Some(fingerprint) {
            return Err(SyncError::Unchanged { fingerprint });
        }
        self.last = Some(fingerprint);
        Ok(fingerprint)
    }

    fn pack(&self, engine: &Engine<'_>, me: usize, parts: &mut [Vec<u8>]) {
        for &id in &self.plan.params {
            let mine = self.plan.pieces.iter().filter(|p| p.param == id && p.from == me);
            let mut values = None;
            for piece in mine {
                let values = values.get_or_insert_with(|| engine.read_param(id));
                let part = &mut parts[piece.to];
                for_rows(engine, piece, |range| {
                    part.extend(values[range].iter().flat_map(|value| value.to_le_bytes()));
                });
            }
        }
    }

    fn unpack(
        &self,
        engine: &mut Engine<'_>,
        me: usize,
        received: &[Vec<u8>],
    ) -> Result<(), SyncError> {
        let mut rest: Vec<&[u8]> = received.iter().map(Vec::as_slice).collect();
        for &id in &self.plan.params {
            let mut values = engine.read_param(id);
            for piece in self.plan.pieces.iter().filter(|p| p.param == id && p.to == me) {
                let from = piece.from;
                let bytes = piece.elements() * size_of::<f32>();
                let (part, after) =
                    rest[from].split_at_checked(bytes).ok_or(SyncError::Short { from })?;
                rest[from] = after;
                let mut floats =
                    part.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                for_rows(engine, piece, |range| {
                    for (to, value) in values[range].iter_mut().zip(&mut floats) {
                        *to = value;
                    }
                });
            }
            engine.write_param(id, &values);
        }
        Ok(())
    }
}

/// The elements of a piece in an engine's share of its parameter, row by row.
fn for_rows(engine: &Engine<'_>, piece: &Piece, mut take: impl FnMut(Range<usize>)) {
    let store = &engine.blueprint.store;
    let param = engine.graph.param_info(piece.param);
    let (rows, cols) = share(param, &store.topology, store.rank);
    for row in piece.rows.clone() {
        let start = (row - rows.start) * cols.len() + (piece.cols.start - cols.start);
        take(start..start + piece.cols.len());
    }
}

/// Weights that did not arrive, or were not new.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Another rank failed.
    #[error(transparent)]
    Fabric(Box<FabricError>),
    /// An engine failed.
    #[error(transparent)]
    Engine(Box<EngineError>),
    /// Replicas differ.
    #[error(transparent)]
    Fingerprint(#[from] FingerprintError),
    /// An engine was built from another graph than the plan.
    #[error(
        "an engine has no parameter `{name}` of the plan's shape in its place: build both from one model"
    )]
    Params {
        /// The parameter.
        name: String,
    },
    /// Fewer bytes than the plan says.
    #[error("rank {from} gave fewer weights than the plan says: ranks have different plans")]
    Short {
        /// Who.
        from: usize,
    },
    /// The sides hold different weights.
    #[error("the weights of {second} are not those of {first}")]
    Differ {
        /// The first side and rank.
        first: String,
        /// The one that differs.
        second: String,
    },
    /// An update that changed no weight.
    #[error(
        "weights have the fingerprint {fingerprint} before and after an update with a gradient that is not zero"
    )]
    Unchanged {
        /// The fingerprint.
        fingerprint: Fingerprint,
    },
    /// No rank gave an engine.
    #[error("no rank of the world has an engine of either side")]
    NobodyHasWeights,
}

impl From<FabricError> for SyncError {
    fn from(error: FabricError) -> SyncError {
        SyncError::Fabric(error.into())
    }
}

impl From<EngineError> for SyncError {
    fn from(error: EngineError) -> SyncError {
        SyncError::Engine(error.into())
    }
}
