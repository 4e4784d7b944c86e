//! The engine of one rank: memory, executor, and the loop over operations.

use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::exchange::Exchange;
use crate::kernels::{KernelLog, KernelUse};
use crate::profile::Profile;
use crate::step::Forwarded;
use arena::{Account, Executor, Frame, Memory};
use program::buffer::Live;
use program::{Graph, Kind, Ledger, Op, ParamId, Program};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// One rank's engine.
pub struct Engine<'r> {
    /// The model.
    pub graph: Graph,
    /// What was planned.
    pub blueprint: Blueprint,
    pub(crate) memory: Memory,
    executor: Box<dyn Executor + 'r>,
    /// Ranks take turns with nothing else: it is borrowed for one exchange at a time.
    pub(crate) exchange: Option<RefCell<Box<dyn Exchange + 'r>>>,
    profile: Option<Profile>,
    kernels: KernelLog,
    weights_version: u64,
    /// Parameters that slept and were not written since: nothing may read them.
    pub(crate) lost: BTreeSet<ParamId>,
    /// The micro-batch whose backward pass is to come.
    pub(crate) forwarded: Option<Forwarded>,
    /// Logical micro-batches of the step that runs.
    pub(crate) micro_batches: usize,
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
        Engine::within(graph, blueprint, executor, &Account::new(usize::MAX))
    }

    /// The same under the ceiling of an account that other engines share.
    ///
    /// # Errors
    /// The system refuses a block, or the account has no room for it.
    pub fn within(
        graph: Graph,
        blueprint: Blueprint,
        executor: Box<dyn Executor + 'r>,
        account: &Arc<Account>,
    ) -> Result<Self, EngineError> {
        let memory = Memory::within(&blueprint.ledger, account)?;
        Ok(Engine {
            graph,
            blueprint,
            memory,
            executor,
            exchange: None,
            profile: None,
            kernels: KernelLog::default(),
            weights_version: 0,
            lost: BTreeSet::new(),
            forwarded: None,
            micro_batches: 1,
        })
    }

    /// The same with other ranks to exchange with.
    pub fn with_exchange(mut self, exchange: Box<dyn Exchange + 'r>) -> Self {
        self.exchange = Some(RefCell::new(exchange));
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

    /// How often parameters were written: what a cache was computed with. Only its changes have a meaning.
    pub fn weights_version(&self) -> u64 {
        self.weights_version
    }

    /// Parameters were written.
    pub(crate) fn note_new_weights(&mut self) {
        self.weights_version += 1;
    }

    /// Bytes allocated, by kind: what was planned, but for kinds that sleep.
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger()
    }

    /// Scratch bytes that the executor's kernel of an operation needs.
    pub(crate) fn workspace_bytes(&self, op: &Op, program: &Program) -> usize {
        self.executor.workspace_bytes(op, program)
    }

    /// Refuses a program that needs a block which sleeps, or weights that slept and have not come back.
    pub(crate) fn check_awake(&self, compiled: &Compiled) -> Result<(), EngineError> {
        check_awake(&self.memory, compiled)?;
        match self.lost.first() {
            None => Ok(()),
            Some(&id) => {
                let name = self.graph.param_info(id).name.to_string();
                Err(EngineError::Lost { count: self.lost.len(), name })
            }
        }
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
}

fn check_awake(memory: &Memory, compiled: &Compiled) -> Result<(), EngineError> {
    let asleep = |kind: &Kind| memory.is_released(*kind) && memory.planned().bytes(*kind) > 0;
    if !Kind::ALL.iter().any(asleep) {
        return Ok(());
    }
    let program = &compiled.program;
    let touched = program.ops.iter().flat_map(|op| {
        let access = op.access();
        access.reads.into_iter().chain(access.writes)
    });
    let mut kinds: Vec<Kind> = touched.map(|id| program.buffer(id).kind).collect();
    if compiled.plan.ledger.bytes(Kind::Workspace) > 0 {
        kinds.push(Kind::Workspace);
    }
    match kinds.iter().find(|kind| asleep(kind)) {
        Some(&kind) => Err(EngineError::Asleep { program: program.name, kind }),
        None => Ok(()),
    }
}

/// What runs operations, apart from the programs that it runs.
struct Machine<'e, 'r> {
    memory: &'e Memory,
    executor: &'e mut (dyn Executor + 'r),
    exchange: &'e Option<RefCell<Box<dyn Exchange + 'r>>>,
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
        check_awake(self.memory, compiled)?;
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
                self.exchange.as_ref().ok_or(EngineError::NotPlanned("more than one rank"))?;
            return exchange
                .borrow_mut()
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
