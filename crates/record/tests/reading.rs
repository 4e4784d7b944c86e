//! Records as they are read, compared, listed, annotated and drawn.

mod common;

use common::{Folder, record, setting, step};
use record::*;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[test]
fn a_record_reads_back_as_it_was_written() {
    let record = record();
    let folder = Folder::of(&record, &[]);
    assert_eq!(Record::read(&folder.path()).unwrap(), record);
}

#[test]
fn what_is_no_record_is_refused_by_name() {
    let folder = Folder::new();
    let none = Record::read(folder.root()).unwrap_err();
    assert!(matches!(none, RecordError::NoRun { .. }), "{none}");
    let path = folder.path().join(RECORD_FILE);
    let text = fs::read_to_string(&path).unwrap();
    let format = |number: u32| format!("\"format\": {number}");
    let later = FORMAT + 1;
    fs::write(&path, text.replace(&format(FORMAT), &format(later))).unwrap();
    let error = Record::read(&folder.path()).unwrap_err();
    assert!(
        matches!(&error, RecordError::Format { found, known: FORMAT, version, .. }
            if *found == u64::from(later) && version == "0.1.0"),
        "{error}"
    );
    fs::write(&path, text.replace("\"kind\"", "\"kin\"")).unwrap();
    let damaged = |error: RecordError| {
        let said = error.to_string();
        let told = said.contains("record.json") && said.contains("put it back from a copy");
        assert!(matches!(error, RecordError::Malformed { .. }) && told, "{said}");
    };
    damaged(Record::read(&folder.path()).unwrap_err());
    for text in ["", "{}", "[]"] {
        fs::write(&path, text).unwrap();
        damaged(Record::read(&folder.path()).unwrap_err());
    }
}

#[test]
fn a_run_that_says_it_runs_is_looked_up() {
    let standing = |record: &Record| record.standing().to_string();
    let finished = record();
    assert_eq!(standing(&finished), "finished");
    let mut running = Record { status: Status::Running, ..record() };
    assert_eq!(running.standing(), Standing::As(Status::Running));
    if let Some(ticks) = &mut running.sessions[0].process.start_ticks {
        *ticks -= 1;
    }
    assert_eq!(standing(&running), "dead", "the number is this process's, the start is not");
    running.sessions[0].process.host = "elsewhere".into();
    assert_eq!(standing(&running), "unknown");
    running.sessions.clear();
    assert_eq!(standing(&running), "dead");
}

#[test]
fn the_same_run_twice_differs_in_nothing_that_counts() {
    let first = Folder::new();
    let slower = [step(1, 3.0, 9.0), step(2, 2.5, 9.0), step(3, 2.2, 9.0)];
    let second = Folder::of(&record(), &slower);
    let found = compare(&first.path(), &second.path()).unwrap();
    assert!(found.same_bits() && found.settings.is_empty() && found.identities.is_empty());
    assert_eq!((found.common_steps, found.common_states), (3, 2));
    assert!(found.surroundings.is_empty(), "{:?}", found.surroundings);
}

#[test]
fn what_differs_is_named_with_the_first_step_and_tensor() {
    let first = Folder::new();
    let mut other = record();
    other.settings[1] = setting("lr", json!(2e-3));
    other.settings.push(setting("rank", json!(8)));
    other.identity.hashes.insert("data".into(), "ab".into());
    other.machine.processor = "another".into();
    other.arithmetic.kernels[0].kernel = "portable packed f32".into();
    let steps = [step(1, 3.0, 0.5), step(2, 2.5000000000000004, 0.5), step(3, 9.0, 0.5)];
    let second = Folder::of(&other, &steps);
    second.lines(
        TENSORS_FILE,
        &[
            json!({"step": 0, "tensors": {"a": "1", "b": "2"}}),
            json!({"step": 2, "tensors": {"a": "3", "b": "5", "c": "6"}}),
        ],
    );
    let found = compare(&first.path(), &second.path()).unwrap();
    let names = |pairs: &[Pair]| pairs.iter().map(|p| p.what.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found.settings), ["lr", "rank"]);
    assert_eq!((&found.settings[0].first, &found.settings[0].second), (&json!(1e-3), &json!(2e-3)));
    assert_eq!(names(&found.identities), ["data"]);
    assert_eq!(names(&found.surroundings), ["kernels", "processor"]);
    let at = found.first_differing_step.as_ref().unwrap();
    assert_eq!((at.step, names(&at.fields)), (2, vec!["loss".to_owned()]));
    assert_eq!(found.first_differing_tensors, Some((2, vec!["b".to_owned(), "c".to_owned()])));
    assert!(!found.same_bits());
}

#[test]
fn bits_are_the_same_where_nothing_that_a_run_computes_differs() {
    let at = || Some(FirstStep { step: 1, fields: vec![] });
    let none = || Difference { common_steps: 1, ..Difference::default() };
    assert!(none().same_bits());
    for found in [
        Difference { first_differing_step: at(), ..none() },
        Difference { first_differing_evaluation: at(), ..none() },
        Difference { first_differing_tensors: Some((1, vec!["a".into()])), ..none() },
        Difference { differing_product_files: vec!["a".into()], ..none() },
    ] {
        assert!(!found.same_bits(), "{found:?}");
    }
}

