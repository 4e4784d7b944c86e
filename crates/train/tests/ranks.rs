//! A run over ranks is the run of one rank: the same steps, the same product, the same checkpoints, on any topology.

mod common;

use common::{Fixture, Watch, checkpoints, files};
use record::Record;
use std::path::{Path, PathBuf};
use train::{Outcome, TrainError};

fn product(outcome: Outcome) -> PathBuf {
    match outcome {
        Outcome::Finished { product } => product,
        stopped => panic!("{stopped:?}"),
    }
}

/// Every rank is in one row of the record, and used what was planned for it.
fn check_memory(record: &Record, ranks: usize) {
    let rows = &record.memory.ranks;
    let numbers = |text: &str| -> Vec<usize> {
        let parts = text.split(',').flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse::<usize>().unwrap()..=last.parse().unwrap()
        });
        parts.collect()
    };
    let mut all: Vec<usize> = rows.iter().flat_map(|of| numbers(&of.ranks)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..ranks).collect::<Vec<_>>(), "{rows:?}");
    for kind in rows.iter().flat_map(|of| &of.kinds) {
        assert_eq!(kind.planned_bytes, kind.used_bytes, "{}", kind.kind);
    }
}

#[test]
fn every_topology_leaves_the_bytes_of_one_rank() {
    for (model, mode) in [("qwen3", "lora"), ("llama_tied", "full")] {
        let fixture = Fixture::new(model);
        let more = |ranks: &str| format!("mode = \"{mode}\"\n{ranks}");
        let whole = product(fixture.run("one", &more(""), false, &mut Watch::default()).unwrap());
        for (name, ranks) in [
            ("tp", "tp = 2\n"),
            ("cp", "cp = 2\n"),
            ("dp", "dp = 2\n"),
            ("all", "tp = 2\ncp = 2\ndp = 2\n"),
        ] {
            let mut watch = Watch::default();
            let theirs = product(fixture.run(name, &more(ranks), false, &mut watch).unwrap());
            assert_eq!(fixture.steps(name), fixture.steps("one"), "{model} {name}");
            assert!(files(&theirs) == files(&whole), "{model} {name}: the product");
            let (ours, theirs) = (fixture.out("one"), fixture.out(name));
            assert!(checkpoints(&ours) == checkpoints(&theirs), "{model} {name}: checkpoints");
            let states = |run: &Path| std::fs::read(run.join(record::TENSORS_FILE)).unwrap();
            assert!(states(&ours) == states(&theirs), "{model} {name}: hashes of every tensor");
            check_memory(&Record::read(&theirs).unwrap(), if name == "all" { 8 } else { 2 });
            assert_eq!(watch.saved.len(), 2, "the first rank is told");
        }
    }
}

#[test]
fn a_run_goes_on_at_another_topology() {
    let fixture = Fixture::new("llama");
    let whole = product(fixture.run("whole", "", false, &mut Watch::default()).unwrap());
    let topologies = ["tp = 2\ndp = 2\n", "cp = 3\n", "", "dp = 3\n"];
    for (index, stop) in [2, 4, 5].into_iter().enumerate() {
        let mut watch = Watch::stopping_after(stop);
        let stopped = fixture.run("moved", topologies[index], index > 0, &mut watch).unwrap();
        assert!(matches!(stopped, Outcome::Stopped { step, .. } if step == stop), "{stopped:?}");
    }
    let end = fixture.run("moved", topologies[3], true, &mut Watch::default()).unwrap();
    assert_eq!(fixture.steps("moved"), fixture.steps("whole"));
    assert!(files(&product(end)) == files(&whole));
}

#[test]
fn a_step_that_fails_on_some_rank_fails_the_run_by_its_name() {
    let fixture = Fixture::new("llama");
    // The first update throws every weight far away.
    let more = "mode = \"full\"\nlr = 1e30\nwarmup_ratio = 0.0\ncp = 2\ndp = 2\n";
    let error = fixture.run("out", more, false, &mut Watch::default()).unwrap_err();
    assert!(
        matches!(
            error,
            TrainError::NonFiniteLoss { step: 2, .. }
                | TrainError::NonFiniteGradient { step: 2, .. }
        ),
        "{error}"
    );
    assert_eq!(fixture.steps("out").len(), 1, "the step before it is logged");
}

#[test]
fn degrees_that_no_topology_has_are_refused() {
    let fixture = Fixture::new("llama");
    let requested = fixture.requested("out", "tp = 3\n");
    let error = requested.resolve(&train::Facts::of(&fixture.checkpoint)).unwrap_err();
    assert!(error.to_string().contains("tp = 3: must be a power of two"), "{error}");
}

/// On many hosts every process reads its own copy of the files.
#[test]
fn a_rank_with_other_data_ends_the_run() {
    let mut fixture = Fixture::new("llama");
    fixture.elsewhere = Some(fixture.dataset.subset(&[0, 2, 1]));
    let error = fixture.run("out", "dp = 2\n", false, &mut Watch::default()).unwrap_err();
    assert!(matches!(error, TrainError::OtherRun), "{error}");
    fixture.elsewhere = Some(fixture.dataset.clone());
    fixture.run("alike", "dp = 2\n", false, &mut Watch::default()).unwrap();
}
