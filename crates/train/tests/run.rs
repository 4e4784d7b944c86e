//! Whole runs on tiny models.

mod common;

use arena::Frame;
use common::{Fixture, Watch, files};
use engine::Exchange;
use fabric::{Member, World};
use formats::Checkpoint;
use formats::peft::{Adapter, TargetModules};
use formats::safetensors::{self, OutputTensor};
use oracle::{Oracle, Precision};
use program::ops::{Collective, Group};
use record::{Record, RecordError};
use serde_json::{Value, json};
use std::path::Path;
use train::{Outcome, Run, RunError, TrainError};

fn product(outcome: Outcome) -> std::path::PathBuf {
    match outcome {
        Outcome::Finished { product } => product,
        stopped => panic!("{stopped:?}"),
    }
}

#[test]
fn a_lora_run_learns_and_leaves_an_adapter_and_a_record() {
    let fixture = Fixture::new("llama");
    let mut watch = Watch::default();
    let adapter = product(fixture.run("out", "", false, &mut watch).unwrap());
    assert_eq!(watch.began, Some((0, 8)));
    assert_eq!(watch.events.len(), 8);
    let micro_batches: usize = watch.events.iter().map(|event| event.micro_batches).sum();
    assert_eq!(watch.micro_batches, micro_batches);
    let (first, last) = (watch.events[0].loss, watch.events[7].loss);
    assert!(last < first, "{first} {last}");
    assert_eq!(
        watch.saved,
        [3, 6].map(|n| fixture.out("out").join(format!("checkpoints/step-{n}")))
    );

    let adapter = Adapter::open(&adapter).unwrap();
    let TargetModules::Names(names) = &adapter.config().target_modules else { panic!() };
    assert_eq!(
        *names,
        ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    );
    for module in adapter.modules() {
        let mut b = vec![0.0; module.out_features * module.rank];
        adapter.read_b(module, &mut b).unwrap();
        assert!(b.iter().any(|&x| x != 0.0), "{} learnt nothing", module.name);
    }

    let record = Record::read(&fixture.out("out")).unwrap();
    assert_eq!((record.steps, record.data.samples), (8, 10));
    let setting = |key| record.setting(key).unwrap();
    assert_eq!((&setting("rank").resolved, &setting("rank").requested), (&json!(16), &Value::Null));
    assert_eq!((&setting("seed").requested, setting("seed").why.as_str()), (&json!(7), "run.toml"));
    assert!(record.trained_parameters > 0);
}

#[test]
fn patterns_for_some_layers_are_written_as_whole_paths() {
    let fixture = Fixture::new("llama");
    let more = "targets = [\"layers.0.self_attn.q_proj\", \"v_proj\"]\nrank = 2\n";
    let adapter = product(fixture.run("out", more, false, &mut Watch::default()).unwrap());
    let adapter = Adapter::open(&adapter).unwrap();
    let TargetModules::Names(names) = &adapter.config().target_modules else { panic!() };
    assert_eq!(*names, ["model.layers.0.self_attn.q_proj", "v_proj"]);
}

#[test]
fn a_full_run_leaves_a_checkpoint_that_opens_and_differs() {
    for model in ["llama_tied", "qwen2"] {
        let fixture = Fixture::new(model);
        let mut watch = Watch::default();
        let folder = product(fixture.run("out", "mode = \"full\"\n", false, &mut watch).unwrap());
        assert!(watch.events[7].loss < watch.events[0].loss);
        let (base, tuned) = (&fixture.checkpoint, Checkpoint::open(&folder).unwrap());
        assert_eq!(tuned.tensors().len(), base.tensors().len());
        for tensor in base.tensors() {
            let ours = tuned.require(&tensor.name, &tensor.shape).unwrap();
            let read = |checkpoint: &Checkpoint| {
                let mut numbers = vec![0.0; ours.elements()];
                checkpoint.read_rows_f32(&tensor.name, 0..ours.rows(), &mut numbers).unwrap();
                numbers
            };
            assert_ne!(read(base), read(&tuned), "{} learnt nothing", tensor.name);
        }
        assert_eq!(std::fs::read(folder.join("note.txt")).unwrap(), b"kept");
    }
}

#[test]
fn an_interrupted_run_resumes_to_the_bits_of_an_unbroken_one() {
    for (model, mode) in [("qwen3", "lora"), ("llama", "full")] {
        let fixture = Fixture::new(model);
        let more = format!("mode = \"{mode}\"\n");
        let whole = product(fixture.run("whole", &more, false, &mut Watch::default()).unwrap());
        for stop in [1, 4, 7] {
            let out = format!("broken-{stop}");
            let mut watch = Watch::stopping_after(stop);
            let stopped = fixture.run(&out, &more, false, &mut watch).unwrap();
            assert!(matches!(stopped, Outcome::Stopped { step, .. } if step == stop));
            let mut watch = Watch::default();
            let resumed = product(fixture.run(&out, &more, true, &mut watch).unwrap());
            assert_eq!(watch.began, Some((stop, 8)));
            assert_eq!(fixture.steps(&out), fixture.steps("whole"), "{mode} stopped after {stop}");
            assert!(files(&resumed) == files(&whole), "{mode} stopped after {stop}");
        }
    }
}