#[test]
fn evaluations_and_products_are_compared_too() {
    let finished = |loss: f64, seconds: f64, product: &[u8]| {
        let folder = Folder::new();
        let line = |step: usize, loss: f64| json!({"step": step, "loss": loss, "seconds": seconds});
        folder.lines(EVALS_FILE, &[line(2, 2.5), line(4, loss)]);
        fs::write(folder.path().join("adapter/adapter_model.safetensors"), product).unwrap();
        fs::write(folder.path().join("adapter/README.md"), seconds.to_string()).unwrap();
        folder.conclude(None);
        folder
    };
    let compared = |a: &Folder, b: &Folder| compare(&a.path(), &b.path()).unwrap();
    let first = finished(2.25, 1.0, b"product");
    let same = compared(&first, &finished(2.25, 2.0, b"product"));
    assert!(same.same_bits(), "{same:?}");
    assert_eq!((same.common_evaluations, same.product_files), (2, 1));

    let evaluated = compared(&first, &finished(2.5, 1.0, b"product"));
    let at = evaluated.first_differing_evaluation.as_ref().unwrap();
    assert_eq!((at.step, at.fields[0].what.as_str()), (4, "loss"));
    assert!(!evaluated.same_bits());

    let other = compared(&first, &finished(2.25, 1.0, b"another"));
    assert_eq!(other.differing_product_files, ["adapter_model.safetensors"]);
    assert!(!other.same_bits());
    // A run that made no product has none that differs.
    let unfinished = Folder::of(&Record { status: Status::Stopped { step: 4 }, ..record() }, &[]);
    assert_eq!(compared(&first, &unfinished).product_files, 0);
}

#[test]
fn gates_are_noted_once_a_name() {
    let mut record = Record { gates: vec![], ..record() };
    record.note(Gate::ok("loss", "2.0").at(1));
    record.note(Gate::ok("memory", "1"));
    record.note(Gate::failed("loss", "9.0", "look").at(2));
    let gates: Vec<_> =
        record.gates.iter().map(|g| (g.name.as_str(), g.times, g.verdict)).collect();
    assert_eq!(gates, [("loss", 2, Verdict::Failed), ("memory", 1, Verdict::Ok)]);
}

#[test]
fn notes_go_beside_the_record_and_say_what_they_speak_of() {
    let folder = Folder::new();
    let before = fs::read(folder.path().join(RECORD_FILE)).unwrap();
    let empty = annotate(&folder.path(), vec![" ".into()], vec![], String::new());
    assert!(matches!(empty, Err(RecordError::EmptyAnnotation)));
    let first = annotate(&folder.path(), vec!["table 2".into()], vec![], "a cap".into()).unwrap();
    assert_eq!(first.seal, None);
    let root = folder.conclude(None).root;
    let second = annotate(&folder.path(), vec![], vec!["table 1".into()], String::new()).unwrap();
    assert_eq!(second.seal, Some(root));
    assert_eq!(annotations(&folder.path()).unwrap(), [first, second]);
    assert_eq!(fs::read(folder.path().join(RECORD_FILE)).unwrap(), before);
    let nowhere = annotate(folder.root(), vec![], vec![], "x".into());
    assert!(matches!(nowhere, Err(RecordError::NoRun { .. })));
}

fn listed(root: &Path, rebuild: bool) -> Vec<Listed> {
    Index::open(root, rebuild).unwrap().refresh().unwrap()
}

#[test]
fn the_index_follows_the_folders_and_can_be_built_again() {
    let folder = Folder::new();
    let root = folder.root();
    let first = listed(root, false);
    let [run] = &first[..] else { panic!("{first:?}") };
    assert_eq!((run.path.to_str(), run.state.as_str()), (Some("run"), "finished"));
    assert_eq!((run.step, run.steps, run.losses), (4, 4, Some((3.0, 2.1))));
    assert_eq!((run.model.as_str(), run.sealed), ("tiny <model>", false));
    assert!(root.join(INDEX_FILE).exists());
    assert_eq!(listed(root, true), first);

    // A step more, a seal, and another run.
    folder.lines(STEPS_FILE, &[step(1, 3.0, 0.5), step(2, 1.0, 0.5)]);
    folder.conclude(None);
    fs::create_dir_all(root.join("group/second")).unwrap();
    Record { status: Status::Stopped { step: 1 }, ..record() }
        .write(&root.join("group/second"))
        .unwrap();
    let second = listed(root, false);
    assert_eq!(
        second.iter().map(|r| r.path.to_str().unwrap()).collect::<Vec<_>>(),
        ["group/second", "run"]
    );
    assert_eq!((second[1].losses, second[1].sealed, second[1].step), (Some((3.0, 1.0)), true, 2));
    assert_eq!((second[0].state.as_str(), second[0].losses), ("stopped", None));
    assert_eq!(listed(root, true), second);

    fs::remove_dir_all(root.join("group")).unwrap();
    assert_eq!(listed(root, false).len(), 1);
}

