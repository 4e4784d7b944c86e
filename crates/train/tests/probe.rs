//! The step before a run finds what is wrong with a rank's arithmetic, whichever rank it is, and nothing else.

mod common;

use arena::{ExecError, Executor, Frame};
use common::{Fixture, Watch, checkpoints, files, surroundings};
use fabric::World;
use oracle::{Oracle, Precision};
use program::{Op, Program};
use record::{Gate, Verdict};
use train::probe;

/// What a rank computes otherwise than the canon says.
#[derive(Clone, Copy, PartialEq)]
enum Defect {
    /// Embeddings depend on whether another sequence is in the micro-batch.
    SeesNeighbours,
    /// What adapters add depends on whether another sequence is in the micro-batch.
    AdaptersSeeNeighbours,
    /// The first token's embedding depends on every token.
    SeesLater,
    /// Embeddings do not depend on tokens.
    Blind,
    /// A program that was planned for fewer tokens gives other embeddings.
    OtherWhenPlannedAnew,
    /// Embeddings differ from the other ranks'.
    Differs,
    /// The gradient of a matrix stays away.
    NoGradient(&'static str),
}

/// The oracle, with a defect.
struct Defective {
    oracle: Oracle,
    defect: Option<Defect>,
    /// Tokens that a rank was planned for.
    tokens: usize,
}

impl Defective {
    fn embeddings(&self, defect: Defect, op: &program::ops::Embed, frame: &Frame<'_>) {
        let mut out = frame.load_f32(op.out);
        let Some(first) = out.first_mut() else { return };
        match defect {
            Defect::SeesNeighbours if frame.live.all_segments > 1 => {
                out.iter_mut().for_each(|x| *x += 0.1);
            }
            Defect::SeesLater => *first += 0.01 * frame.load_u32(op.ids).iter().sum::<u32>() as f32,
            Defect::Blind => out.fill(0.25),
            Defect::OtherWhenPlannedAnew if frame.buffer(op.out).rows < self.tokens => {
                *first += 0.5
            }
            Defect::Differs => out.iter_mut().for_each(|x| *x += 0.1),
            _ => return,
        }
        frame.store_f32(op.out, &out);
    }
}

impl Executor for Defective {
    fn run(&mut self, op: &Op, frame: &Frame<'_>) -> Result<(), ExecError> {
        self.oracle.run(op, frame)?;
        match (self.defect, op) {
            (Some(Defect::NoGradient(of)), _) => {
                for id in op.access().writes {
                    if frame.buffer(id).name.ends_with(&format!("{of}.grad")) {
                        frame.store_f32(id, &vec![0.0; frame.rows(id) * frame.cols(id)]);
                    }
                }
            }
            (Some(Defect::AdaptersSeeNeighbours), _) if frame.live.all_segments > 1 => {
                for id in op.access().writes {
                    if frame.buffer(id).name.ends_with(".lora") {
                        let inner: Vec<f32> = frame.load_f32(id).iter().map(|x| x + 0.5).collect();
                        frame.store_f32(id, &inner);
                    }
                }
            }
            (Some(defect), Op::Embed(op)) => self.embeddings(defect, op, frame),
            _ => (),
        }
        Ok(())
    }

