//! The engine of one rank: memory, executor, and the loop over operations.

use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use arena::{Executor, Frame, Memory};
use program::buffer::Live;
use program::ops::Collective;
use program::{Graph, Ledger, Op};
use std::ops::Range;

/// Carries out collectives between ranks.
pub trait Exchange {
    /// Runs one collective.
    ///
    /// # Errors
    /// What went wrong, naming the rank.
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String>;
}

impl Exchange for &mut fabric::Member<'_> {
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String> {
        fabric::Member::collective(self, op, frame).map_err(|error| error.to_string())
    }
}

/// One rank's engine.
pub struct Engine<'r> {
    /// The model.
    pub graph: Graph,
    /// What was planned.
    pub blueprint: Blueprint,
    memory: Memory,
    executor: Box<dyn Executor + 'r>,
    exchange: Option<Box<dyn Exchange + 'r>>,
}

impl<'r> Engine<'r> {
    /// Allocates what the blueprint says; weights are zero until loaded.
    pub fn new(graph: Graph, blueprint: Blueprint, executor: Box<dyn Executor + 'r>) -> Self {
        let memory = Memory::new(&blueprint.ledger);
        Engine { graph, blueprint, memory, executor, exchange: None }
    }

    /// The same with other ranks to exchange with.
    pub fn with_exchange(mut self, exchange: Box<dyn Exchange + 'r>) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// Bytes allocated, by kind: what was planned.
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger()
    }

    /// A frame over a compiled program.
    pub(crate) fn frame<'a>(&'a self, compiled: &'a Compiled, live: Live) -> Frame<'a> {
        Frame::new(&compiled.program, &compiled.plan, &self.memory, live)
    }

    /// Runs operations `range` of a program.
    pub(crate) fn run(
        memory: &Memory,
        executor: &mut (dyn Executor + 'r),
        exchange: &mut Option<Box<dyn Exchange + 'r>>,
        compiled: &Compiled,
        live: Live,
        range: Range<usize>,
    ) -> Result<(), EngineError> {
        let program = &compiled.program;
        let frame = Frame::new(program, &compiled.plan, memory, live);
        for index in range {
            let op = &program.ops[index];
            if let Op::Collective(collective) = op {
                let exchange =
                    exchange.as_mut().ok_or(EngineError::NotPlanned("more than one rank"))?;
                exchange
                    .collective(collective, &frame)
                    .map_err(|message| EngineError::Exchange { index, message })?;
                continue;
            }
            executor.run(op, &frame).map_err(|source| EngineError::Exec {
                index,
                op: op.name(),
                layer: program.op_layers[index],
                source,
            })?;
        }
        Ok(())
    }

    /// Runs a range of one of the blueprint's programs.
    pub(crate) fn run_planned(
        &mut self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        live: Live,
        range: Option<Range<usize>>,
    ) -> Result<(), EngineError> {
        let compiled = which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        let range = range.unwrap_or(0..compiled.program.ops.len());
        Self::run(&self.memory, &mut *self.executor, &mut self.exchange, compiled, live, range)
    }

    /// Runs a program over the store alone.
    pub(crate) fn run_stored(&mut self, compiled: &Compiled) -> Result<(), EngineError> {
        let range = 0..compiled.program.ops.len();
        let live = Live::default();
        Self::run(&self.memory, &mut *self.executor, &mut self.exchange, compiled, live, range)
    }
}
