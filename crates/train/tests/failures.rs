//! What fails changes nothing and says where; what is the same gives the same.

mod common;

use arena::{ExecError, Executor, Frame};
use common::{Fixture, Watch, files, surroundings};
use engine::Engine;
use oracle::{Oracle, Precision};
use program::{Op, Program};
use record::{Record, Status};
use train::{Outcome, Requested, Run, RunError, TrainError};

/// Every trained value and moment, as bits.
fn state(engine: &Engine<'_>) -> Vec<Vec<u32>> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    engine
        .graph
        .param_ids()
        .filter_map(|id| Some((id, engine.read_moments(id)?)))
        .flat_map(|(id, (m, v))| [bits(engine.read_param(id)), bits(m), bits(v)])
        .collect()
}

const FULL: &str = "mode = \"full\"\n";

/// Starts a run on an engine that was made for it.
fn start(
    fixture: &Fixture,
    requested: &Requested,
    engine: &mut Engine<'_>,
    watch: &mut Watch,
) -> Result<Outcome, TrainError> {
    let mut run = Run {
        engine,
        checkpoint: &fixture.checkpoint,
        dataset: &fixture.dataset,
        evaluation: None,
        requested,
        resolved: &fixture.resolved(requested),
        surroundings: &surroundings(),
        extra_files: &[],
    };
    run.start(watch)
}