    fn workspace_bytes(&self, op: &Op, program: &Program) -> usize {
        self.oracle.workspace_bytes(op, program)
    }
}

/// What each rank found, with a defect on the last one.
fn probed(fixture: &Fixture, more: &str, defect: Option<Defect>) -> Vec<Vec<Gate>> {
    let resolved = fixture.resolved(&fixture.requested("out", more));
    let world = World::new(&[resolved.topology()]);
    let tokens = resolved.micro_tokens.value / resolved.topology().cp;
    let ranks = world.run(|seat| {
        let defect = defect.filter(|_| seat.index() + 1 == seat.size());
        let executor = Defective { oracle: Oracle::new(Precision::F32), defect, tokens };
        let mut engine = fixture.rank_engine(&resolved, seat.member(0), Box::new(executor));
        probe::probe(&mut engine, &fixture.dataset, &resolved)
    });
    ranks.unwrap_or_else(|error| panic!("{error}"))
}

fn failed(gates: &[Gate]) -> Vec<&str> {
    let failed = gates.iter().filter(|gate| gate.verdict == Verdict::Failed);
    failed.map(|gate| gate.name.as_str()).collect()
}

#[test]
fn every_topology_finds_what_one_rank_finds() {
    for (model, mode) in [("qwen3", "lora"), ("llama_tied", "full")] {
        let fixture = Fixture::new(model);
        let of = |ranks: &str| probed(&fixture, &format!("mode = \"{mode}\"\n{ranks}"), None);
        let [one] = &of("")[..] else { panic!() };
        let verdicts: Vec<_> = one.iter().map(|gate| (gate.name.as_str(), gate.verdict)).collect();
        let names = [
            "loss within bounds",
            "trained tensors receive gradient",
            "packed = alone",
            "no token sees a later one",
            "recomputed = kept",
        ];
        assert_eq!(verdicts, names.map(|name| (name, Verdict::Ok)), "{model}");
        for ranks in ["tp = 2\n", "cp = 2\n", "dp = 2\n", "tp = 2\ncp = 2\ndp = 2\n"] {
            for gates in of(ranks) {
                let (agree, rest) = gates.split_last().unwrap();
                assert_eq!(rest, one, "{model} {ranks}");
                assert_eq!((agree.name.as_str(), agree.verdict), ("ranks agree", Verdict::Ok));
            }
        }
    }
}

#[test]
fn what_any_rank_computes_otherwise_fails_its_check_on_every_rank() {
    let fixture = Fixture::new("llama");
    let (packed, causal, agree) = ("packed = alone", "no token sees a later one", "ranks agree");
    for (defect, checks) in [
        (Defect::SeesNeighbours, &[packed][..]),
        // Seen, although every B is zero when a run begins.
        (Defect::AdaptersSeeNeighbours, &[packed]),
        // Who sees every token of the micro-batch sees neighbours too.
        (Defect::SeesLater, &[packed, causal, agree]),
        (Defect::Blind, &[causal, agree]),
        (Defect::OtherWhenPlannedAnew, &["recomputed = kept"]),
        (Defect::Differs, &[agree]),
    ] {
        for gates in probed(&fixture, "dp = 2\n", Some(defect)) {
            assert_eq!(failed(&gates), checks, "{gates:#?}");
        }
        // One rank alone finds the same, but for ranks that differ.
        let alone: Vec<_> = checks.iter().filter(|check| **check != agree).copied().collect();
        assert_eq!(failed(&probed(&fixture, "", Some(defect))[0]), alone);
    }
    for gates in probed(&fixture, "dp = 2\n", Some(Defect::Differs)) {
        assert_eq!(failed(&gates), ["ranks agree"]);
        let figure = &gates.last().unwrap().figure;
        assert_eq!(figure, "other log-probs than rank 0's on ranks 1");
    }
}

fn line(prompt: &str, completion: &str) -> String {
    serde_json::json!({"prompt": prompt, "completion": completion}).to_string()
}

fn gate<'a>(gates: &'a [Gate], name: &str) -> &'a Gate {
    gates.iter().find(|gate| gate.name == name).unwrap()
}

