//! Gradients and the log-probs of a training step.

use super::common;
use super::rig::{
    Case, LONG, Model, Profile, Way, assert_same_gradients, bits, cases, gradients, pack,
};
use engine::{Job, MicroBatch};
use families::{LoraSpec, Train};
use program::DType;
use program::keep::Level;

/// A micro-batch's log-probs and gradients, trained in a program of some capacity.
fn step(
    case: Case,
    train: &Train,
    way: Way,
    batch: &MicroBatch,
    (tokens, segments): (usize, usize),
) -> (Vec<u32>, Vec<(String, Vec<f32>)>) {
    let job = common::train_job(tokens, segments, Level::All);
    let mut engine = case.engine(train.clone(), job, way);
    let logp = engine.train_micro_batch(batch, 0, 1).unwrap();
    (bits(&logp), gradients(&engine))
}

/// Compares ways with the oracle, in programs with some tokens to spare.
fn same_by(ways: &[Way], spare: &[usize], case: Case, train: &Train, batch: &MicroBatch) {
    let exact = (batch.tokens(), batch.sequences.len());
    let (logp, grads) = step(case, train, Way::Oracle, batch, exact);
    for (name, gradient) in &grads {
        assert!(gradient.iter().any(|g| *g != 0.0), "{case:?}: {name} has a gradient");
    }
    for &way in ways {
        for spare in spare {
            let capacity = (exact.0 + spare, exact.1 + spare);
            let what = format!("{case:?} {way:?} {spare} to spare");
            let (ours, our_grads) = step(case, train, way, batch, capacity);
            assert!(ours == logp, "{what}: log-probs");
            assert_same_gradients(&our_grads, &grads, &what);
        }
    }
}

#[test]
fn lora_on_every_thread_count_and_instruction_set() {
    for case in cases() {
        let batch = pack(&case.samples(), &[0, 1, 2]);
        same_by(&Way::all(), &[0, 41], case, &Train::Lora(common::lora_spec()), &batch);
    }
}

#[test]
fn full_on_every_thread_count_and_instruction_set() {
    for case in cases().into_iter().filter(|c| c.weights == DType::F32) {
        let batch = pack(&case.samples(), &[0, 1, 2]);
        same_by(&Way::all(), &[0, 41], case, &Train::Full, &batch);
    }
}

#[test]
fn lora_over_more_than_one_span_of_keys() {
    for profile in Profile::OF_LONG {
        let case = Case { model: Model::Long, weights: DType::F32, profile };
        let train = Train::Lora(common::lora_spec());
        let batch = pack(&case.samples(), &[0]);
        assert_eq!(batch.tokens(), LONG);
        same_by(&Way::some()[1..], &[0], case, &train, &batch);
    }
}

/// Training and scoring see one log-prob.
#[test]
fn a_training_step_gives_the_log_probs_of_scoring() {
    for case in cases() {
        let batch = pack(&case.samples(), &[2, 0, 1]);
        let shape = (batch.tokens(), batch.sequences.len());
        let spec = common::lora_spec();
        for way in Way::all() {
            let (trained, _) = step(case, &Train::Lora(spec.clone()), way, &batch, shape);
            let job = Job { score: Some(shape), ..Job::default() };
            let mut engine = case.engine(Train::Adapted(spec.clone()), job, way);
            let scored = bits(&engine.score(&batch).unwrap());
            assert!(trained == scored, "{case:?} {way:?}");
        }
    }
}

/// Gradients of LoRA on the modules that `pattern` names, by name.
fn adapted(case: Case, pattern: &str, way: Way, batch: &MicroBatch) -> Vec<(String, Vec<f32>)> {
    let spec = LoraSpec { targets: vec![pattern.into()], ..common::lora_spec() };
    step(case, &Train::Lora(spec), way, batch, (batch.tokens(), batch.sequences.len())).1
}

/// The same with every linear adapted, where only the modules that `pattern` ends have a B that is not zero.
fn among_all(case: Case, pattern: &str, way: Way, batch: &MicroBatch) -> Vec<(String, Vec<f32>)> {
    let job = common::train_job(batch.tokens(), batch.sequences.len(), Level::All);
    let mut engine = case.engine(Train::Lora(common::lora_spec()), job, way);
    let named =
        |name: &str| families::lora_module(name).is_some_and(|module| module.ends_with(pattern));
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        if param.name.ends_with("lora_B.weight") && !named(&param.name) {
            let zeros = vec![0f32; param.elements()];
            engine.write_whole(id, &zeros);
        }
    }
    engine.train_micro_batch(batch, 0, 1).unwrap();
    gradients(&engine).into_iter().filter(|(name, _)| named(name)).collect()
}

/// Where some modules are frozen, gradients stop early, and no bit of the others changes.
#[test]
fn a_part_of_the_modules_has_the_gradients_that_it_has_among_all() {
    let modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let of_a_layer = ["layers.0.self_attn.v_proj", "layers.1.mlp.up_proj"];
    for case in cases().into_iter().filter(|c| c.weights == DType::F32) {
        let batch = pack(&case.samples(), &[0, 1, 2]);
        for pattern in modules.into_iter().chain(of_a_layer) {
            for way in [Way::Oracle, Way::Cpu(cpu::Isa::best(), 2)] {
                let ours = adapted(case, pattern, way, &batch);
                assert!(!ours.is_empty());
                let theirs = among_all(case, pattern, way, &batch);
                assert_same_gradients(&ours, &theirs, &format!("{case:?} {way:?} {pattern}"));
            }
        }
    }
}
