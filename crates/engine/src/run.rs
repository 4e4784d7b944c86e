//! The engine of one rank: memory, executor, and the loop over operations.

use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::kernels::{KernelLog, KernelUse};
use crate::profile::Profile;
use arena::{Executor, Frame, Memory};
use program::buffer::Live;
use program::ops::Collective;
use program::{Graph, Ledger, Op, Program};
use std::ops::Range;
use std::time::Instant;

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
    profile: Option<Profile>,
    kernels: KernelLog,
}

impl<'r> Engine<'r> {
    /// Allocates what the blueprint says; weights are zero until loaded.
    ///
    /// # Errors
    /// The system refuses a block.
    pub fn new(
        graph: Graph,
        blueprint: Blueprint,
        executor: Box<dyn Executor + 'r>,
    ) -> Result<Self, EngineError> {
        let memory = Memory::new(&blueprint.ledger)?;
        Ok(Engine {
            graph,
            blueprint,
            memory,
            executor,
            exchange: None,
            profile: None,
            kernels: KernelLog::default(),
        })
    }

    /// The same with other ranks to exchange with.
    pub fn with_exchange(mut self, exchange: Box<dyn Exchange + 'r>) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// Times every operation from here on; see [`Engine::profile`].
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// What was timed since [`Engine::start_profile`].
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Kernels that have run since the engine was made, or since [`Engine::forget_kernels`].
    pub fn kernels(&self) -> Vec<KernelUse> {
        self.kernels.uses()
    }

    /// Counts kernels from here on anew.
    pub fn forget_kernels(&mut self) {
        self.kernels = KernelLog::default();
    }

    /// Bytes allocated, by kind: what was planned.
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger()
    }

    /// A frame over a compiled program.
    pub(crate) fn frame<'a>(&'a self, compiled: &'a Compiled, live: Live) -> Frame<'a> {
        Frame::new(&compiled.program, &compiled.plan, &self.memory, live)
    }

    /// Runs a range of one of the blueprint's programs.
    pub(crate) fn run_planned(
        &mut self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        live: Live,
        range: Option<Range<usize>>,
    ) -> Result<(), EngineError> {
        let Engine { blueprint, memory, executor, exchange, profile, kernels, .. } = self;
        let compiled = which(blueprint).as_ref().ok_or(EngineError::NotPlanned("this step"))?;
        let range = range.unwrap_or(0..compiled.program.ops.len());
        let mut machine = Machine { memory, executor: &mut **executor, exchange, profile, kernels };
        machine.run(compiled, live, range)
    }

    /// Runs a program over the store alone.
    pub(crate) fn run_stored(&mut self, compiled: &Compiled) -> Result<(), EngineError> {
        let Engine { memory, executor, exchange, profile, kernels, .. } = self;
        let mut machine = Machine { memory, executor: &mut **executor, exchange, profile, kernels };
        machine.run(compiled, Live::default(), 0..compiled.program.ops.len())
    }
}

/// What runs operations, apart from the programs that it runs.
struct Machine<'e, 'r> {
    memory: &'e Memory,
    executor: &'e mut (dyn Executor + 'r),
    exchange: &'e mut Option<Box<dyn Exchange + 'r>>,
    profile: &'e mut Option<Profile>,
    kernels: &'e mut KernelLog,
}

impl Machine<'_, '_> {
    fn run(
        &mut self,
        compiled: &Compiled,
        live: Live,
        range: Range<usize>,
    ) -> Result<(), EngineError> {
        let program = &compiled.program;
        let frame = Frame::new(program, &compiled.plan, self.memory, live);
        for index in range {
            let op = &program.ops[index];
            let start = self.profile.is_some().then(Instant::now);
            self.run_op(program, index, &frame)?;
            if let (Some(profile), Some(start)) = (self.profile.as_mut(), start) {
                profile.add(program, op, start.elapsed());
            }
        }
        Ok(())
    }

    fn run_op(
        &mut self,
        program: &Program,
        index: usize,
        frame: &Frame<'_>,
    ) -> Result<(), EngineError> {
        let op = &program.ops[index];
        if let Op::Collective(collective) = op {
            let exchange =
                self.exchange.as_mut().ok_or(EngineError::NotPlanned("more than one rank"))?;
            return exchange
                .collective(collective, frame)
                .map_err(|message| EngineError::Exchange { index, message });
        }
        self.executor.run(op, frame).map_err(|source| EngineError::Exec {
            index,
            op: op.name(),
            layer: program.op_layers[index],
            source,
        })?;
        self.kernels.add(program, index, self.executor.kernel());
        Ok(())
    }
}