/// Runs on weights that `spoil` changes; checks that nothing was updated, and gives the error.
fn failed(fixture: &Fixture, more: &str, spoil: impl Fn(&mut Engine<'_>)) -> TrainError {
    let requested = fixture.requested("out", more);
    let mut engine = fixture.engine(&fixture.resolved(&requested));
    spoil(&mut engine);
    let before = state(&engine);
    let mut watch = Watch::default();
    let error = start(fixture, &requested, &mut engine, &mut watch).unwrap_err();
    assert!(state(&engine) == before, "a failed step changed a parameter or a moment");
    assert!(watch.events.is_empty());
    error
}

/// What the record says of the failed run.
fn status(fixture: &Fixture) -> (Option<usize>, Vec<String>, String) {
    match Record::read(&fixture.out("out")).unwrap().status {
        Status::Failed { step, samples, error } => (step, samples, error),
        other => panic!("{other:?}"),
    }
}

fn spoil(engine: &mut Engine<'_>, name: &str, change: impl Fn(&mut [f32])) {
    let id = engine
        .graph
        .param_ids()
        .find(|&id| engine.graph.param_info(id).name.as_ref() == name)
        .unwrap();
    let mut values = engine.read_param(id);
    change(&mut values);
    engine.write_param(id, &values);
}

#[test]
fn a_log_prob_that_is_not_finite_names_the_step_and_the_sample() {
    let lines: Vec<String> = (0..10)
        .map(|i| {
            let last = if i == 6 { "h" } else { "b" };
            format!(r#"{{"prompt": "ab{last}", "completion": "c"}}"#)
        })
        .collect();
    let fixture = Fixture::with_lines("llama", &lines);
    let columns = fixture.checkpoint.config().hidden_size;
    let error = failed(&fixture, FULL, |engine| {
        // Only the seventh sample has the character `h`, which is token 8.
        spoil(engine, "model.embed_tokens.weight", |table| table[8 * columns] = f32::NAN);
    });
    let TrainError::NonFiniteLoss { step: 1, sample, value } = &error else { panic!("{error}") };
    assert!(sample.ends_with("data.jsonl:7") && value.is_nan(), "{error}");
    assert_eq!(status(&fixture), (Some(1), vec![sample.clone()], error.to_string()));
}

#[test]
fn a_gradient_that_is_not_finite_names_the_step_and_its_samples() {
    let fixture = Fixture::new("llama");
    let error = failed(&fixture, &format!("{FULL}loss_limit = 1e9\n"), |engine| {
        // The feed-forward's activations of some 1e36 reach no log-prob through a matrix of zeros, but its gradient is
        // their product with what the steep head sends back.
        let scale = |by: f32| move |weight: &mut [f32]| weight.iter_mut().for_each(|w| *w *= by);
        spoil(engine, "lm_head.weight", scale(1e4));
        spoil(engine, "model.layers.0.mlp.up_proj.weight", scale(1e36));
        spoil(engine, "model.layers.0.mlp.down_proj.weight", scale(0.0));
    });
    let TrainError::NonFiniteGradient { step: 1, samples, .. } = &error else { panic!("{error}") };
    assert!(samples.iter().any(|sample| sample.contains("data.jsonl:")), "{error}");
    assert_eq!(status(&fixture), (Some(1), samples.clone(), error.to_string()));
}

#[test]
fn a_loss_that_the_vocabulary_rules_out_stops_the_run_unless_another_bound_is_set() {
    let steep = |engine: &mut Engine<'_>| {
        let scale = |weight: &mut [f32]| weight.iter_mut().for_each(|w| *w *= 1e4);
        spoil(engine, "lm_head.weight", scale);
    };
    let fixture = Fixture::new("llama");
    let error = failed(&fixture, FULL, steep);
    let TrainError::LossOutOfBounds { step: 1, loss, limit, samples } = &error else {
        panic!("{error}")
    };
    assert!(loss > limit && !samples.is_empty(), "{error}");
    assert_eq!(status(&fixture), (Some(1), samples.clone(), error.to_string()));

    let fixture = Fixture::new("llama");
    let low = failed(&fixture, &format!("{FULL}loss_limit = 0.01\n"), |_| ());
    assert!(matches!(low, TrainError::LossOutOfBounds { step: 1, .. }), "{low}");
    fixture
        .run("high", &format!("{FULL}loss_limit = 50.0\n"), false, &mut Watch::default())
        .unwrap();
}

/// The gate that a run failed at, and the steps that it did.
fn gate(error: &TrainError) -> (&str, usize) {
    match error {
        TrainError::Gate { step, gate } => (&gate.name, *step),
        other => panic!("{other}"),
    }
}

#[test]
fn a_tensor_without_gradient_stops_the_run_after_its_first_step() {
    for (more, dead, named) in [
        ("", "model.layers.0.mlp.down_proj.weight", "layers.0.mlp.gate_proj.lora_B"),
        (FULL, "lm_head.weight", "model.embed_tokens.weight"),
    ] {
        let fixture = Fixture::new("llama");
        let zero = |engine: &mut Engine<'_>| spoil(engine, dead, |weight| weight.fill(0.0));
        let (error, events) = fixture.failed("out", more, zero);
        assert_eq!(gate(&error), (train::gates::GRADIENTS, 1));
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!((events, status(&fixture).0), (0, Some(1)));
    }
}

#[test]
fn weights_that_the_last_update_made_infinite_fail_the_run() {
    // The gradient is finite, and so is what it asks for; the decay of such a step is not.
    let last = "max_steps = 1\nlr = 1e38\nweight_decay = 1e30\n";
    for (more, named) in [("", "lora_A.weight"), (FULL, "model.")] {
        let fixture = Fixture::new("llama");
        let (error, _) = fixture.failed("out", &format!("{more}{last}"), |_| ());
        assert_eq!(gate(&error), (train::gates::FINITE, 1));
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(status(&fixture).0, Some(1));
        let seal = record::read_seal(&fixture.out("out")).unwrap().unwrap();
        assert_eq!(seal.verify(&fixture.out("out"), None).unwrap(), vec![]);
    }
}

#[test]
fn an_adapter_or_a_weight_that_stays_as_it_was_stops_the_run() {
    // With such an epsilon every update rounds to nothing.
    let still = "eps = 1e30\nlr = 1e-30\n";
    let fixture = Fixture::new("llama");
    let (error, _) = fixture.failed("out", still, |_| ());
    assert_eq!(gate(&error), (train::gates::ADAPTERS, 1));
    let (error, events) = fixture.failed("full", &format!("{FULL}{still}"), |_| ());
    assert_eq!((gate(&error), events), (("trained tensors changed", 3), 3));
    assert!(!fixture.out("full").join("checkpoints/step-3").exists());
}

/// The oracle, which in the second step flips a bit of a matrix that it should only read.
struct Overwrites {
    oracle: Oracle,
    updated: bool,
    matrix: Option<&'static str>,
}

impl Executor for Overwrites {
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError> {
        self.oracle.run(op, frame)?;
        self.updated |= matches!(op, Op::AdamW(_));
        for id in op.access().reads {
            if self.updated && self.matrix.take_if(|of| *frame.buffer(id).name == **of).is_some() {
                let mut values = frame.load_f32(id);
                values[0] = f32::from_bits(values[0].to_bits() ^ 1);
                frame.store_f32(id, &values);
            }
        }
        Ok(())
    }

    fn workspace_bytes(&self, op: &Op, program: &Program) -> usize {
        self.oracle.workspace_bytes(op, program)
    }
}

#[test]
fn a_frozen_weight_that_changes_stops_the_run_before_its_next_checkpoint() {
    let fixture = Fixture::new("llama");
    let matrix = "model.layers.1.mlp.down_proj.weight";
    let run = |out: &str, matrix: Option<&'static str>, watch: &mut Watch| {
        let requested = fixture.requested(out, "");
        let oracle = Oracle::new(Precision::F32);
        let executor = Box::new(Overwrites { oracle, updated: false, matrix });
        let mut engine = fixture.rank_engine(&fixture.resolved(&requested), None, executor);
        start(&fixture, &requested, &mut engine, watch)
    };
    run("sound", None, &mut Watch::default()).unwrap();
    let saved = Watch::default();
    for (out, mut watch, step) in [("saved", saved, 3), ("stopped", Watch::stopping_after(2), 2)] {
        let error = run(out, Some(matrix), &mut watch).unwrap_err();
        assert_eq!((gate(&error), watch.events.len()), ((train::gates::FROZEN, step), step));
        assert!(error.to_string().contains(matrix), "{error}");
        assert!(!fixture.out(out).join(format!("checkpoints/step-{step}")).exists());
        let record = Record::read(&fixture.out(out)).unwrap();
        let states: Vec<usize> = record.tensors.iter().map(|at| at.step).collect();
        assert_eq!(states, [0, step], "the state that it failed at is told");
    }
}

