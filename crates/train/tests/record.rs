//! What a run leaves of itself: everything that decided it is in the record, and a change of any of it shows.

mod common;

use common::{Fixture, Watch, as_killed, files, surroundings};
use engine::Engine;
use record::*;
use serde_json::json;
use std::fs;
use std::path::Path;
use train::{Outcome, Surroundings, TrainError};

fn finished(fixture: &Fixture, out: &str, more: &str) -> Record {
    let outcome = fixture.run(out, more, false, &mut Watch::default()).unwrap();
    assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
    Record::read(&fixture.out(out)).unwrap()
}

fn seal(folder: &Path) -> Option<record::Seal> {
    read_seal(folder, &Record::read(folder).unwrap().status).unwrap()
}

#[test]
fn a_finished_run_says_what_ran_and_is_sealed() {
    let fixture = Fixture::new("llama");
    let record = finished(&fixture, "out", "");
    let Status::Finished { step: 8, product, early: None } = &record.status else { panic!() };
    assert_eq!(product.to_str(), Some("adapter"));
    let [session] = &record.sessions[..] else { panic!() };
    assert_eq!((session.from_step, session.process.pid), (0, std::process::id()));
    assert!(session.seconds > 0.0 && session.clock_jump_count == 0);
    assert_eq!(session.binary, Binary::current().unwrap());

    let layers: Vec<_> = record.adapters.iter().map(|of| (of.layer, of.modules.len())).collect();
    assert_eq!(layers, [(Some(0), 7), (Some(1), 7)]);
    assert_eq!((record.adapters[0].rank, record.adapters[0].scale), (16, 2.0));
    let [memory] = &record.memory.ranks[..] else { panic!("{:?}", record.memory) };
    assert_eq!(memory.ranks, "0");
    for kind in &memory.kinds {
        assert_eq!(kind.planned_bytes, kind.used_bytes, "{}", kind.kind);
    }
    let attention = record.arithmetic.kernels.iter().find(|of| of.op == "Attention").unwrap();
    assert_eq!((attention.program.as_str(), attention.layers.as_str()), ("train", "0-1"));
    assert_eq!(attention.kernel, "plain", "the slow executor has one way");
    let steps: Vec<_> = record.tensors.iter().map(|at| at.step).collect();
    assert_eq!(steps, [0, 3, 6, 8]);
    let folder = fixture.out("out");
    let states = fs::read_to_string(folder.join(TENSORS_FILE)).unwrap();
    for state in states.lines() {
        let state: serde_json::Value = serde_json::from_str(state).unwrap();
        let hashes = state["tensors"].as_object().unwrap();
        assert_eq!(hashes.len(), 21 + 2 * 14, "of frozen tensors too: {hashes:?}");
        assert!(hashes["model.norm.weight"].as_str().is_some_and(|hash| hash.len() == 64));
    }
    let gates: Vec<_> =
        record.gates.iter().map(|gate| (gate.name.as_str(), gate.verdict, gate.times)).collect();
    assert_eq!(
        gates,
        [
            ("disk space is held", Verdict::Ok, 1),
            ("loss within bounds", Verdict::Ok, 8),
            ("trained tensors receive gradient", Verdict::Ok, 4),
            ("trained values are finite", Verdict::Ok, 4),
            ("adapters learn", Verdict::Ok, 4),
            ("frozen weights unchanged", Verdict::Ok, 3),
            ("trained tensors changed", Verdict::Ok, 3),
            ("checkpoints read back", Verdict::Ok, 2),
        ]
    );
    let folder = fixture.out("out");
    let seal = seal(&folder).unwrap();
    assert_eq!(seal.verify(&folder, None).unwrap(), vec![]);
    assert!(folder.join(report::REPORT_FILE).exists());
    let held =
        files(&folder).into_iter().filter(|(path, _)| path.to_string_lossy().contains(".writing"));
    assert_eq!(held.count(), 0, "room is given back");
}

