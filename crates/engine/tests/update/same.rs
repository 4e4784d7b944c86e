//! Every topology against one rank.

use super::common;
use super::model::{Case, Update, graph, updates};
use families::Train;
use program::Topology;

fn topology(tp: usize, cp: usize, dp: usize) -> Topology {
    let topology = Topology { tp, cp, dp, width: Topology::WIDTH };
    topology.check().unwrap();
    topology
}

/// Names the first thing that differs.
fn assert_same(one: &Update, other: &Update, what: &str) {
    assert_eq!(one.logp, other.logp, "{what}: log-probs");
    assert_eq!(one.parameters.len(), other.parameters.len());
    for ((name, ours), (_, theirs)) in one.parameters.iter().zip(&other.parameters) {
        for (part, i) in
            ["gradient", "first moment", "second moment", "value"].into_iter().zip([1, 2, 3, 0])
        {
            assert!(ours[i] == theirs[i], "{what}: {part} of {name}");
        }
    }
    assert_eq!((one.norm, one.scale), (other.norm, other.scale), "{what}: norm and scale");
}

fn same_as_one_rank(case: &Case, degrees: &[(usize, usize, usize)]) {
    let one = updates(case, Topology::single());
    assert_ne!(f32::from_bits(one[0].scale), 1.0, "gradients are clipped");
    for (name, [before, gradient, ..]) in &one[0].parameters {
        let Some(gradient) = gradient else { continue };
        assert!(gradient.iter().any(|&bits| bits << 1 != 0), "{name} has a gradient");
        let after = one[1].parameters.iter().find(|p| p.0 == *name).unwrap();
        assert_ne!(*before, after.1[0], "{name} is updated");
    }
    for &(tp, cp, dp) in degrees {
        let other = updates(case, topology(tp, cp, dp));
        for (step, (one, other)) in one.iter().zip(&other).enumerate() {
            assert_same(one, other, &format!("tp {tp} cp {cp} dp {dp} update {}", step + 1));
        }
    }
}

fn lora() -> Train {
    Train::Lora(common::lora_spec())
}

#[test]
fn lora_over_every_degree() {
    let graph = graph(8, false, false, &lora());
    let case = Case { graph, micro_batches: [4, 3], coef_known: true };
    same_as_one_rank(
        &case,
        &[(1, 1, 2), (1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2), (8, 1, 1), (1, 4, 1)],
    );
}

#[test]
fn full_training_with_tied_embeddings_and_more_replicas_than_micro_batches() {
    let graph = graph(8, true, false, &Train::Full);
    let case = Case { graph, micro_batches: [5, 1], coef_known: true };
    same_as_one_rank(&case, &[(1, 1, 2), (1, 1, 3), (2, 2, 2), (4, 2, 1)]);
}

#[test]
fn biases_and_three_key_value_heads_that_ranks_replicate() {
    let graph = graph(3, false, true, &Train::Full);
    let case = Case { graph, micro_batches: [2, 3], coef_known: true };
    same_as_one_rank(&case, &[(4, 1, 1), (8, 1, 1), (2, 2, 2), (4, 1, 2)]);
}

/// The last context ranks of a short micro-batch have no token at all.
#[test]
fn context_ranks_without_tokens() {
    let graph = graph(8, false, false, &lora());
    let case = Case { graph, micro_batches: [2, 2], coef_known: true };
    same_as_one_rank(&case, &[(1, 8, 1), (1, 3, 2)]);
}

/// Coefficients that come after the forward pass give the bits of those that were known before.
#[test]
fn two_halves_over_ranks() {
    let known =
        Case { graph: graph(8, false, false, &lora()), micro_batches: [2, 2], coef_known: true };
    let later = Case { coef_known: false, graph: known.graph.clone(), ..known };
    assert_same(
        &updates(&known, Topology::single())[1],
        &updates(&later, Topology::single())[1],
        "halves",
    );
    same_as_one_rank(&later, &[(2, 2, 1), (1, 2, 2)]);
}