/// A kill leaves log lines past the last checkpoint, half-written files, or nothing but the record.
#[test]
fn a_killed_run_resumes_from_its_newest_checkpoint_or_from_the_start() {
    let fixture = Fixture::new("llama");
    let whole = product(fixture.run("whole", "", false, &mut Watch::default()).unwrap());
    for (out, keep) in [("late", true), ("early", false)] {
        fixture.run(out, "", false, &mut Watch::stopping_after(5)).unwrap();
        let folder = fixture.out(out);
        common::as_killed(&folder);
        let checkpoints = folder.join("checkpoints");
        std::fs::remove_dir_all(checkpoints.join("step-5")).unwrap();
        if !keep {
            std::fs::remove_dir_all(checkpoints.join("step-3")).unwrap();
        }
        std::fs::create_dir(checkpoints.join(".writing-x")).unwrap();
        std::fs::write(checkpoints.join(".writing-x/state.safetensors"), "half").unwrap();
        std::fs::write(folder.join(".writing-y"), "half").unwrap();
        let mut watch = Watch::default();
        let resumed = product(fixture.run(out, "", true, &mut watch).unwrap());
        assert_eq!(watch.began, Some((if keep { 3 } else { 0 }, 8)));
        assert_eq!(fixture.steps(out), fixture.steps("whole"));
        assert!(files(&resumed) == files(&whole));
        assert!(!checkpoints.join(".writing-x").exists() && !folder.join(".writing-y").exists());
    }
}

#[test]
fn old_checkpoints_go_and_the_newest_stay() {
    let fixture = Fixture::new("llama");
    let more = "keep_checkpoints = 1\n";
    fixture.run("out", more, false, &mut Watch::default()).unwrap();
    let names: Vec<_> = std::fs::read_dir(fixture.out("out").join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["step-6"]);
}

fn folder_error(result: Result<Outcome, TrainError>) -> RunError {
    match result {
        Err(TrainError::Folder(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_changed_since_the_run_began_is_named() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let changed = |fixture: &Fixture, more: &str| match folder_error(fixture.run(
        "out",
        more,
        true,
        &mut Watch::default(),
    )) {
        RunError::Changed { changes, .. } => changes.into_iter().map(|c| c.key).collect::<Vec<_>>(),
        other => panic!("{other}"),
    };
    assert_eq!(changed(&fixture, "weight_decay = 0.1\n"), ["weight_decay"]);
    for (more, key) in [("rank = 4\n", "rank"), ("targets = [\"q_proj\"]\n", "targets")] {
        let error = folder_error(fixture.run("out", more, true, &mut Watch::default()));
        let RunError::OtherShapes { changes, .. } = error else { panic!("{error}") };
        assert_eq!(changes.iter().map(|change| &*change.key).collect::<Vec<_>>(), [key]);
    }

    // Another data set, and another model of the same shape, over the same run folder.
    let lines: Vec<String> =
        (0..10).map(|_| r#"{"prompt": "ab", "completion": "c"}"#.to_owned()).collect();
    let mut other = Fixture::with_lines("llama", &lines);
    let own = std::mem::replace(&mut other.folder, fixture.folder);
    assert_eq!(changed(&other, ""), ["data", "order"]);
    let mut scaled = Fixture::new("llama_rope_linear");
    let _own = (own, std::mem::replace(&mut scaled.folder, other.folder));
    assert!(changed(&scaled, "").contains(&"base_weights".to_owned()));
}

#[test]
fn files_that_were_altered_since_a_run_was_stopped_are_named() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let log = fixture.out("out").join(record::STEPS_FILE);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"epoch\":0", "\"epoch\":1", 1)).unwrap();
    let refused = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    let RunError::Changed { changes, .. } = &refused else { panic!("{refused}") };
    assert_eq!(changes.len(), 1);
    assert!(refused.to_string().contains("steps.jsonl was changed"), "{refused}");
    std::fs::write(&log, text).unwrap();
    // A checkpoint may go, and another be gone on from.
    std::fs::remove_dir_all(fixture.out("out").join("checkpoints/step-4")).unwrap();
    std::fs::remove_file(fixture.out("out").join(record::SEAL_FILE)).unwrap();
    let refused = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(refused.to_string().contains("there is no seal"), "{refused}");
    let allowing =
        train::Surroundings { allow_changed: vec!["seal".into()], ..common::surroundings() };
    let mut watch = Watch::default();
    fixture.run_in(&allowing, "out", "", true, |_| (), &mut watch).unwrap();
    let record = record::Record::read(&fixture.out("out")).unwrap();
    assert_eq!(record.sessions[1].changed[0].key, "seal");
}

#[test]
fn settings_that_change_no_bit_may_change() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let more = "threads = 7\nkeep_checkpoints = 5\n";
    product(fixture.run("out", more, true, &mut Watch::default()).unwrap());
}

