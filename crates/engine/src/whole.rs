//! Whole parameters, gradients and moments, from the shares and slices of ranks and back to them.

use crate::error::EngineError;
use crate::exchange::{floats_of_bytes, floats_to_bytes};
use crate::run::Engine;
use program::buffer::Live;
use program::graph::Param;
use program::ops::Group;
use program::store::{local_shape, share, slice_of};
use program::{Kind, Ledger, ParamId, Rank, Topology};
use std::ops::Range;

/// What of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its value.
    Value,
    /// The gradient of the step, as [`Engine::update`] left it: summed over micro-batches, not scaled.
    Gradient,
    /// The first moment.
    FirstMoment,
    /// The second moment.
    SecondMoment,
}

/// Every part, in the order of their numbers.
const PARTS: [Part; 4] = [Part::Value, Part::Gradient, Part::FirstMoment, Part::SecondMoment];

/// The exchange in which the first rank says what comes next.
const NEXT: &str = "the next action";

/// The first rank asks for a part of the state.
const GIVE: u8 = u8::MAX;

/// The first rank asks for what each rank planned and allocated.
const LEDGERS: u8 = GIVE - 1;

/// Actions that a caller may number, from 0.
pub const MOST_ACTIONS: u8 = LEDGERS - 1;

/// What one rank planned and what it has allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLedgers {
    /// Bytes that its blueprint says.
    pub planned: Ledger,
    /// Bytes that its engine holds.
    pub allocated: Ledger,
}

impl RankLedgers {
    fn to_bytes(self) -> Vec<u8> {
        let rows = self.planned.rows().chain(self.allocated.rows());
        rows.flat_map(|(_, bytes)| (bytes as u64).to_le_bytes()).collect()
    }

    /// What [`RankLedgers::to_bytes`] wrote.
    fn of_bytes(bytes: &[u8]) -> RankLedgers {
        let mut ledgers = [Ledger::default(); 2];
        let kinds = Kind::ALL.len();
        for (at, bytes) in numbers(bytes).take(2 * kinds).enumerate() {
            ledgers[at / kinds].add(Kind::ALL[at % kinds], bytes as usize);
        }
        let [planned, allocated] = ledgers;
        RankLedgers { planned, allocated }
    }
}

/// Numbers that ranks gave each other.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (numbers, _) = bytes.as_chunks::<8>();
    numbers.iter().map(|number| u64::from_le_bytes(*number))
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Value => "value",
            Part::Gradient => "gradient",
            Part::FirstMoment => "first moment",
            Part::SecondMoment => "second moment",
        }
    }
}

/// The elements of a rank's share that it contributes to the whole: values come from the first replica, whole; what is
/// sliced from each.
fn contributed(param: &Param, topology: &Topology, rank: Rank, part: Part) -> Range<usize> {
    let (rows, cols) = local_shape(param, topology, rank);
    match part {
        Part::Value if (rank.cp, rank.dp) == (0, 0) => 0..rows * cols,
        Part::Value => 0..0,
        _ => slice_of(rows * cols, topology, rank),
    }
}

