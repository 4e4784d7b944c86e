//! Tiny runs on the golden models, with the slow executor: what every executor must repeat.

#![allow(dead_code)] // not every test file needs all of it

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use arena::Executor;
use data::{Corpus, Dataset, Encoder, Source, TooLong};
use engine::{Blueprint, Engine, Job};
use fabric::{Cause, Member, World};
use formats::Checkpoint;
use oracle::{Oracle, Precision};
use program::Rank;
use program::keep::{Keep, Level};
use serde_json::json;
use tempfile::TempDir;
use text::Tokenizer;
use train::{
    EvalEvent, Facts, Flow, Observer, Outcome, Requested, Resolved, Run, Settings, StepEvent,
    Surroundings, TrainError,
};

/// The longest text that the made-up tokenizer is asked for, characters.
const WORDS: usize = 60;

pub(crate) fn model_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../families/tests/golden").join(name)
}

/// A model, its data and its settings in a temporary folder.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) dataset: Dataset,
    pub(crate) evaluation: Option<Dataset>,
    /// What ranks beside the first read, where it is something else.
    pub(crate) elsewhere: Option<Dataset>,
}

/// What the tests run in.
pub(crate) fn surroundings() -> Surroundings {
    Surroundings { git: record::Git::NoRepository, ..Surroundings::current().unwrap() }
}

impl Fixture {
    pub(crate) fn new(model: &str) -> Fixture {
        let lines: Vec<String> = (0..10)
            .map(|i| {
                json!({"prompt": "ab".repeat(1 + i % 3), "completion": "cde".repeat(1 + i % 4)})
                    .to_string()
            })
            .collect();
        Self::with_lines(model, &lines)
    }

