//! Guards of a run: each fires on a fault that is put in, and none without one.

use std::path::{Path, PathBuf};

use engine::{Blueprint, Engine, GenerateShape, Job, Phase, Phases};
use fabric::{Cause, Seat, World};
use formats::Checkpoint;
use program::keep::{Keep, Level};
use program::{Graph, Op, Program, Rank, Topology};
use record::{Record, Status, Verdict};
use rl::{
    Data, Engines, Flow, Observer, Outcome, Prompt, Resolved, RlError, RlEvent, RlSettings, Run,
};
use rollout::{Moved, ShardPlan};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use text::Tokenizer;
use train::{Facts, Requested, Surroundings};

/// Tokens of the longest sequence.
const LONGEST: usize = 12;

struct Rig {
    folder: TempDir,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    prompts: Vec<Prompt>,
    requested: Requested<RlSettings>,
    resolved: Resolved,
}

struct Watch;

impl Observer for Watch {
    fn step(&mut self, _: &RlEvent) -> Flow {
        Flow::Continue
    }
}

/// Every word is a character.
fn tokenizer(folder: &Path, words: usize) -> Tokenizer {
    let letters = ('a'..='z').chain('\u{4e00}'..).map(String::from);
    let vocabulary: Map<String, Value> =
        letters.take(words).enumerate().map(|(i, letter)| (letter, json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    Tokenizer::from_tokenizer_json(&path).unwrap()
}

impl Rig {
    fn new() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../families/tests/golden/qwen3");
        let checkpoint = Checkpoint::open(&golden).unwrap();
        let toml = format!(
            "model = \"golden\"\ndata = [\"prompts.jsonl\"]\nout = {:?}\nreward = \"regex\"\n\
             reward_pattern = \"[a-p]\"\nprompts = 2\ngroup = 4\nmax_tokens = 6\nmax_steps = 3\n\
             micro_tokens = 64\nmax_length = 24\nrank = 4\nlr = 1e-2\nweights = \"f32\"\n",
            folder.path().join("run")
        );
        let path = PathBuf::from("rl.toml");
        let file: RlSettings = train::settings_from_toml(&toml, &path).unwrap();
        let requested = Requested::new(Some((path, file)), RlSettings::default()).unwrap();
        let resolved = Resolved::new(&requested, &Facts::of(&checkpoint)).unwrap();
        let prompt = |ids: &[u32]| Prompt {
            origin: format!("prompts.jsonl, line {}", ids.len()),
            text: String::new(),
            ids: ids.to_vec(),
            answer: None,
            fields: Map::new(),
        };
        let prompts = vec![prompt(&[3]), prompt(&[5, 4]), prompt(&[1, 9, 2])];
        let tokenizer = tokenizer(folder.path(), checkpoint.config().vocab_size);
        Rig { folder, checkpoint, tokenizer, prompts, requested, resolved }
    }

    fn graph(&self) -> Graph {
        let options = self.resolved.train.build_options();
        families::build(self.checkpoint.config(), &options).unwrap().graph
    }

    /// A run on a trainer and a rollout engine of one rank, with weights that `spoil` changes.
    fn run(
        &self,
        spoil: impl Fn(&mut Engine<'_>, &mut Engine<'_>) + Sync,
    ) -> Result<Outcome, RlError> {
        let one = Topology::single();
        let ended = World::new(&[one, one]).run(|seat| self.rank(seat, &spoil));
        match ended.map_err(|error| error.cause) {
            Ok(mut outcomes) => Ok(outcomes.swap_remove(0)),
            Err(Cause::Error(error)) => Err(error),
            Err(cause) => panic!("{cause}"),
        }
    }

    fn rank(
        &self,
        seat: &mut Seat<'_>,
        spoil: &(impl Fn(&mut Engine<'_>, &mut Engine<'_>) + Sync),
    ) -> Result<Outcome, RlError> {
        let (graph, one) = (self.graph(), Topology::single());
        let settings = cpu::Settings { threads: 1, precision: cpu::Precision::F32, isa: None };
        let executor = || Box::new(cpu::Cpu::new(settings).unwrap());
        let sized = executor();
        let blueprint = |job| {
            let workspace =
                |op: &Op, program: &Program| arena::Executor::workspace_bytes(&*sized, op, program);
            Blueprint::new(&graph, one, Rank::FIRST, job, &workspace)
        };
        let trainer = blueprint(self.resolved.training_job(LONGEST, Keep::uniform(Level::All)));
        let generate = Some(GenerateShape::full(8, LONGEST, 64));
        let roller = blueprint(Job { generate, head: self.resolved.head(), ..Job::default() });
        let phases = Phases::new(&trainer.ledger, &roller.ledger, true);
        let account = phases.account();
        let engine = |blueprint| {
            let engine = Engine::within(graph.clone(), blueprint, executor(), &account);
            let mut engine = engine.unwrap();
            engine.load(&self.checkpoint, &mut |_| ()).unwrap();
            engine
        };
        let mut trainer = engine(trainer);
        phases.enter(Phase::Rollout, Some(&mut trainer), None).unwrap();
        let mut roller = engine(roller);
        spoil(&mut trainer, &mut roller);
        let plan = ShardPlan::new(&graph, Moved::Trained, &one, &one);
        let mut engines = Engines::two(Some(trainer), Some(roller), plan, phases, seat.again());
        let data = Data {
            prompts: &self.prompts,
            eval: &[],
            pairs: &[],
            tokenizer: &self.tokenizer,
            ends: &[],
        };
        let surroundings =
            Surroundings { git: record::Git::NoRepository, ..Surroundings::current().unwrap() };
        let mut run = Run {
            engines: &mut engines,
            checkpoint: &self.checkpoint,
            data,
            requested: &self.requested,
            resolved: &self.resolved,
            surroundings: &surroundings,
            extra_files: &[],
        };
        run.start(&mut Watch)
    }

    fn record(&self) -> Record {
        Record::read(&self.folder.path().join("run")).unwrap()
    }

    fn verdict(&self, name: &str) -> Verdict {
        let record = self.record();
        let gate = record.gates.iter().find(|gate| gate.name.contains(name));
        gate.unwrap_or_else(|| panic!("no gate {name}: {:?}", record.gates)).verdict
    }
}

/// Changes the first number of a frozen weight.
fn change(engine: &mut Engine<'_>, to: f32) {
    let id = engine
        .graph
        .param_ids()
        .find(|&id| engine.graph.param_info(id).name.contains("layers.0.mlp.down_proj.weight"));
    let id = id.unwrap();
    let mut values = engine.read_param(id);
    values[0] = to;
    engine.write_param(id, &values);
}

#[test]
fn a_sound_run_passes_every_gate_in_the_memory_that_was_planned() {
    let rig = Rig::new();
    let outcome = rig.run(|_, _| ()).unwrap();
    assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
    let record = rig.record();
    assert!(record.gates.iter().all(|gate| gate.verdict == Verdict::Ok), "{:?}", record.gates);
    for name in
        ["repeats log-probs", "ratio is 1", "rewards teach", "weights arrive", "phases hold"]
    {
        assert_eq!(rig.verdict(name), Verdict::Ok);
    }
    assert_eq!(record.memory.phases.len(), Phase::ALL.len());
    for phase in &record.memory.phases {
        assert_eq!(phase.planned_bytes, phase.used_bytes, "{phase:?}");
    }
    assert!(
        ["train", "optimizer", "generate", "score"]
            .iter()
            .all(|p| record.programs.contains_key(*p))
    );
    assert_eq!(record.setting("reward_pattern").unwrap().resolved, "[a-p]");
}

#[test]
fn a_rollout_engine_with_another_frozen_weight_is_found_before_an_update() {
    let rig = Rig::new();
    let error = rig.run(|_, roller| change(roller, 3.0)).unwrap_err();
    assert!(matches!(error, RlError::Differs { step: 1, bytes: 1.., .. }), "{error}");
    assert_eq!(rig.verdict("repeats log-probs"), Verdict::Failed);
    let record = rig.record();
    assert!(matches!(record.status, Status::Failed { step: Some(1), .. }), "{:?}", record.status);
    assert_eq!(record.tensors.len(), 1, "nothing was trained");
    assert!(!rig.folder.path().join("run/adapter").exists());
}

#[test]
fn a_log_prob_that_is_no_number_names_its_prompt() {
    let rig = Rig::new();
    let error = rig.run(|trainer, _| change(trainer, f32::NAN)).unwrap_err();
    assert!(
        matches!(&error, RlError::NonFinite { sample, .. } if sample.contains("line")),
        "{error}"
    );
    let Status::Failed { samples, .. } = rig.record().status else { panic!("it failed") };
    assert_eq!(samples.len(), 1);
}
