//! One training step of a small model on rank threads: log-probs and every gradient are the bytes of one rank, at every
//! tensor and context degree, with the oracle as executor.

mod model;
mod step;

use model::{Training, qwen3, uneven};
use oracle::Precision;
use program::Topology;
use program::keep::Level;
use step::{Batch, Settings, Step, train};

fn topology(tp: usize, cp: usize) -> Topology {
    Topology::new(tp, cp).unwrap()
}

/// Three sequences of 6, 1 and 6 tokens in room for 16: context ranks split inside sequences, the last holds none.
fn batch() -> Batch {
    Batch::new(&[6, 1, 6], 16)
}

fn assert_same(step: &Step, one: &Step, what: &str) {
    assert_eq!(step.logp, one.logp, "{what}: log-probs");
    assert_eq!(step.gradients.len(), one.gradients.len(), "{what}: gradients");
    for (name, wanted) in &one.gradients {
        let got = &step.gradients[name];
        let differ = got.iter().zip(wanted).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "{what}: {name}: {differ} of {} gradients differ", wanted.len());
    }
}

const SETTINGS: Settings =
    Settings { precision: Precision::F32, coef_known: true, level: Level::All };

const TRAINED_HEAD: Settings = Settings { coef_known: false, ..SETTINGS };

fn assert_topologies(graph: &program::Graph, settings: Settings, degrees: &[(usize, usize)]) {
    let one = train(graph, topology(1, 1), &batch(), settings);
    assert!(one.logp.iter().any(|&x| x != 0), "some log-prob is not zero");
    for (name, gradient) in &one.gradients {
        assert!(gradient.iter().any(|&x| x << 1 != 0), "{name}: a gradient is not zero");
    }
    for &(tp, cp) in degrees {
        let step = train(graph, topology(tp, cp), &batch(), settings);
        assert_same(&step, &one, &format!("tp {tp}, cp {cp}"));
    }
}

#[test]
fn full_training_at_every_degree() {
    let degrees = [(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4)];
    assert_topologies(&qwen3(Training::Full), TRAINED_HEAD, &degrees);
}

#[test]
fn lora_at_every_degree() {
    let degrees = [(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 2), (8, 2)];
    assert_topologies(&qwen3(Training::Lora), SETTINGS, &degrees);
}

#[test]
fn three_key_value_heads_tied_words_and_biases() {
    let degrees = [(2, 1), (4, 1), (8, 1), (1, 2), (1, 3), (4, 2)];
    assert_topologies(&uneven(Training::Full), TRAINED_HEAD, &degrees);
    assert_topologies(&uneven(Training::Lora), SETTINGS, &degrees);
}

#[test]
fn the_bf16_profiles_have_their_own_bits_and_keep_them_too() {
    for (precision, graph) in [
        (Precision::Bf16, qwen3(Training::Full)),
        (Precision::Bf16, uneven(Training::Full)),
        (Precision::Bf16Tiles, qwen3(Training::Full)),
        (Precision::Bf16Tiles, uneven(Training::Full)),
    ] {
        let settings = Settings { precision, ..TRAINED_HEAD };
        assert_topologies(&graph, settings, &[(2, 1), (8, 1), (1, 2), (1, 3), (2, 2)]);
        let of = |settings| train(&graph, topology(1, 1), &batch(), settings).logp;
        assert_ne!(of(settings), of(SETTINGS), "the profiles differ");
    }
}

#[test]
fn coefficients_known_before_or_after_the_forward_pass() {
    for training in [Training::Full, Training::Lora] {
        let graph = qwen3(training);
        let at = |settings| train(&graph, topology(1, 1), &batch(), settings);
        assert_same(&at(SETTINGS), &at(TRAINED_HEAD), "coefficients");
    }
}

#[test]
fn computing_activations_again_changes_no_bit() {
    for graph in [qwen3(Training::Full), uneven(Training::Lora)] {
        for (tp, cp) in [(1, 1), (2, 2)] {
            let at =
                |level| train(&graph, topology(tp, cp), &batch(), Settings { level, ..SETTINGS });
            let kept = at(Level::All);
            for level in Level::ALL {
                assert_same(&at(level), &kept, &format!("tp {tp}, cp {cp}, {}", level.name()));
            }
        }
    }
}
