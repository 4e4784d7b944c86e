//! Programs over gradients: the accumulation tree and the update.

use super::{Io, Program};
use crate::graph::Graph;
use crate::op::Op;
use crate::ops::{AdamW, Add, Collective, CollectiveKind, Copy, Group, SumSquares};
use crate::store::{Store, TrainState, slice_of};
use crate::topology::Rank;
use std::ops::Range;

fn program(name: &'static str, store: &Store, ops: Vec<Op>, forward_ops: usize) -> Program {
    Program {
        name,
        buffers: store.buffers.clone(),
        persistent: store.buffers.len(),
        op_layers: vec![None; ops.len()],
        ops,
        forward_ops,
        io: Io::default(),
        tokens: 0,
    }
}

fn states(store: &Store) -> impl Iterator<Item = &TrainState> {
    store.params.iter().filter_map(|slot| slot.state.as_ref())
}

/// The store alone, with no operation: for whoever reads or writes parameters between steps.
pub fn resident(store: &Store) -> Program {
    program("resident", store, Vec::new(), 0)
}

/// The gradient norm, then the update: run the first `forward_ops` operations, read the sum of squares, write the
/// scalars, run the rest.
///
/// Over ranks: data ranks finish the tree over micro-batches, each for the slice that it updates; every slice counts
/// once in the sum of squares; updated slices are gathered.
pub fn optimizer(graph: &Graph, store: &Store) -> Program {
    let out = store.grad_squares.expect("a store made for training has a place for the norm");
    let hyper = store.hyper.expect("a store made for training has a place for scalars");
    let topology = &store.topology;
    let mut ops: Vec<Op> = Vec::new();
    if topology.dp > 1 {
        ops.extend(states(store).map(|state| step_sum(store, state)));
    }
    let counted = states(store).filter(|s| s.counted && !s.slice.is_empty());
    let parts = counted.map(|s| (s.grad, s.slice.clone())).collect();
    ops.push(SumSquares { parts, out }.into());
    if topology.ranks() > 1 {
        ops.push(
            Collective { group: Group::All, kind: CollectiveKind::ExactSum, x: out, out }.into(),
        );
    }
    let norm_ops = ops.len();
    for (param, slot) in graph.params.iter().zip(&store.params) {
        let Some(state) = &slot.state else { continue };
        if !state.slice.is_empty() {
            ops.push(
                AdamW {
                    param: slot.value,
                    grad: state.grad,
                    m: state.m,
                    v: state.v,
                    hyper,
                    decay: param.decay,
                    slice: state.slice.clone(),
                }
                .into(),
            );
        }
        if topology.cp * topology.dp > 1 {
            let buffer = store.buffer(slot.value);
            let kind = CollectiveKind::GatherSlices {
                ranges: slices(store, buffer.rows * buffer.cols, Group::Replicas),
            };
            let (group, x) = (Group::Replicas, slot.value);
            ops.push(Collective { group, kind, x, out: x }.into());
        }
    }
    program("optimizer", store, ops, norm_ops)
}

/// The rest of the tree over micro-batches, for the slice that this rank updates.
fn step_sum(store: &Store, state: &TrainState) -> Op {
    let buffer = store.buffer(state.grad);
    let ranges = slices(store, buffer.rows * buffer.cols, Group::Data);
    let kind = CollectiveKind::StepSum { ranges };
    Collective { group: Group::Data, kind, x: state.grad, out: state.grad }.into()
}

/// Slices of `len` elements that the ranks of this rank's group update, in the group's order.
fn slices(store: &Store, len: usize, group: Group) -> Vec<Range<usize>> {
    let topology = &store.topology;
    let members = (0..topology.ranks()).map(|index| Rank::of(index, topology));
    members
        .filter(|&rank| group.first(rank, topology) == group.first(store.rank, topology))
        .map(|rank| slice_of(len, topology, rank))
        .collect()
}

/// What follows each micro-batch of a step: the mid-split tree over micro-batches, evaluated as they come. One program for
/// every step; [`accumulation_ranges`] says which of its operations follow a micro-batch.
///
/// For each level of partial sums: `grad = partial + grad`; then for each level: `partial = grad`.
pub fn accumulate(store: &Store) -> Program {
    let levels = levels(store);
    let mut ops: Vec<Op> = Vec::new();
    for level in 0..levels {
        ops.extend(states(store).map(|state| {
            Op::from(Add { a: state.partials[level], b: state.grad, out: state.grad })
        }));
    }
    for level in 0..levels {
        ops.extend(states(store).map(|s| Op::from(Copy { x: s.grad, out: s.partials[level] })));
    }
    let count = ops.len();
    program("accumulate", store, ops, count)
}

fn levels(store: &Store) -> usize {
    states(store).map(|state| state.partials.len()).next().unwrap_or(0)
}

/// Operations of [`accumulate`] that follow micro-batch `index` of the `total` that this rank runs, in order.
///
/// After the last one the gradient buffers hold the tree's value.
pub fn accumulation_ranges(store: &Store, index: usize, total: usize) -> Vec<Range<usize>> {
    assert!(index < total, "a micro-batch of the step");
    let (merges, depth) = merges(index, total);
    let (levels, params) = (levels(store), states(store).count());
    let range = |block: usize| block * params..(block + 1) * params;
    let mut ranges: Vec<Range<usize>> = (0..merges).map(|i| range(depth - 1 - i)).collect();
    if index + 1 < total {
        ranges.push(range(levels + depth - merges));
    }
    ranges
}

/// Merges that follow leaf `index`, and how many partial sums wait when it comes.
fn merges(index: usize, total: usize) -> (usize, usize) {
    let merged: usize = (0..index).map(|leaf| canon::tree::merges_after(leaf, total)).sum();
    (canon::tree::merges_after(index, total), index - merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the stack machine over symbols and prints the expression that results.
    fn expression(total: usize) -> String {
        let mut stack: Vec<String> = Vec::new();
        let mut grad = String::new();
        for index in 0..total {
            grad = index.to_string();
            let (count, depth) = merges(index, total);
            assert_eq!(stack.len(), depth);
            for _ in 0..count {
                grad = format!("({}+{grad})", stack.pop().unwrap());
            }
            if index + 1 < total {
                stack.push(grad.clone());
                assert!(stack.len() <= crate::store::tree_depth(total));
            }
        }
        assert!(stack.is_empty());
        grad
    }

    #[test]
    fn accumulation_is_the_mid_split_tree() {
        assert_eq!(expression(1), "0");
        assert_eq!(expression(3), "(0+(1+2))");
        assert_eq!(expression(5), "((0+1)+(2+(3+4)))");
        assert_eq!(expression(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
    }
}