/// Samples of 4, 10 and 20 tokens in micro-batches of 24: the one nearest to half of that, behind the shortest other.
#[test]
fn the_sample_of_middling_length_is_probed() {
    let lines = [2, 8, 18].map(|letters| line("a", &"b".repeat(letters)));
    let fixture = Fixture::with_lines("llama", &lines);
    let [gates] = &probed(&fixture, "", None)[..] else { panic!() };
    assert_eq!(
        gate(gates, "packed = alone").figure,
        "0 of 10 log-probs differ behind 4 other tokens"
    );
    let figure = &gate(gates, "loss within bounds").figure;
    let loss: f64 = figure.split([' ', ',']).find_map(|word| word.parse().ok()).unwrap();
    let even = (fixture.checkpoint.config().vocab_size as f64).ln();
    assert!((loss - even).abs() < 1.0, "{figure}: an untrained model gives about {even}");

    let resolved = fixture.resolved(&fixture.requested("out", "eval_fraction = 0.5\n"));
    let mut engine = fixture.engine(&resolved);
    let held_out = fixture.dataset.subset(&[0, 1]);
    let longest = probe::longest(&mut engine, &fixture.dataset, Some(&held_out)).unwrap();
    assert_eq!(longest, probe::Longest { trained: 20, held_out: Some(10) });
}

/// A token is changed that is the first of the vocabulary, the second, or another.
#[test]
fn a_sample_too_short_to_change_a_token_is_not_judged() {
    for (prompt, completion, verdict) in [
        ("a", "b", Verdict::Skipped),
        ("a", "bc", Verdict::Ok),
        ("ba", "ab", Verdict::Ok),
        ("ab</s>", "c", Verdict::Ok),
    ] {
        let fixture = Fixture::with_lines("llama", &[line(prompt, completion)]);
        let [gates] = &probed(&fixture, "", None)[..] else { panic!() };
        let causal = gate(gates, "no token sees a later one");
        assert_eq!(causal.verdict, verdict, "{prompt} {completion}: {causal:?}");
        // The only sample stands before itself.
        assert_eq!(gate(gates, "packed = alone").verdict, Verdict::Ok);
    }
}

#[test]
fn a_matrix_without_gradient_is_named() {
    let fixture = Fixture::new("llama");
    // Of tensor ranks each holds some columns of this B, and the last one's stay away: the rest is seen on all.
    let name = "model.layers.1.self_attn.o_proj.lora_B.weight";
    for (more, dead) in [("", true), ("tp = 2\n", true), ("cp = 2\n", false)] {
        for gates in probed(&fixture, more, Some(Defect::NoGradient(name))) {
            assert_eq!(
                failed(&gates).contains(&"trained tensors receive gradient"),
                dead,
                "{gates:#?}"
            );
        }
    }
}

#[test]
fn a_loss_out_of_bounds_is_found_before_the_run() {
    let fixture = Fixture::new("llama");
    for gates in probed(&fixture, "loss_limit = 0.001\ndp = 2\n", None) {
        assert_eq!(failed(&gates), ["loss within bounds"]);
    }
}

#[test]
fn a_run_after_a_probe_has_the_bits_of_one_without() {
    for (model, mode) in [("qwen3", "lora"), ("llama_tied", "full")] {
        let fixture = Fixture::new(model);
        for ranks in ["", "tp = 2\ndp = 2\n"] {
            let more = format!("mode = \"{mode}\"\n{ranks}");
            let resolved = fixture.resolved(&fixture.requested("out", &more));
            let probed = |engine: &mut engine::Engine<'_>| {
                probe::probe(engine, &fixture.dataset, &resolved).unwrap();
                probe::longest(engine, &fixture.dataset, None).unwrap();
            };
            let run = |out: &str, before: &(dyn Fn(&mut engine::Engine<'_>) + Sync)| {
                let mut watch = Watch::default();
                let around = surroundings();
                fixture.run_in(&around, out, &more, false, before, &mut watch).unwrap();
                let kept = ["adapter", "model"].map(|part| fixture.out(out).join(part));
                let kept = kept.iter().filter(|folder| folder.exists()).map(|folder| files(folder));
                (fixture.steps(out), kept.collect::<Vec<_>>(), checkpoints(&fixture.out(out)))
            };
            let (with, without) =
                (format!("with{}", ranks.len()), format!("without{}", ranks.len()));
            assert!(run(&with, &probed) == run(&without, &|_| ()), "{model} {ranks}");
        }
    }
}