/// Each source of a run is changed, and the record must not stay the same in the place that says so.
#[test]
fn a_change_of_any_source_changes_the_record() {
    let fixture = Fixture::new("llama");
    let base = finished(&fixture, "base", "");
    let same = finished(&fixture, "same", "");
    assert_eq!((&same.identity, &same.programs), (&base.identity, &base.programs));
    assert_eq!(same.tensors, base.tensors);

    let setting = finished(&fixture, "setting", "weight_decay = 0.5\n");
    assert_ne!(setting.identity.settings, base.identity.settings);
    assert_eq!(setting.setting("weight_decay").unwrap().resolved, json!(0.5));
    assert_eq!(setting.identity.hashes, base.identity.hashes);
    assert_ne!(setting.tensors.last(), base.tensors.last());

    let adapter = finished(&fixture, "adapter", "targets = [\"q_proj\"]\n");
    assert_ne!(adapter.adapters, base.adapters);
    assert_ne!(adapter.identity.hashes["program"], base.identity.hashes["program"]);
    assert_ne!(adapter.programs["train"], base.programs["train"]);

    let seed = finished(&fixture, "seed", "").tensors[0].clone();
    assert_eq!(seed, base.tensors[0]);
    let order = finished(&fixture, "order", "micro_sequences = 1\n");
    assert_ne!(order.identity.hashes["order"], base.identity.hashes["order"]);
}

#[test]
fn a_changed_byte_or_mask_of_the_data_changes_the_record() {
    let line = |prompt: &str, completion: &str| {
        json!({"prompt": prompt, "completion": completion}).to_string()
    };
    let record = |lines: &[String]| finished(&Fixture::with_lines("llama", lines), "out", "");
    let base = record(&[line("ab", "cdef"), line("ba", "cde")]);
    let byte = record(&[line("ab", "cdef"), line("ba", "cdd")]);
    // The same tokens, of which one more is learnt.
    let mask = record(&[line("a", "bcdef"), line("ba", "cde")]);
    for other in [&byte, &mask] {
        assert_ne!(other.identity.hashes["data"], base.identity.hashes["data"]);
        assert_eq!(other.data.tokens, base.data.tokens);
    }
    assert_eq!(byte.data.supervised, base.data.supervised);
    assert_eq!(mask.data.supervised, base.data.supervised + 1);
}

#[test]
fn changed_weights_change_the_record() {
    let fixture = Fixture::new("llama");
    let base = finished(&fixture, "base", "");
    let nudge = |engine: &mut Engine<'_>| {
        let id = engine.graph.param_ids().next().unwrap();
        let mut values = engine.read_param(id);
        values[0] += 1e-6;
        engine.write_param(id, &values);
    };
    let mut watch = Watch::default();
    fixture.run_in(&surroundings(), "other", "", false, nudge, &mut watch).unwrap();
    let other = Record::read(&fixture.out("other")).unwrap();
    assert_ne!(other.identity.hashes["base_weights"], base.identity.hashes["base_weights"]);
}

#[test]
fn a_dirty_tree_leaves_its_patch() {
    let fixture = Fixture::new("llama");
    let content = b"diff --git a/x b/x\n".to_vec();
    let patch =
        Patch { bytes: content.len(), blake3: "aa".into(), files: vec!["x".into()], content };
    let repository = Repository {
        root: "/code".into(),
        commit: Some("0".repeat(40)),
        branch: None,
        patch: Some(patch.clone()),
        untracked: 0,
        untracked_named: vec![],
    };
    let dirty = Surroundings { git: Git::Repository(repository), ..surroundings() };
    fixture.run_in(&dirty, "out", "", false, |_| (), &mut Watch::default()).unwrap();
    assert_eq!(fs::read(fixture.out("out").join(PATCH_FILE)).unwrap(), patch.content);
    let record = Record::read(&fixture.out("out")).unwrap();
    assert_eq!(record.git.patch().unwrap().blake3, "aa");
}