#[test]
fn a_look_at_one_run_leaves_its_seal_whole() {
    let folder = Folder::of(&record(), &[]);
    let sealed = folder.conclude(None);
    for rebuild in [false, true] {
        let listed = listed(&folder.path(), rebuild);
        assert_eq!((listed.len(), listed[0].state.as_str()), (1, "finished"));
        assert_eq!(sealed.verify(&folder.path(), None).unwrap(), []);
    }
}

#[test]
fn a_damaged_index_is_built_again_and_a_damaged_record_is_listed_as_such() {
    let folder = Folder::new();
    let good = listed(folder.root(), false);
    let file = folder.root().join(INDEX_FILE);
    for damage in [&b"no database"[..], &[0; 4096]] {
        fs::write(&file, damage).unwrap();
        assert_eq!(listed(folder.root(), false), good);
    }
    // A page of the table is overwritten, and the header is not.
    let mut bytes = fs::read(&file).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xff);
    fs::write(&file, bytes).unwrap();
    assert_eq!(listed(folder.root(), false), good);
    fs::write(folder.path().join(RECORD_FILE), "{").unwrap();
    let [broken] = &listed(folder.root(), false)[..] else { panic!() };
    assert_eq!(broken.state, "unreadable");
    assert!(broken.unreadable.as_ref().is_some_and(|why| why.contains(RECORD_FILE)));
}

#[test]
fn a_report_stands_alone_and_shows_what_ran() {
    let folder = Folder::new();
    folder.lines(EVALS_FILE, &[json!({"step": 2, "loss": 2.6}), json!({"step": 4, "loss": 2.3})]);
    let mut shown = record();
    let kind = |kind: &str, planned_bytes, used_bytes| KindBytes {
        kind: kind.into(),
        planned_bytes,
        used_bytes,
    };
    let phase = |phase: &str, planned_bytes, used_bytes| PhaseBytes {
        rank: 0,
        phase: phase.into(),
        planned_bytes,
        used_bytes,
    };
    shown.memory.phases = vec![phase("sync", 8, 8), phase("rollout", 24, 12)];
    shown.memory.ranks[0].kinds.extend([kind("gradients", 32, 16), kind("workspace", 0, 0)]);
    report::write(&folder.path(), &shown).unwrap();
    let html = fs::read_to_string(folder.path().join(report::REPORT_FILE)).unwrap();
    for part in [
        "Loss",
        "held out",
        "Gradient norm",
        "Learning rate",
        "Rate",
        "tiny &lt;model&gt;",
        "loss within bounds",
        "avx512 packed f32",
        "prefers-color-scheme:dark",
        "finished",
        "64 B",
        "<dt>steps</dt><dd>4 of 4</dd>",
        "<dt>tokens a second</dt><dd>200</dd>",
        "<td>lr</td><td>0.001</td>",
        "<td>code</td>",
        "width:100.0%\"></i><b style=\"width:100.0%",
        "width:50.0%\"></i><b style=\"width:25.0%",
        "n failed\">16 B",
        "<td>sync</td><td class=\"n\">8 B</td><td class=\"n\">8 B</td>",
        "<td>rollout</td><td class=\"n\">24 B</td><td class=\"n failed\">12 B</td>",
        "<dt>supervised of tokens</dt><dd>12 of 30</dd>",
    ] {
        assert!(html.contains(part), "no `{part}`");
    }
    shown.data.supervised = 0;
    report::write(&folder.path(), &shown).unwrap();
    let without = fs::read_to_string(folder.path().join(report::REPORT_FILE)).unwrap();
    assert!(!without.contains("supervised of tokens"));
    assert!(!html.contains("n failed\">64 B") && !html.contains("workspace"), "{html}");
    for outside in ["http:", "https:", "<script", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "`{outside}` needs a network or runs code");
    }
    assert!(!html.contains("Reward"), "a plot of what nobody logged");
    folder.lines(STEPS_FILE, &[step(1, 3.0, 0.0)]);
    let html = report::html(&folder.path(), &shown).unwrap();
    assert!(!html.contains("tokens a second</dt>"), "of no time");
}

#[test]
fn a_long_run_is_drawn_quickly_and_weighs_little() {
    let folder = Folder::new();
    let steps: Vec<_> = (1..=10_000).map(|i| step(i, 3.0 / (i as f64).sqrt(), 0.5)).collect();
    folder.lines(STEPS_FILE, &steps);
    let start = Instant::now();
    let html = report::html(&folder.path(), &record()).unwrap();
    // The time is said and not asserted: a test of a time fails when the machine is busy.
    println!("10,000 steps: {:?}, {} bytes", start.elapsed(), html.len());
    assert!(html.len() < 400_000, "{}", html.len());
}
