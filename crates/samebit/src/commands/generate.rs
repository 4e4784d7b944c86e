//! `samebit generate`: continue one prompt, or many at once.

use crate::base::WithAdapter;
use crate::commands::shared::Running;
use crate::completion::{Decoding, Timed, complete};
use crate::device::Device;
use crate::infer::{self, Setup};
use crate::model::{self, Model};
use crate::prompts::Prompts;
use crate::{output, progress};
use anyhow::{Result, bail};
use engine::{Engine, GenerateShape, Job};
use program::ops::PAGE;
use rollout::{Completion, Event, Scheduler};
use serde::Serialize;
use text::Tokenizer;

/// Arguments of `samebit generate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference
    model: String,
    #[command(flatten)]
    prompts: Prompts,
    /// Completions of each prompt
    #[arg(long, default_value_t = 1)]
    samples: usize,
    /// Sequences that run at once
    #[arg(long, default_value_t = 16)]
    sequences: usize,
    /// Tokens that the key/value cache holds, in pages of 64; sequences give way to each other and run again where it
    /// is short [default: room for all that run at once]
    #[arg(long)]
    cache_tokens: Option<usize>,
    #[command(flatten)]
    adapter: WithAdapter,
    #[command(flatten)]
    decoding: Decoding,
    /// Machine-readable report; JSON Lines, one a completion as it ends, with --prompts or --samples
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    running: Running,
}

/// The report on one completion.
#[derive(Serialize)]
struct Generated {
    model: String,
    device: String,
    prompt_ids: Vec<u32>,
    #[serde(flatten)]
    completion: Completion,
    prefill_s: f64,
    decode_s: f64,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
}

/// A line of many completions.
#[derive(Serialize)]
struct Line<'a> {
    /// Number of the prompt in its file, from 0.
    prompt: usize,
    #[serde(flatten)]
    completion: &'a Completion,
}

/// Tokens of a forward pass.
pub(crate) const PASS_TOKENS: usize = 512;

/// Most completions of one call, and most sequences at once.
const MOST: usize = 1 << 20;

pub(crate) fn run(args: Args) -> Result<()> {
    for (name, count) in [("--samples", args.samples), ("--sequences", args.sequences)] {
        if count == 0 || count > MOST {
            bail!("{name} {count}: must be between 1 and {MOST}");
        }
    }
    if args.samples > 1 && args.decoding.is_greedy() {
        bail!("--samples {} of greedy decoding are all the same: give --temperature", args.samples);
    }
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let device = Device::new(&args.running.compute)?;
    let tokenizer = model.tokenizer()?;
    let prompts = args.prompts.read(&model, &tokenizer)?;
    args.decoding.check()?;
    let shape = shape(&args, &model, &prompts)?;
    let adapter = args.adapter.open(&model, args.json)?;
    let setup = Setup {
        adapter: adapter.as_ref().map(|(adapter, _)| adapter),
        memory: &args.running.memory,
        quiet: args.json,
    };
    let job = Job { generate: Some(shape), ..Job::default() };
    let mut engine = infer::engine(&model, &device, job, &setup)?;
    let ends = model.stops(&tokenizer);
    if args.prompts.are_many() || args.samples > 1 {
        return many(&args, &mut engine, &tokenizer, prompts, &ends);
    }
    let Some(prompt) = prompts.into_iter().next() else { unreachable!("one prompt was read") };
    one(&args, (&model, &device), &mut engine, &tokenizer, prompt, &ends)
}

/// Room for the longest prompt with its completion, for as many sequences as run at once.
fn shape(args: &Args, model: &Model, prompts: &[Vec<u32>]) -> Result<GenerateShape> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let context = model.checkpoint.config().max_position_embeddings;
    let length = longest.saturating_add(args.decoding.max_tokens).min(context);
    let Some(total) = prompts.len().checked_mul(args.samples).filter(|&total| total <= MOST) else {
        bail!("{} prompts × {} samples: the most is {MOST}", prompts.len(), args.samples);
    };
    let sequences = args.sequences.min(total);
    let tokens: usize = prompts.iter().map(Vec::len).sum::<usize>().saturating_mul(args.samples);
    let mut shape = GenerateShape::full(sequences, length, PASS_TOKENS.min(tokens));
    if let Some(tokens) = args.cache_tokens {
        if tokens < PAGE {
            bail!("--cache-tokens {tokens}: a page has {PAGE} tokens, and at least one is needed");
        }
        shape.pages = shape.pages.min(tokens / PAGE);
    }
    Ok(shape)
}

fn one(
    args: &Args,
    (model, device): (&Model, &Device),
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    prompt: Vec<u32>,
    ends: &[u32],
) -> Result<()> {
    let mut scheduler = Scheduler::new(engine, Some(tokenizer))?;
    let request = args.decoding.request(0, prompt.clone(), ends);
    let emit = |text: &str| if args.json { Ok(()) } else { output::print(text) };
    let Timed { completion, prefill_s, decode_s } =
        complete(engine, &mut scheduler, request, emit)?;
    if !args.json {
        return output::print("\n");
    }
    let decoded = completion.ids.len().saturating_sub(1) as f64;
    let report = Generated {
        model: model.identity.clone(),
        device: device.describe(),
        prefill_tokens_per_s: prompt.len() as f64 / prefill_s,
        decode_tokens_per_s: decoded / decode_s,
        prompt_ids: prompt,
        completion,
        prefill_s,
        decode_s,
    };
    output::report(true, &report, |_| String::new())
}

/// Samples of prompt p are numbered p·samples + s, so that a sample's draws do not depend on how many run beside it.
fn many(
    args: &Args,
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    prompts: Vec<Vec<u32>>,
    ends: &[u32],
) -> Result<()> {
    let mut scheduler = Scheduler::new(engine, Some(tokenizer))?;
    let total = prompts.len() * args.samples;
    for (index, prompt) in prompts.into_iter().enumerate() {
        for sample in 0..args.samples {
            let sample = (index * args.samples + sample) as u64;
            scheduler.submit(args.decoding.request(sample, prompt.clone(), ends))?;
        }
    }
    let bar = progress::count("generating", total as u64, args.json);
    scheduler.run(engine, |event| -> Result<()> {
        let Event::End { completion, .. } = event else { return Ok(()) };
        bar.inc(1);
        let prompt = completion.sample as usize / args.samples;
        bar.suspend(|| {
            if args.json {
                output::line(&Line { prompt, completion })
            } else {
                let sample = completion.sample as usize % args.samples;
                output::print(&format!("[{prompt}.{sample}] {}\n", completion.text))
            }
        })
    })?;
    bar.finish_and_clear();
    Ok(())
}