#[test]
fn a_resumed_run_keeps_the_code_and_the_machine_of_each_session() {
    let fixture = Fixture::new("llama");
    let with = |commit: &str, patch: Option<&str>, device: &str| {
        let patch = patch.map(|content| Patch {
            bytes: content.len(),
            blake3: content.into(),
            files: vec!["x".into()],
            content: content.into(),
        });
        let repository = Repository {
            root: "/code".into(),
            commit: Some(commit.into()),
            branch: None,
            patch,
            untracked: 0,
            untracked_named: vec![],
        };
        let git = Git::Repository(repository);
        Surroundings { git, device: device.into(), ..surroundings() }
    };
    let run = |around: &Surroundings, resume: bool, watch: &mut Watch| {
        fixture.run_in(around, "out", "", resume, |_| (), watch).unwrap();
    };
    run(&with("aa", Some("first"), "avx512"), false, &mut Watch::stopping_after(4));
    run(&with("bb", None, "avx2"), true, &mut Watch::stopping_after(5));
    run(&with("cc", Some("third"), "avx2"), true, &mut Watch::default());
    let folder = fixture.out("out");
    let record = Record::read(&folder).unwrap();
    let told = record.sessions.iter().map(|session| {
        let Git::Repository(code) = &session.git else { panic!() };
        let commit = code.commit.clone().unwrap();
        assert!(session.kernels.iter().any(|of| of.op == "Attention" && of.times > 0));
        (commit, session.patch.clone(), session.device.clone())
    });
    let text = |of: &str| of.to_owned();
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            (text("aa"), Some(text("changes.patch")), text("avx512")),
            (text("bb"), None, text("avx2")),
            (text("cc"), Some(text("changes-3.patch")), text("avx2")),
        ]
    );
    assert_eq!(fs::read(folder.join("changes.patch")).unwrap(), b"first");
    assert_eq!(fs::read(folder.join("changes-3.patch")).unwrap(), b"third");
    assert_eq!(record.git, record.sessions[2].git, "the newest");
}

/// Everything in a record but what belongs to its whole life: its sessions, and the gates so far.
fn of_what_ran(record: &Record) -> serde_json::Value {
    let mut record = serde_json::to_value(record).unwrap();
    for whole_life in ["sessions", "gates"] {
        record.as_object_mut().unwrap().remove(whole_life).unwrap();
    }
    record["memory"]["peak_resident_bytes"].take();
    for setting in record["settings"].as_array_mut().unwrap() {
        if setting["key"] == "out" {
            setting.take();
        }
    }
    record
}

#[test]
fn the_record_of_a_run_that_goes_on_says_what_runs_now() {
    let fixture = Fixture::new("llama");
    let elsewhere = Surroundings {
        directory: "/elsewhere".into(),
        device: "other".into(),
        allow_changed: ["settings", "program", "version"].map(str::to_owned).into(),
        ..surroundings()
    };
    let run = |out: &str, more: &str, resume: bool| {
        fixture.run_in(&elsewhere, out, more, resume, |_| (), &mut Watch::default()).unwrap();
        Record::read(&fixture.out(out)).unwrap()
    };
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let louder = run("out", "alpha = 64.0\n", true);
    assert_eq!(louder.adapters[0].scale, 4.0);

    // Without a checkpoint the run begins again, and its record is that of a run which only this session made.
    let other = "rank = 4\ntargets = [\"q_proj\"]\n";
    fixture.run("again", "", false, &mut Watch::stopping_after(2)).unwrap();
    let folder = fixture.out("again");
    fs::remove_dir_all(folder.join("checkpoints")).unwrap();
    as_killed(&folder);
    let mut older = Record::read(&folder).unwrap();
    older.version = "0.0.0".into();
    older.identity.hashes.insert("version".into(), older.version.clone());
    older.sessions[0].identity = older.identity.hash();
    older.write(&folder).unwrap();
    let (again, fresh) = (run("again", other, true), run("fresh", other, false));
    assert_eq!(of_what_ran(&again), of_what_ran(&fresh));
    assert_eq!(again.sessions.len(), 2);
}