#[test]
fn a_folder_with_a_run_is_not_begun_again_and_one_without_is_not_resumed() {
    let fixture = Fixture::new("llama");
    let none = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(matches!(none, RunError::Record(RecordError::NoRun { .. })), "{none}");
    fixture.run("out", "", false, &mut Watch::default()).unwrap();
    let again = folder_error(fixture.run("out", "", false, &mut Watch::default()));
    assert!(matches!(again, RunError::RunExists { .. }), "{again}");
    let finished = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(matches!(finished, RunError::Finished { .. }), "{finished}");
}

#[test]
fn a_run_that_another_process_has_is_not_resumed() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(2)).unwrap();
    let other =
        std::fs::File::options().write(true).open(fixture.out("out").join("run.lock")).unwrap();
    other.lock().unwrap();
    let refused = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(matches!(refused, RunError::InUse { .. }), "{refused}");
    drop(other);
    product(fixture.run("out", "", true, &mut Watch::default()).unwrap());
}

#[test]
fn a_folder_with_something_else_is_not_taken() {
    let fixture = Fixture::new("llama");
    std::fs::create_dir_all(fixture.out("out").join("adapter")).unwrap();
    let refused = folder_error(fixture.run("out", "", false, &mut Watch::default()));
    assert!(matches!(&refused, RunError::NotEmpty { name, .. } if name == "adapter"), "{refused}");
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(2)).unwrap();
    common::as_killed(&fixture.out("out"));
    let state = fixture.out("out").join("checkpoints/step-2/state.safetensors");
    let mut bytes = std::fs::read(&state).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let damaged = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(matches!(damaged, RunError::Damaged { .. }), "{damaged}");

    let from = fixture.out("out").join("checkpoints/step-2");
    let to = fixture.out("out").join("checkpoints/step-3");
    std::fs::rename(from, to).unwrap();
    common::as_killed(&fixture.out("out"));
    let moved = folder_error(fixture.run("out", "", true, &mut Watch::default()));
    assert!(moved.to_string().contains("it says step 2 in a folder for step 3"), "{moved}");
}

#[test]
fn a_checkpoint_goes_on_with_the_logs_of_its_run_alone() {
    let fixture = Fixture::new("llama");
    for (out, more) in [("out", ""), ("other", "lr = 2e-2\n")] {
        fixture.run(out, more, false, &mut Watch::stopping_after(4)).unwrap();
    }
    let folder = fixture.out("out");
    // As a kill leaves it: what its end says of its files is another guard.
    common::as_killed(&folder);
    let mut record = Record::read(&folder).unwrap();
    let refused = |log: &str| {
        let error = folder_error(fixture.run("out", "", true, &mut Watch::default()));
        assert!(
            matches!(&error, RunError::LogChanged { path, .. } if path.ends_with(log)),
            "{error}"
        );
    };
    // A line that was edited, in each log.
    for log in ["steps.jsonl", "tensors.jsonl"] {
        let text = std::fs::read_to_string(folder.join(log)).unwrap();
        std::fs::write(folder.join(log), text.replacen("0", "1", 1)).unwrap();
        refused(log);
        std::fs::write(folder.join(log), text).unwrap();
    }
    // Another run's checkpoint of the same shape, whole in itself.
    let step = Path::new("checkpoints/step-4");
    let own = files(&folder.join(step));
    for (path, bytes) in files(&fixture.out("other").join(step)) {
        std::fs::write(folder.join(step).join(path), bytes).unwrap();
    }
    refused("steps.jsonl");
    for (path, bytes) in own {
        std::fs::write(folder.join(step).join(path), bytes).unwrap();
    }
    // A record that was not written after the checkpoint gets its hash from the log.
    let hash = record.tensors.pop().unwrap();
    record.write(&folder).unwrap();
    product(fixture.run("out", "", true, &mut Watch::default()).unwrap());
    let record = Record::read(&folder).unwrap();
    let steps: Vec<usize> = record.tensors.iter().map(|at| at.step).collect();
    assert_eq!(steps, [0, 3, 4, 6, 8]);
    assert!(record.tensors.contains(&hash));
}

/// Ranks' means to exchange, with something that happens before the first exchange.
struct Meanwhile<'r> {
    member: Member<'r>,
    before: Option<Box<dyn FnOnce() + 'r>>,
}