impl Engine<'_> {
    /// A parameter's value, gradient or moment in whole, padding rows included, as f32; every rank has it. All ranks must
    /// ask together. `None` for a gradient or moment of a parameter that is not trained.
    ///
    /// # Errors
    /// Another rank failed or gathers something else.
    pub fn gather_whole(&self, id: ParamId, part: Part) -> Result<Option<Vec<f32>>, EngineError> {
        let store = &self.blueprint.store;
        let (topology, param) = (&store.topology, self.graph.param_info(id));
        let slot = store.slot(id);
        let state = slot.state.as_ref();
        let range = contributed(param, topology, store.rank, part);
        let source = match part {
            Part::Value => Some((slot.value, range)),
            Part::Gradient => state.map(|s| (s.grad, range)),
            // Moments hold the slice and nothing else.
            Part::FirstMoment => state.map(|s| (s.m, 0..range.len())),
            Part::SecondMoment => state.map(|s| (s.v, 0..range.len())),
        };
        let Some((buffer, range)) = source else { return Ok(None) };
        let frame = self.frame(&self.blueprint.resident, Live::default());
        let mine = frame.load_f32_range(buffer, range);
        if topology.ranks() == 1 {
            return Ok(Some(mine));
        }
        let what = format!("the {} of {}", part.name(), param.name);
        let all = self.all_gather(Group::All, &what, &floats_to_bytes(&mine))?;
        let mut whole = vec![0f32; param.padded_rows * param.cols];
        for (index, bytes) in all.iter().enumerate() {
            let rank = Rank::of(index, topology);
            let (rows, cols) = share(param, topology, rank);
            let range = contributed(param, topology, rank, part);
            for (at, value) in range.zip(floats_of_bytes(bytes)) {
                let (row, col) = (rows.start + at / cols.len(), cols.start + at % cols.len());
                whole[row * param.cols + col] = value;
            }
        }
        Ok(Some(whole))
    }

    /// Gives what [`Engine::gather_whole`] gives, in order; on one rank a tile at a time, with no copy of the whole. Nothing
    /// for a gradient or moment of a parameter that is not trained.
    ///
    /// # Errors
    /// The first error of `take`, or of the exchange.
    pub fn visit_whole<E: From<EngineError>>(
        &self,
        id: ParamId,
        part: Part,
        mut take: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.blueprint.store.topology.ranks() > 1 {
            return self.gather_whole(id, part)?.map_or(Ok(()), |whole| take(&whole));
        }
        let slot = self.blueprint.store.slot(id);
        let buffer = match (part, &slot.state) {
            (Part::Value, _) => slot.value,
            (_, None) => return Ok(()),
            (Part::Gradient, Some(state)) => state.grad,
            (Part::FirstMoment, Some(state)) => state.m,
            (Part::SecondMoment, Some(state)) => state.v,
        };
        self.visit(buffer, take)
    }

    /// [`Engine::visit_whole`] on the first rank alone, at any time, while the others [`Engine::follow`].
    ///
    /// # Errors
    /// As [`Engine::visit_whole`].
    pub fn visit_served<E: From<EngineError>>(
        &self,
        id: ParamId,
        part: Part,
        take: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.announce(GIVE, u64::from(id.0) * PARTS.len() as u64 + part as u64)?;
        self.visit_whole(id, part, take)
    }

    /// [`Engine::gather_whole`] as [`Engine::visit_served`] visits.
    ///
    /// # Errors
    /// As [`Engine::gather_whole`].
    pub fn gather_served(&self, id: ParamId, part: Part) -> Result<Vec<f32>, EngineError> {
        let mut whole = Vec::new();
        self.visit_served(id, part, |values| {
            whole.extend_from_slice(values);
            Ok::<(), EngineError>(())
        })?;
        Ok(whole)
    }

    /// Tells the ranks that [`Engine::follow`] what the first one is about to do: an action of the caller's, at most
    /// [`MOST_ACTIONS`], with a number below 2^56.
    ///
    /// # Errors
    /// Another rank failed.
    pub fn announce(&self, action: u8, argument: u64) -> Result<(), EngineError> {
        self.of_first(NEXT, u64::from(action) | argument << u8::BITS).map(|_| ())
    }

    /// Gives the first rank the parts of the state that it asks for, until it announces another action.
    ///
    /// # Errors
    /// Another rank failed.
    pub fn follow(&self) -> Result<(u8, u64), EngineError> {
        let parts = PARTS.len() as u64;
        loop {
            let next = self.of_first(NEXT, 0)?;
            let (action, argument) = (next as u8, next >> u8::BITS);
            match action {
                GIVE => (),
                LEDGERS => {
                    self.gather_ledgers()?;
                    continue;
                }
                _ => return Ok((action, argument)),
            }
            let part = PARTS[(argument % parts) as usize];
            self.gather_whole(ParamId((argument / parts) as u32), part)?;
        }
    }

    /// Bytes planned and allocated of every rank, in order. On the first rank, while the others [`Engine::follow`].
    ///
    /// # Errors
    /// Another rank failed.
    pub fn ledgers_served(&self) -> Result<Vec<RankLedgers>, EngineError> {
        self.announce(LEDGERS, 0)?;
        self.gather_ledgers()
    }

    fn gather_ledgers(&self) -> Result<Vec<RankLedgers>, EngineError> {
        let mine = RankLedgers { planned: self.blueprint.ledger, allocated: self.ledger() };
        let all = self.all_gather(Group::All, "bytes planned and allocated", &mine.to_bytes())?;
        Ok(all.iter().map(|bytes| RankLedgers::of_bytes(bytes)).collect())
    }

    /// Every rank's number, in the order of ranks, on every rank. All ranks must ask together.
    ///
    /// # Errors
    /// Another rank failed or asks something else.
    pub fn of_ranks(&self, what: &str, mine: u64) -> Result<Vec<u64>, EngineError> {
        let all = self.all_gather(Group::All, what, &mine.to_le_bytes())?;
        Ok(all.iter().flat_map(|bytes| numbers(bytes)).collect())
    }

    /// A number that the first rank gives, on every rank. All ranks must ask together; the others' numbers do not count.
    ///
    /// # Errors
    /// Another rank failed or asks something else.
    pub fn of_first(&self, what: &str, mine: u64) -> Result<u64, EngineError> {
        Ok(self.of_ranks(what, mine)?.first().copied().unwrap_or(mine))
    }

    /// Whether this is the first rank: the one that writes files and tells people.
    pub fn leads(&self) -> bool {
        self.blueprint.store.rank == Rank::FIRST
    }

    /// This rank's share of a parameter's whole value, given with or without its padding rows, which are zero.
    fn share_of_whole(&self, id: ParamId, whole: &[f32]) -> Vec<f32> {
        let param = self.graph.param_info(id);
        let (rows, cols) = share(param, &self.blueprint.store.topology, self.blueprint.store.rank);
        let mut mine = Vec::with_capacity(rows.len() * cols.len());
        for row in rows {
            match whole.get(row * param.cols..(row + 1) * param.cols) {
                Some(row) => mine.extend_from_slice(&row[cols.clone()]),
                None => mine.resize(mine.len() + cols.len(), 0.0),
            }
        }
        mine
    }

    /// Writes this rank's share of a parameter's whole value.
    pub fn write_whole(&mut self, id: ParamId, whole: &[f32]) {
        let mine = self.share_of_whole(id, whole);
        self.write_param(id, &mine);
    }

    /// Writes this rank's slices of a trained parameter's whole moments.
    ///
    /// # Errors
    /// A parameter that is not trained.
    pub fn write_whole_moments(
        &mut self,
        id: ParamId,
        m: &[f32],
        v: &[f32],
    ) -> Result<(), EngineError> {
        let (m, v) = (self.share_of_whole(id, m), self.share_of_whole(id, v));
        let state = self.blueprint.store.slot(id).state.as_ref();
        let state = state.ok_or(EngineError::NotPlanned("training this parameter"))?;
        let frame = self.frame(&self.blueprint.resident, Live::default());
        frame.store_f32(state.m, &m[state.slice.clone()]);
        frame.store_f32(state.v, &v[state.slice.clone()]);
        Ok(())
    }
}
