//! Programs over gradients: the accumulation tree and the update.

use super::{Io, Program};
use crate::graph::Graph;
use crate::op::Op;
use crate::ops::{AdamW, Add, Copy, SumSquares};
use crate::store::{Store, TrainState};

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

/// The gradient norm, then the update: run the first `forward_ops` operations, read the norm, write the scalars, run the
/// rest.
pub fn optimizer(graph: &Graph, store: &Store) -> Program {
    let out = store.grad_norm.expect("a store made for training has a place for the norm");
    let hyper = store.hyper.expect("a store made for training has a place for scalars");
    let grads = states(store).map(|s| s.grad).collect();
    let mut ops = vec![Op::from(SumSquares { grads, out })];
    for (param, slot) in graph.params.iter().zip(&store.params) {
        if let Some(state) = &slot.state {
            ops.push(
                AdamW {
                    param: slot.value,
                    grad: state.grad,
                    m: state.m,
                    v: state.v,
                    hyper,
                    decay: param.decay,
                }
                .into(),
            );
        }
    }
    program("optimizer", store, ops, 1)
}

/// What follows micro-batch `index` of `total`: the mid-split tree over micro-batches, evaluated as they come.
///
/// After the last one the gradient buffers hold the tree's value.
pub fn accumulate(store: &Store, index: usize, total: usize) -> Program {
    assert!(index < total, "a micro-batch of the step");
    let (merges, depth) = merges(index, total);
    let mut ops = Vec::new();
    for state in states(store) {
        for i in 0..merges {
            ops.push(
                Add { a: state.partials[depth - 1 - i], b: state.grad, out: state.grad }.into(),
            );
        }
        if index + 1 < total {
            ops.push(Copy { x: state.grad, out: state.partials[depth - merges] }.into());
        }
    }
    let count = ops.len();
    program("accumulate", store, ops, count)
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