    pub(crate) fn with_lines(model: &str, lines: &[String]) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&model_folder(model)).unwrap();
        let dataset = encode(folder.path(), lines, checkpoint.config().vocab_size);
        Fixture { folder, checkpoint, dataset, evaluation: None, elsewhere: None }
    }

    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Settings of a run into `out`: 8 steps of up to 3 micro-batches, with `more` TOML.
    pub(crate) fn requested(&self, out: &str, more: &str) -> Requested {
        // TOML takes a key once.
        let defaults = ["lr = 1e-2\n", "micro_sequences = 3\n", "max_steps = 8\n"];
        let key = |line: &str| line[..line.find('=').unwrap()].to_owned();
        let defaults: String =
            defaults.into_iter().filter(|line| !more.contains(&key(line))).collect();
        let toml = format!(
            "model = \"golden\"\ndata = [\"data.jsonl\"]\nout = {:?}\nmicro_tokens = 24\n\
             accumulation = 3\nsave_every = 3\nseed = 7\n{defaults}{more}",
            self.out(out)
        );
        let path = Path::new("run.toml");
        let file = Settings::from_toml(&toml, path).unwrap();
        Requested::new(Some((path.into(), file)), Settings::default()).unwrap()
    }

    pub(crate) fn resolved(&self, requested: &Requested) -> Resolved {
        requested.resolve(&Facts::of(&self.checkpoint)).unwrap()
    }

    pub(crate) fn engine(&self, resolved: &Resolved) -> Engine<'static> {
        self.rank_engine(resolved, None, Box::new(Oracle::new(Precision::F32)))
    }

    /// The engine of a rank of the settings' topology.
    pub(crate) fn rank_engine<'r>(
        &self,
        resolved: &Resolved,
        member: Option<Member<'r>>,
        executor: Box<dyn Executor + 'r>,
    ) -> Engine<'r> {
        let train = Some(resolved.train_shape(Keep::uniform(Level::All)));
        let job = Job { train, score: resolved.score_shape(), ..Job::default() };
        self.job_engine(resolved, job, member, executor)
    }

    /// The same, planned for a job of one's own.
    pub(crate) fn job_engine<'r>(
        &self,
        resolved: &Resolved,
        job: Job,
        member: Option<Member<'r>>,
        executor: Box<dyn Executor + 'r>,
    ) -> Engine<'r> {
        let rank = member.as_ref().map_or(Rank::FIRST, Member::rank);
        let graph =
            families::build(self.checkpoint.config(), &resolved.build_options()).unwrap().graph;
        let blueprint = Blueprint::new(&graph, resolved.topology(), rank, job, &|_, _| 0);
        let mut engine = Engine::new(graph, blueprint, executor).unwrap();
        if let Some(member) = member {
            engine = engine.with_exchange(Box::new(member));
        }
        engine.load(&self.checkpoint, &mut |_| ()).unwrap();
        engine
    }

    /// Starts, or resumes, a run with a fresh engine.
    pub(crate) fn run(
        &self,
        out: &str,
        more: &str,
        resume: bool,
        observer: &mut (dyn Observer + Send),
    ) -> Result<Outcome, TrainError> {
        self.run_in(&surroundings(), out, more, resume, |_| (), observer)
    }

    /// The error of a run on weights that `spoil` changes, and the steps that it told of.
    pub(crate) fn failed(
        &self,
        out: &str,
        more: &str,
        spoil: impl Fn(&mut Engine<'_>) + Sync,
    ) -> (TrainError, usize) {
        let mut watch = Watch::default();
        let ended = self.run_in(&surroundings(), out, more, false, spoil, &mut watch);
        (ended.unwrap_err(), watch.events.len())
    }

    /// [`Fixture::run`] in other surroundings, on weights that `spoil` changes.
    pub(crate) fn run_in(
        &self,
        surroundings: &Surroundings,
        out: &str,
        more: &str,
        resume: bool,
        spoil: impl Fn(&mut Engine<'_>) + Sync,
        observer: &mut (dyn Observer + Send),
    ) -> Result<Outcome, TrainError> {
        let requested = self.requested(out, more);
        let resolved = self.resolved(&requested);
        let observer = Mutex::new(Some(observer));
        let ranks = World::new(&[resolved.topology()]).run(|seat| {
            let observer = observer.lock().unwrap().take_if(|_| seat.index() == 0);
            let executor = Box::new(Oracle::new(Precision::F32));
            let mut engine = self.rank_engine(&resolved, seat.member(0), executor);
            spoil(&mut engine);
            let mut run = Run {
                engine: &mut engine,
                checkpoint: &self.checkpoint,
                dataset: self
                    .elsewhere
                    .as_ref()
                    .filter(|_| seat.index() > 0)
                    .unwrap_or(&self.dataset),
                evaluation: self.evaluation.as_ref(),
                requested: &requested,
                resolved: &resolved,
                surroundings,
                extra_files: &[("note.txt", b"kept")],
            };
            let Some(observer) = observer else { return run.follow().map(|()| None) };
            if resume { run.resume(observer).map(Some) } else { run.start(observer).map(Some) }
        });
        match ranks.map_err(|error| error.cause) {
            Ok(mut outcomes) => Ok(outcomes.swap_remove(0).unwrap()),
            Err(Cause::Error(error)) => Err(error),
            Err(cause) => panic!("{cause}"),
        }
    }

    /// The lines of a run's log, without times.
    pub(crate) fn steps(&self, out: &str) -> Vec<StepEvent> {
        let text = std::fs::read_to_string(self.out(out).join(record::STEPS_FILE)).unwrap();
        text.lines()
            .map(|line| StepEvent { seconds: 0.0, ..serde_json::from_str(line).unwrap() })
            .collect()
    }
}

/// Encodes lines with one token a character of `a ..= h`, and an end of text.
fn encode(folder: &Path, lines: &[String], vocab: usize) -> Dataset {
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        std::iter::once(("</s>".to_owned(), json!(0)))
            .chain(('a'..='h').enumerate().map(|(i, c)| (c.to_string(), json!(i + 1))))
            .collect();
    let end = json!({"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                     "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": "</s>"}"#).unwrap();
    let data = folder.join("data.jsonl");
    std::fs::write(&data, lines.join("\n")).unwrap();
    let encoder = Encoder {
        tokenizer: &Tokenizer::from_tokenizer_json(&path).unwrap(),
        template: None,
        vocab,
        max_length: WORDS,
        too_long: TooLong::Refuse,
        threads: 1,
    };
    encoder.encode(&Corpus::open(&[Source::new(data)]).unwrap(), &mut |_, _| ()).unwrap()
}

/// Keeps what it is told, and stops after a step where asked to.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) stop_after: Option<usize>,
    pub(crate) began: Option<(usize, usize)>,
    pub(crate) events: Vec<StepEvent>,
    pub(crate) micro_batches: usize,
    pub(crate) saved: Vec<PathBuf>,
    pub(crate) evaluated: Vec<EvalEvent>,
}

impl Watch {
    pub(crate) fn stopping_after(step: usize) -> Watch {
        Watch { stop_after: Some(step), ..Watch::default() }
    }
}

impl Observer for Watch {
    fn start(&mut self, step: usize, steps: usize) {
        self.began = Some((step, steps));
    }

    fn micro_batch(&mut self, _done: usize, _total: usize) {
        self.micro_batches += 1;
    }

    fn step(&mut self, event: &StepEvent) -> Flow {
        self.events.push(event.clone());
        if self.stop_after == Some(event.step) { Flow::Stop } else { Flow::Continue }
    }

    fn evaluated(&mut self, event: &EvalEvent) {
        self.evaluated.push(EvalEvent { seconds: 0.0, ..event.clone() });
    }

    fn saved(&mut self, checkpoint: &Path) {
        self.saved.push(checkpoint.to_owned());
    }
}

/// Makes of a run that ended what a kill leaves of it: a record that says that it runs, and no seal.
pub(crate) fn as_killed(folder: &Path) {
    let mut record = record::Record::read(folder).unwrap();
    record.status = record::Status::Running;
    record.write(folder).unwrap();
    record::unseal(folder).unwrap();
}

/// Checkpoints of a run: every file and its bytes. Their `state.json` without the hashes of the run's logs, whose lines have
/// times.
pub(crate) fn checkpoints(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = files(&run.join("checkpoints"));
    for (name, bytes) in &mut found {
        if name.ends_with("state.json") {
            let mut state: serde_json::Value = serde_json::from_slice(bytes).unwrap();
            state.as_object_mut().unwrap().remove("logs").unwrap();
            *bytes = state.to_string().into_bytes();
        }
    }
    found
}

/// Every file under a folder with its bytes, by path from it.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(place) = waiting.pop() {
        for entry in std::fs::read_dir(&place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
