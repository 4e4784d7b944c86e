//! The planner: lifetimes of buffers → offsets in blocks, so that what is used is what was planned.

use crate::buffer::{BufferId, Kind};
use crate::ledger::Ledger;
use crate::lower::Program;
use crate::op::Op;
use crate::store::Store;
use std::collections::BTreeMap;

/// Alignment of every buffer, in bytes: a cache line, and a vector of 16 floats.
pub const ALIGNMENT: usize = 64;

/// Where a buffer is: an offset in its kind's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The block.
    pub kind: Kind,
    /// Bytes from the block's start; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Bytes of the buffer.
    pub bytes: usize,
}

/// Offsets of every buffer of a program, and the size of every block it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One placement a buffer of the program.
    pub placements: Vec<Placement>,
    /// Bytes by kind.
    pub ledger: Ledger,
}

/// First write and last access of a buffer, as operation indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Operation that first writes it.
    pub start: usize,
    /// Last operation that touches it.
    pub end: usize,
}

impl Plan {
    /// Lays out a program over its store; `workspace` is what the executor's kernels need at most.
    pub fn new(store: &Store, program: &Program, workspace: usize) -> Plan {
        let mut ledger = Ledger::default();
        let mut placements = Vec::with_capacity(program.buffers.len());
        let lifetimes = lifetimes(program);
        for (index, buffer) in program.buffers.iter().enumerate() {
            let bytes = buffer.bytes();
            let persistent = index < program.persistent;
            assert!(
                !persistent || *buffer == store.buffers[index],
                "a program starts with the buffers of its store"
            );
            let offset = if buffer.kind == Kind::Graph {
                usize::MAX
            } else {
                let offset = ledger.bytes(buffer.kind);
                ledger.add(buffer.kind, align(bytes));
                offset
            };
            placements.push(Placement { kind: buffer.kind, offset, bytes });
        }
        let graph = place_by_lifetime(program, &lifetimes, &mut placements);
        ledger.add(Kind::Graph, graph);
        ledger.add(Kind::Workspace, align(workspace));
        let published = |op: &Op| match op {
            Op::Collective(op) => op.published(program, &store.topology, store.rank),
            _ => 0,
        };
        let floats = program.ops.iter().map(published).max().unwrap_or(0);
        ledger.add(Kind::Exchange, align(floats * size_of::<f32>()));
        Plan { placements, ledger }
    }

    /// Where a buffer is.
    pub fn placement(&self, id: BufferId) -> Placement {
        self.placements[id.0 as usize]
    }
}

/// Rounds up to [`ALIGNMENT`].
pub fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Lifetime of every buffer; `None` for one that no operation touches.
pub fn lifetimes(program: &Program) -> Vec<Option<Lifetime>> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; program.buffers.len()];
    for (index, op) in program.ops.iter().enumerate() {
        let access = op.access();
        for id in access.reads.iter().chain(&access.writes) {
            let lifetime = &mut lifetimes[id.0 as usize];
            match lifetime {
                None => {
                    let buffer = &program.buffers[id.0 as usize];
                    assert!(
                        buffer.kind != Kind::Graph || !access.reads.contains(id),
                        "{} reads {} before anything writes it",
                        op.name(),
                        buffer.name
                    );
                    *lifetime = Some(Lifetime { start: index, end: index });
                }
                Some(lifetime) => lifetime.end = index,
            }
        }
    }
    lifetimes
}

/// Places graph buffers; returns the block's size.
///
/// Buffers that live from forward to backward are laid in one region, the rest in a second one above it: the first
/// fills and empties like a stack, so short-lived buffers never leave holes between long-lived ones.
fn place_by_lifetime(
    program: &Program,
    lifetimes: &[Option<Lifetime>],
    placements: &mut [Placement],
) -> usize {
    let is_long = |l: &Lifetime| l.start < program.forward_ops && l.end >= program.forward_ops;
    let mut base = 0;
    for long in [true, false] {
        let mut starts: Vec<Vec<usize>> = vec![Vec::new(); program.ops.len()];
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); program.ops.len()];
        for (index, lifetime) in lifetimes.iter().enumerate() {
            if let Some(l) = lifetime
                && program.buffers[index].kind == Kind::Graph
                && is_long(l) == long
            {
                starts[l.start].push(index);
                ends[l.end].push(index);
            }
        }
        let mut region = Region::default();
        for (starting, ending) in starts.iter().zip(&ends) {
            for &index in starting {
                let bytes = align(program.buffers[index].bytes());
                placements[index].offset = base + region.take(bytes);
            }
            for &index in ending {
                let bytes = align(program.buffers[index].bytes());
                region.give(placements[index].offset - base, bytes);
            }
        }
        base += region.top;
    }
    for (placement, lifetime) in placements.iter_mut().zip(lifetimes) {
        if placement.kind == Kind::Graph && lifetime.is_none() {
            // Never touched: it needs no memory of its own.
            placement.offset = 0;
            placement.bytes = 0;
        }
    }
    base
}

/// Best-fit allocator over an address range that grows at its top.
#[derive(Default)]
struct Region {
    free: BTreeMap<usize, usize>,
    top: usize,
}

impl Region {
    fn take(&mut self, bytes: usize) -> usize {
        let best = self
            .free
            .iter()
            .filter(|&(_, &size)| size >= bytes)
            .min_by_key(|&(&offset, &size)| (size, offset))
            .map(|(&offset, &size)| (offset, size));
        if let Some((offset, size)) = best {
            self.free.remove(&offset);
            if size > bytes {
                self.free.insert(offset + bytes, size - bytes);
            }
            return offset;
        }
        // A free piece at the top grows instead of being skipped.
        let last = self.free.last_key_value().map(|(&offset, &size)| (offset, size));
        let offset = match last {
            Some((offset, size)) if offset + size == self.top => {
                self.free.remove(&offset);
                offset
            }
            _ => self.top,
        };
        self.top = offset + bytes;
        offset
    }

    fn give(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
        {
            self.free.remove(&before);
            offset = before;
            bytes += size;
        }
        if let Some(size) = self.free.remove(&(offset + bytes)) {
            bytes += size;
        }
        self.free.insert(offset, bytes);
    }
}

/// Checks that no two graph buffers alive at the same time overlap; the first offending pair otherwise.
pub fn overlapping(program: &Program, plan: &Plan) -> Option<(BufferId, BufferId)> {
    let lifetimes = lifetimes(program);
    let graph: Vec<usize> = (0..program.buffers.len())
        .filter(|&i| program.buffers[i].kind == Kind::Graph && lifetimes[i].is_some())
        .collect();
    for (n, &i) in graph.iter().enumerate() {
        for &j in &graph[n + 1..] {
            let (Some(a), Some(b)) = (lifetimes[i], lifetimes[j]) else { continue };
            let (p, q) = (plan.placements[i], plan.placements[j]);
            let in_time = a.start <= b.end && b.start <= a.end;
            let in_space = p.offset < q.offset + q.bytes && q.offset < p.offset + p.bytes;
            if in_time && in_space {
                return Some((BufferId(i as u32), BufferId(j as u32)));
            }
        }
    }
    None
}

/// An operation whose results nothing reads: work for nothing. Its index in the program.
pub fn idle(program: &Program) -> Option<usize> {
    let mut used: Vec<bool> = program.buffers.iter().map(|b| b.kind != Kind::Graph).collect();
    for op in &program.ops {
        for id in op.access().reads {
            used[id.0 as usize] = true;
        }
    }
    program.ops.iter().position(|op| op.access().writes.iter().all(|id| !used[id.0 as usize]))
}