#[test]
fn a_run_that_the_disk_has_no_room_for_is_refused_before_its_first_step() {
    let fixture = Fixture::new("llama");
    let (error, events) = fixture.failed("out", "keep_checkpoints = 1000000000\n", |_| ());
    let TrainError::Folder(RunError::NoSpace { needed, free, .. }) = &error else {
        panic!("{error}")
    };
    assert!(needed > free && events == 0, "{error}");
    assert!(status(&fixture).2.contains("keep_checkpoints"), "{error}");
}

#[test]
fn an_engine_planned_for_other_settings_is_refused() {
    let fixture = Fixture::new("llama");
    let requested = fixture.requested("out", "");
    let resolved = fixture.resolved(&requested);
    let mut other = resolved.clone();
    other.accumulation.value = 2;
    let mut engine = fixture.engine(&other);
    let error = start(&fixture, &requested, &mut engine, &mut Watch::default()).unwrap_err();
    assert!(
        matches!(error, TrainError::OtherPlan { what: "accumulation", planned: 2, needed: 3 }),
        "{error}"
    );
    assert!(!fixture.out("out").exists(), "nothing is written");
}

/// Packing, and accumulation with it, is part of a run's identity; threads and times are not.
#[test]
fn the_same_settings_give_the_same_run_and_others_another() {
    let fixture = Fixture::new("llama");
    let product = |out: &str, more: &str| {
        let outcome = fixture.run(out, more, false, &mut Watch::default()).unwrap();
        let Outcome::Finished { product } = outcome else { panic!("{outcome:?}") };
        files(&product)
    };
    let first = product("first", "");
    assert!(product("second", "") == first);
    assert!(product("slower", "lr = 1e-3\n") != first);
    assert_eq!(fixture.steps("first"), fixture.steps("second"));
}