/// There are no gradients to judge then, and nothing that a step of the session has made.
#[test]
fn a_run_that_goes_on_with_no_step_left_judges_none_and_ends_with_its_checkpoint() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let folder = fixture.out("out");
    let stopped = Record::read(&folder).unwrap();
    let states = fs::read(folder.join(TENSORS_FILE)).unwrap();
    let allowing = Surroundings {
        allow_changed: ["settings", "order"].map(str::to_owned).into(),
        ..surroundings()
    };
    let mut watch = Watch::default();
    fixture.run_in(&allowing, "out", "max_steps = 4\n", true, |_| (), &mut watch).unwrap();
    assert!(watch.events.is_empty());
    let record = Record::read(&folder).unwrap();
    assert!(matches!(record.status, Status::Finished { step: 4, .. }), "{:?}", record.status);
    let (before, [loaded]) = record.gates.split_at(stopped.gates.len()) else { panic!() };
    let judged = |gates: &[record::Gate]| {
        let of_steps = gates.iter().filter(|gate| gate.step > 0);
        of_steps.cloned().collect::<Vec<_>>()
    };
    assert_eq!(judged(before), judged(&stopped.gates));
    let held = (loaded.name.as_str(), loaded.figure.as_str(), loaded.verdict, loaded.step);
    assert_eq!(held, (train::gates::RESUMED, "28 of 28", Verdict::Ok, 4));
    assert_eq!(record.tensors, stopped.tensors);
    assert_eq!(fs::read(folder.join(TENSORS_FILE)).unwrap(), states);
    assert!(folder.join("adapter").exists());
}

#[test]
fn only_what_a_run_has_may_be_let_pass() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let with = |key: &str| Surroundings { allow_changed: vec![key.to_owned()], ..surroundings() };
    let mut watch = Watch::default();
    let unknown = fixture.run_in(&with("dtaa"), "out", "", true, |_| (), &mut watch).unwrap_err();
    let TrainError::Folder(train::RunError::UnknownChange { key, nearest, known }) = unknown else {
        panic!("{unknown}")
    };
    assert_eq!((key.as_str(), nearest.as_deref()), ("dtaa", Some("data")));
    assert!(known.contains("base_weights") && known.contains("settings"), "{known}");
    fixture.run_in(&with("data"), "out", "", true, |_| (), &mut watch).unwrap();
}