impl Exchange for Meanwhile<'_> {
    fn collective(&mut self, op: &Collective, frame: &Frame<'_>) -> Result<(), String> {
        Exchange::collective(&mut self.member, op, frame)
    }

    fn all_gather(&mut self, of: Group, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        if let Some(before) = self.before.take() {
            before();
        }
        Exchange::all_gather(&mut self.member, of, what, mine)
    }

    fn traffic(&self) -> fabric::Traffic {
        Exchange::traffic(&self.member)
    }
}

#[test]
fn a_run_is_held_from_before_its_record_is_read() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let requested = fixture.requested("out", "dp = 2\n");
    let resolved = fixture.resolved(&requested);
    let around = common::surroundings();
    let outcomes = World::new(&[resolved.topology()]).run(|seat| {
        let executor = Box::new(Oracle::new(Precision::F32));
        let mut engine = fixture.rank_engine(&resolved, seat.member(0), executor);
        let leads = seat.index() == 0;
        if leads {
            // While weights are hashed, somebody else tries to end the run.
            let before = || {
                let other = folder_error(fixture.run("out", "", true, &mut Watch::default()));
                assert!(matches!(other, RunError::InUse { .. }), "{other}");
            };
            let member = seat.member(0).unwrap();
            let exchange = Meanwhile { member, before: Some(Box::new(before)) };
            engine = engine.with_exchange(Box::new(exchange));
        }
        let mut run = Run {
            engine: &mut engine,
            checkpoint: &fixture.checkpoint,
            dataset: &fixture.dataset,
            evaluation: None,
            requested: &requested,
            resolved: &resolved,
            surroundings: &around,
            extra_files: &[],
        };
        match leads {
            true => run.resume(&mut Watch::default()).map(Some),
            false => run.follow().map(|()| None),
        }
    });
    let mut outcomes = outcomes.unwrap_or_else(|error| panic!("{error}"));
    product(outcomes.swap_remove(0).unwrap());
}

/// Puts other tensors into a checkpoint, with a hash that fits.
fn replace_state(checkpoint: &Path, tensors: &[(&str, Vec<f32>)]) {
    let path = checkpoint.join("state.safetensors");
    let outputs =
        tensors.iter().map(|(name, numbers)| OutputTensor::f32(*name, [numbers.len()], numbers));
    safetensors::write(&path, &[], outputs.collect()).unwrap();
    let hash = blake3::hash(&std::fs::read(&path).unwrap()).to_hex().to_string();
    let position_path = checkpoint.join("state.json");
    let mut position: Value =
        serde_json::from_slice(&std::fs::read(&position_path).unwrap()).unwrap();
    position["state_blake3"] = json!(hash);
    std::fs::write(position_path, position.to_string()).unwrap();
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let fixture = Fixture::new("llama");
    let more = "targets = [\"layers.0.self_attn.q_proj\"]\nrank = 2\n";
    fixture.run("out", more, false, &mut Watch::stopping_after(2)).unwrap();
    let checkpoint = fixture.out("out").join("checkpoints/step-2");
    let written = common::files(&checkpoint);
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let names: Vec<String> = ["A", "B"]
        .iter()
        .flat_map(|factor| {
            ["", ".m", ".v"].map(|part| format!("{module}.lora_{factor}.weight{part}"))
        })
        .collect();
    let whole: Vec<(&str, Vec<f32>)> =
        names.iter().map(|name| (name.as_str(), vec![0.01; 2 * 64])).collect();
    let refused = |tensors: &[(&str, Vec<f32>)]| {
        replace_state(&checkpoint, tensors);
        common::as_killed(&fixture.out("out"));
        match folder_error(fixture.run("out", more, true, &mut Watch::default())) {
            RunError::State { reason, .. } => reason,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(&whole[1..]), "it has 5 tensors and the model takes 6");
    let mut other = whole.clone();
    other[5].0 = "another";
    let reason = refused(&other);
    assert_eq!(reason, format!("it has no tensor `{module}.lora_B.weight.v`"));
    let mut short = whole.clone();
    short[0].1.pop();
    let reason = refused(&short);
    assert_eq!(reason, format!("`{}` has 508 bytes of F32, not 128 of F32", names[0]));
    replace_state(&checkpoint, &whole);
    common::as_killed(&fixture.out("out"));
    // Such as the model takes, and yet not the run's.
    let error = fixture.run("out", more, true, &mut Watch::default()).unwrap_err();
    let TrainError::Gate { step: 2, gate } = &error else { panic!("{error}") };
    assert_eq!((&*gate.name, gate.figure.starts_with("2 of 2 ")), (train::gates::RESUMED, true));
    for (name, bytes) in written {
        std::fs::write(checkpoint.join(name), bytes).unwrap();
    }
    common::as_killed(&fixture.out("out"));
    product(fixture.run("out", more, true, &mut Watch::default()).unwrap());
}
