//! What fails changes nothing and says where; what is the same gives the same.

mod common;

use arena::{ExecError, Executor, Frame};
use common::{Fixture, Watch, files, surroundings};
use engine::{Engine, Job};
use oracle::{Oracle, Precision};
use program::{Op, Program};
use record::{Record, Status};
use serde::{Serialize, Serializer};
use std::fs;
use std::path::{Path, PathBuf};
use train::{
    Files, Flow, Observer, Outcome, Recorder, Requested, Resolved, Run, RunError, StepEvent,
    TrainError,
};

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

/// The character `h`, and the only sample of [`one_with_h`] that has it.
const H: usize = 8;
const WITH_H: usize = 6;

fn one_with_h() -> Vec<String> {
    let line = |i| {
        let last = if i == WITH_H { "h" } else { "b" };
        format!(r#"{{"prompt": "ab{last}", "completion": "c"}}"#)
    };
    (0..10).map(line).collect()
}

#[test]
fn a_log_prob_that_is_not_finite_names_the_step_and_the_sample() {
    let fixture = Fixture::with_lines("llama", &one_with_h());
    let columns = fixture.checkpoint.config().hidden_size;
    let error = failed(&fixture, FULL, |engine| {
        spoil(engine, "model.embed_tokens.weight", |table| table[H * columns] = f32::NAN);
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
        let status = Record::read(&fixture.out("out")).unwrap().status;
        let seal = record::read_seal(&fixture.out("out"), &status).unwrap().unwrap();
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

/// The error of a run with an engine of the test's own, which leaves nothing.
fn refused(fixture: &Fixture, resolved: &Resolved, mut engine: Engine<'_>) -> TrainError {
    let surroundings = surroundings();
    let mut run = Run {
        engine: &mut engine,
        checkpoint: &fixture.checkpoint,
        dataset: &fixture.dataset,
        evaluation: fixture.evaluation.as_ref(),
        requested: &fixture.requested("out", ""),
        resolved,
        surroundings: &surroundings,
        extra_files: &[],
    };
    let error = run.start(&mut Watch::default()).unwrap_err();
    assert!(!fixture.out("out").exists(), "nothing is written");
    error
}

#[test]
fn an_engine_planned_for_other_settings_is_refused() {
    let fixture = Fixture::new("llama");
    let resolved = fixture.resolved(&fixture.requested("out", ""));
    type Change = fn(&mut Resolved);
    let changes: [(&str, usize, Change); 3] = [
        ("micro_tokens", 32, |other| other.micro_tokens.value = 32),
        ("micro_sequences", 4, |other| other.micro_sequences.value = 4),
        ("accumulation", 2, |other| other.accumulation.value = 2),
    ];
    for (name, found, change) in changes {
        let mut other = resolved.clone();
        change(&mut other);
        let error = refused(&fixture, &resolved, fixture.engine(&other));
        assert!(
            matches!(error, TrainError::OtherPlan { what, planned, .. } if (what, planned) == (name, found)),
            "{error}"
        );
    }
}

#[test]
fn an_engine_without_the_programs_of_a_run_is_refused() {
    let mut fixture = Fixture::new("llama");
    let resolved = fixture.resolved(&fixture.requested("out", ""));
    let engine = |train| {
        let job = Job { train, ..Job::default() };
        fixture.job_engine(&resolved, job, None, Box::new(Oracle::new(Precision::F32)))
    };
    let (nothing, training) = (engine(None), engine(fixture.engine(&resolved).blueprint.job.train));
    let error = refused(&fixture, &resolved, nothing);
    assert!(matches!(error, TrainError::NotPlanned), "{error}");
    fixture.evaluation = Some(fixture.dataset.subset(&[0]));
    let error = refused(&fixture, &resolved, training);
    assert!(matches!(error, TrainError::NotPlanned), "{error}");
}

#[test]
fn a_run_that_is_to_evaluate_needs_held_out_data() {
    let mut fixture = Fixture::new("llama");
    let more = "eval_fraction = 0.3\neval_every = 1\nmax_steps = 1\n";
    for ranks in ["", "dp = 2\n"] {
        let (error, events) = fixture.failed("out", &format!("{more}{ranks}"), |_| ());
        assert!(matches!(error, TrainError::NoHeldOut), "{error}");
        assert!(events == 0 && !fixture.out("out").exists(), "before anything is done");
    }
    fixture.evaluation = Some(fixture.dataset.subset(&[0]));
    fixture.run("out", more, false, &mut Watch::default()).unwrap();
}

#[test]
fn an_evaluation_that_fails_says_after_which_step() {
    let mut fixture = Fixture::with_lines("llama", &one_with_h());
    fixture.evaluation = Some(fixture.dataset.subset(&[WITH_H]));
    let trained: Vec<usize> = (0..fixture.dataset.len()).filter(|&index| index != WITH_H).collect();
    fixture.dataset = fixture.dataset.subset(&trained);
    let columns = fixture.checkpoint.config().hidden_size;
    let no_h = |engine: &mut Engine<'_>| {
        spoil(engine, "model.embed_tokens.weight", |table| table[H * columns] = f32::NAN);
    };
    let more = "eval_fraction = 0.1\neval_every = 2\n";
    let (error, events) = fixture.failed("out", more, no_h);
    assert!(matches!(error, TrainError::Evaluation { step: 2, .. }), "{error}");
    assert_eq!((events, status(&fixture)), (1, (Some(2), vec![], error.to_string())));
    fixture.run("good", more, false, &mut Watch::default()).unwrap();
}

/// Puts a file where the product is to go.
struct InTheWay(PathBuf);

impl Observer for InTheWay {
    fn step(&mut self, event: &StepEvent) -> Flow {
        if event.step == event.steps {
            fs::write(&self.0, "").unwrap();
        }
        Flow::Continue
    }
}

/// Changes a log while the run goes on.
struct Meddling(PathBuf);

impl Observer for Meddling {
    fn step(&mut self, event: &StepEvent) -> Flow {
        if event.step == 2 {
            let line = fs::read_to_string(&self.0).unwrap();
            fs::write(&self.0, line.replacen("\"step\":1", "\"step\":7", 1)).unwrap();
        }
        Flow::Continue
    }
}

/// Neither a checkpoint nor a seal is made over what somebody else wrote.
#[test]
fn a_log_that_is_not_what_the_run_wrote_stops_it() {
    for last in [4, 2] {
        let fixture = Fixture::new("llama");
        let path = fixture.out("out").join("steps.jsonl");
        // With a checkpoint after the third step, and without one.
        let more = format!("max_steps = {last}\n");
        let error = fixture.run("out", &more, false, &mut Meddling(path)).unwrap_err();
        assert!(error.to_string().contains("something else than this run wrote"), "{error}");
        assert_eq!(status(&fixture).2, error.to_string());
        assert!(!fixture.out("out").join("adapter").exists());
    }
}

#[test]
fn a_product_that_cannot_be_written_fails_the_run() {
    for (more, product) in [("", "adapter"), (FULL, "model")] {
        let fixture = Fixture::new("llama");
        let place = fixture.out("out").join(product);
        let error = fixture.run("out", more, false, &mut InTheWay(place.clone())).unwrap_err();
        match (&error, product) {
            (TrainError::Product { .. }, "adapter") | (TrainError::Format(_), "model") => (),
            _ => panic!("{error}"),
        }
        assert!(error.to_string().contains(place.to_str().unwrap()), "{error}");
        assert_eq!(status(&fixture), (None, vec![], error.to_string()));
        // With the way free it goes on from its last checkpoint.
        fs::remove_file(place).unwrap();
        common::as_killed(&fixture.out("out"));
        fixture.run("out", more, true, &mut Watch::default()).unwrap();
    }
}

/// What a loop saves beside its tensors: while it is written, a byte of theirs turns on the disk.
struct FaultyDisk<'a>(&'a Path);

impl Serialize for FaultyDisk<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let places = fs::read_dir(self.0).unwrap().map(|entry| entry.unwrap().path());
        let states = places.map(|place| place.join("state.safetensors"));
        let written =
            |state: &PathBuf| state.is_file() && state.to_str().unwrap().contains(".writing-");
        let [state] = &states.filter(written).collect::<Vec<_>>()[..] else { panic!() };
        let mut bytes = fs::read(state).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(state, bytes).unwrap();
        serializer.serialize_unit()
    }
}

#[test]
fn a_checkpoint_that_reads_back_otherwise_removes_none_before_it() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(3)).unwrap();
    let folder = fixture.out("out");
    let checkpoints = folder.join("checkpoints");
    let engine = fixture.engine(&fixture.resolved(&fixture.requested("out", "")));
    let now = || Ok::<_, RunError>(Record::read(&folder)?);
    let product = folder.join("adapter");
    let (mut recorder, done) =
        Recorder::resume::<RunError>(&folder, now, &surroundings(), &product).unwrap();
    // One checkpoint is kept.
    let mut files = Files::open(&folder, done, &engine, 1).unwrap();
    let before = common::files(&checkpoints.join("step-3"));
    let error = files.save(&mut recorder, &engine, 6, &FaultyDisk(&checkpoints)).unwrap_err();
    assert!(
        matches!(&error, TrainError::Folder(RunError::Unfaithful { path, .. }) if path.ends_with("step-6/state.safetensors")),
        "{error}"
    );
    assert!(common::files(&checkpoints.join("step-3")) == before, "the one before it is kept");
    files.save(&mut recorder, &engine, 7, &()).unwrap();
    let left = train::checkpoints(&folder).unwrap();
    assert_eq!(left, [(7, checkpoints.join("step-7"))]);
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