fn changed(error: TrainError) -> Vec<String> {
    match error {
        TrainError::Folder(train::RunError::Changed { changes, .. }) => {
            changes.into_iter().map(|change| change.key).collect()
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_changed_binary_or_template_is_refused_by_name_unless_it_is_let_pass() {
    let fixture = Fixture::new("llama");
    let with = |binary: &str, template: &str, allowed: &[&str]| Surroundings {
        binary: Binary { blake3: binary.into(), ..surroundings().binary },
        hashes: [("template".to_owned(), template.to_owned())].into(),
        allow_changed: allowed.iter().map(ToString::to_string).collect(),
        ..surroundings()
    };
    let run = |surroundings: &Surroundings, resume: bool, watch: &mut Watch| {
        fixture.run_in(surroundings, "out", "", resume, |_| (), watch)
    };
    run(&with("b1", "t1", &[]), false, &mut Watch::stopping_after(4)).unwrap();
    let refused =
        |surroundings| changed(run(&surroundings, true, &mut Watch::default()).unwrap_err());
    assert_eq!(refused(with("b2", "t1", &[])), ["binary"]);
    assert_eq!(refused(with("b2", "t2", &[])), ["binary", "template"]);
    assert_eq!(refused(with("b2", "t2", &["binary"])), ["template"]);
    assert_eq!(refused(with("b1", "t2", &["binary", "settings"])), ["template"]);
    run(&with("b2", "t1", &["binary"]), true, &mut Watch::default()).unwrap();
    let record = Record::read(&fixture.out("out")).unwrap();
    let [first, second] = &record.sessions[..] else { panic!() };
    assert_eq!((first.from_step, second.from_step), (0, 4));
    let [change] = &second.changed[..] else { panic!() };
    assert_eq!(
        (change.key.as_str(), change.was.as_str(), change.is.as_str()),
        ("binary", "b1", "b2")
    );
    assert!(first.changed.is_empty() && record.identity.hashes["binary"] == "b2");
}

/// A process that is killed while it goes on with a stopped run leaves halves of its own files there.
#[test]
fn what_a_killed_process_leaves_does_not_break_a_stopped_run() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let folder = fixture.out("out");
    for left in [".writing-room-for-record", ".writing-record", "checkpoints/.writing-step"] {
        fs::write(folder.join(left), "half").unwrap();
    }
    let intact = seal(&folder).unwrap().verify(&folder, None).unwrap();
    assert_eq!(intact, vec![]);
    fixture.run("out", "", true, &mut Watch::default()).unwrap();
    assert!(!folder.join(".writing-record").exists(), "it is removed");
    assert_eq!(seal(&folder).unwrap().verify(&folder, None).unwrap(), vec![]);
}

/// What a gate said of steps that are made again is not the run's any more.
#[test]
fn a_gate_that_failed_in_a_step_that_is_made_again_does_not_stay() {
    let fixture = Fixture::new("llama");
    let strict = "loss_limit = 0.001\n";
    let loss = || {
        let record = Record::read(&fixture.out("out")).unwrap();
        let gate = record.gates.iter().find(|gate| gate.name == "loss within bounds");
        gate.map(|gate| (gate.verdict, gate.step)).unwrap()
    };
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    assert_eq!(loss(), (record::Verdict::Ok, 4));
    fixture.run("out", strict, true, &mut Watch::default()).unwrap_err();
    assert_eq!(loss(), (record::Verdict::Failed, 5));
    fixture.run("out", "", true, &mut Watch::default()).unwrap();
    assert_eq!(loss(), (record::Verdict::Ok, 8));
}

#[test]
fn a_run_goes_on_with_the_settings_of_its_record() {
    let fixture = Fixture::new("llama");
    fixture.run("out", "rank = 4\n", false, &mut Watch::stopping_after(4)).unwrap();
    let record = Record::read(&fixture.out("out")).unwrap();
    let asked = fixture.requested("out", "rank = 4\n");
    assert_eq!(train::requested(&record, fixture.out("out")).unwrap(), asked);
    let moved: train::Requested = train::requested(&record, "/elsewhere".into()).unwrap();
    assert_eq!(moved.settings.out, Some("/elsewhere".into()));
}

#[test]
fn checkpoints_come_by_the_clock_too() {
    let fixture = Fixture::new("llama");
    let mut watch = Watch::default();
    let more = "save_every_minutes = 1e-9\nkeep_checkpoints = 9\n";
    fixture.run("out", more, false, &mut watch).unwrap();
    assert_eq!(watch.saved.len(), 7, "after every step but the last");
    let mut watch = Watch::default();
    fixture.run("rare", "save_every_minutes = 1e9\n", false, &mut watch).unwrap();
    assert_eq!(watch.saved.len(), 2, "by steps only");
}

#[test]
fn a_run_killed_between_its_product_and_its_end_makes_both_again() {
    let fixture = Fixture::new("llama");
    finished(&fixture, "out", "");
    let folder = fixture.out("out");
    let product = files(&folder.join("adapter"));
    as_killed(&folder);
    fixture.run("out", "", true, &mut Watch::default()).unwrap();
    assert!(files(&folder.join("adapter")) == product);
    assert!(seal(&folder).is_some());
    // A finished run that has lost its seal gets no other, whatever lies there by now.
    fs::remove_file(folder.join(SEAL_FILE)).unwrap();
    assert!(fixture.run("out", "", true, &mut Watch::default()).is_err(), "it is finished");
    assert_eq!(seal(&folder), None);
}

#[test]
fn a_stopped_run_is_sealed_until_it_goes_on() {
    let fixture = Fixture::new("llama");
    let folder = fixture.out("out");
    fixture.run("out", "", false, &mut Watch::stopping_after(4)).unwrap();
    let stopped = seal(&folder).unwrap();
    assert_eq!(stopped.verify(&folder, None).unwrap(), vec![]);
    fixture.run("out", "", true, &mut Watch::default()).unwrap();
    let finished = seal(&folder).unwrap();
    assert_ne!(finished, stopped);
    assert_eq!(finished.verify(&folder, None).unwrap(), vec![]);
}

#[test]
fn a_signed_run_names_its_signer() {
    let fixture = Fixture::new("llama");
    let key = fixture.folder.path().join("key");
    fs::write(&key, "07".repeat(32)).unwrap();
    let signing = Surroundings { signing_key: Some(key.clone()), ..surroundings() };
    fixture.run_in(&signing, "out", "", false, |_| (), &mut Watch::default()).unwrap();
    let folder = fixture.out("out");
    let public = read_signing_key(&key).unwrap().verifying_key();
    let seal = seal(&folder).unwrap();
    assert_eq!(seal.verify(&folder, Some(&public)).unwrap(), vec![]);
}

/// A fixture with held-out samples.
fn evaluated() -> Fixture {
    let mut fixture = Fixture::new("llama");
    let (stay, out) = train::held_out(fixture.dataset.len(), 0.3, 7).unwrap();
    fixture.evaluation = Some(fixture.dataset.subset(&out));
    fixture.dataset = fixture.dataset.subset(&stay);
    fixture
}

#[test]
fn held_out_samples_are_evaluated_and_change_no_bit_of_training() {
    let fixture = evaluated();
    let mut watch = Watch::default();
    let more = "eval_fraction = 0.3\neval_every = 3\n";
    fixture.run("out", more, false, &mut watch).unwrap();
    let steps: Vec<usize> = watch.evaluated.iter().map(|event| event.step).collect();
    assert_eq!(steps, [3, 6, 8]);
    assert!(watch.evaluated.iter().all(|event| event.samples == 3 && event.loss.is_finite()));
    let plain = Fixture { evaluation: None, ..evaluated() };
    plain.run("plain", "", false, &mut Watch::default()).unwrap();
    assert_eq!(fixture.steps("out"), plain.steps("plain"));
    let record = Record::read(&fixture.out("out")).unwrap();
    assert!(record.identity.hashes.contains_key("evaluation_data"));
    assert_eq!(record.data.evaluation["samples"], 3);
}

/// After a step that changed next to nothing.
#[test]
fn an_evaluation_gives_the_loss_that_training_on_the_same_samples_begins_with() {
    let mut fixture = Fixture::new("llama");
    // All of them are in the first step.
    let all = [0, 1, 2];
    fixture.dataset = fixture.dataset.subset(&all);
    fixture.evaluation = Some(fixture.dataset.clone());
    let mut watch = Watch::default();
    let more = "eval_fraction = 0.5\neval_every = 1\nmax_steps = 1\nlr = 1e-12\n";
    fixture.run("out", more, false, &mut watch).unwrap();
    let ([trained], [evaluated]) = (&watch.events[..], &watch.evaluated[..]) else { panic!() };
    assert!((trained.loss - evaluated.loss).abs() < 1e-6, "{trained:?} {evaluated:?}");
    assert_eq!((evaluated.samples, evaluated.supervised), (all.len(), trained.supervised));
    assert_eq!((evaluated.best_loss, evaluated.best_step), (evaluated.loss, 1));
}

#[test]
fn a_run_that_gets_no_better_stops_early_wherever_it_was_interrupted() {
    let fixture = evaluated();
    // Such a learning rate soon makes held-out samples worse.
    let more = "eval_fraction = 0.3\neval_every = 1\npatience = 2\nlr = 0.3\nloss_limit = 1e6\n";
    let mut watch = Watch::default();
    fixture.run("whole", more, false, &mut watch).unwrap();
    let done = watch.events.len();
    assert!(done < 8, "{done} steps of 8");
    let Status::Finished { step, early: Some(why), .. } =
        Record::read(&fixture.out("whole")).unwrap().status
    else {
        panic!()
    };
    assert!(step == done && why.contains("2 evaluations without improvement"), "{why}");
    for stop in 1..done {
        let out = format!("broken-{stop}");
        fixture.run(&out, more, false, &mut Watch::stopping_after(stop)).unwrap();
        fixture.run(&out, more, true, &mut Watch::default()).unwrap();
        assert_eq!(fixture.steps(&out), fixture.steps("whole"), "stopped after {stop}");
        let product = |out: &str| files(&fixture.out(out).join("adapter"));
        assert!(product(&out) == product("whole"), "stopped after {stop}");
    }
    let patient = more.replace("patience = 2\n", "");
    let mut watch = Watch::default();
    fixture.run("patient", &patient, false, &mut watch).unwrap();
    assert_eq!(watch.events.len(), 8);
}
