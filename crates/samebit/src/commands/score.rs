//! `samebit score`: token log-probs and perplexity.

use crate::base::{Base, WithAdapter};
use crate::commands::shared::Running;
use crate::device::Device;
use crate::infer::{self, Setup};
use crate::model;
use crate::output::{self, Table};
use anyhow::{Context, Result, bail};
use data::Content;
use engine::{Job, MicroBatch, Sequence};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use text::Tokenizer;

/// Arguments of `samebit score`.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Model reference
    model: String,
    #[command(flatten)]
    adapter: WithAdapter,
    #[command(flatten)]
    input: Input,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    running: Running,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// A text file, `-` for standard input: every token but the first is scored
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A chat sample, JSON with `messages`: what the assistant says is scored
    #[arg(long, value_name = "FILE")]
    chat: Option<PathBuf>,
    /// Token ids, separated by commas: every one but the first is scored
    #[arg(long, value_delimiter = ',')]
    ids: Option<Vec<u32>>,
}

/// The report.
#[derive(Serialize)]
struct Score {
    model: String,
    device: String,
    /// With an adapter: what it was trained on, and whether this is it.
    base: Option<Base>,
    tokens: usize,
    scored: usize,
    /// exp(−mean log-prob).
    perplexity: f64,
    mean_logprob: f64,
    ids: Vec<u32>,
    /// Log-prob of each id given those before it; null where it is not scored.
    logprobs: Vec<Option<f32>>,
    #[serde(skip)]
    pieces: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let device = Device::new(&args.running.compute)?;
    let (ids, scored, tokenizer) = input(&model, &args.input)?;
    if ids.len() < 2 || !scored.iter().any(|&s| s) {
        bail!("nothing to score: {} tokens, none after a first one", ids.len());
    }
    let context = model.checkpoint.config().max_position_embeddings;
    if ids.len() > context {
        bail!(
            "{} tokens to score and the model's context is {context}: score it in pieces",
            ids.len()
        );
    }
    let job = Job { score: Some((ids.len(), 1)), ..Job::default() };
    let adapter = args.adapter.open(&model, args.json)?;
    let setup = Setup {
        adapter: adapter.as_ref().map(|(adapter, _)| adapter),
        memory: &args.running.memory,
        quiet: args.json,
    };
    let mut engine = infer::engine(&model, &device, job, &setup)?;
    let batch = MicroBatch { sequences: vec![Sequence::next_tokens(&ids, &scored)] };
    let logp = engine.score(&batch)?;
    let of = |i: usize| (i > 0 && scored[i]).then(|| logp[i - 1]);
    let logprobs: Vec<Option<f32>> = (0..ids.len()).map(of).collect();
    let count = logprobs.iter().flatten().count();
    let sum: f64 = logprobs.iter().flatten().map(|&l| f64::from(l)).sum();
    let pieces = match &tokenizer {
        Some(t) => ids.iter().map(|&id| t.decode(&[id], false)).collect::<Result<_, _>>()?,
        None => ids.iter().map(u32::to_string).collect(),
    };
    let report = Score {
        model: model.identity.clone(),
        device: device.describe(),
        base: adapter.map(|(_, base)| base),
        tokens: ids.len(),
        scored: count,
        perplexity: (-sum / count as f64).exp(),
        mean_logprob: sum / count as f64,
        ids,
        logprobs,
        pieces,
    };
    output::report(args.json, &report, text)
}

/// Ids, whether each is scored, and the tokenizer if one was needed.
fn input(model: &model::Model, input: &Input) -> Result<(Vec<u32>, Vec<bool>, Option<Tokenizer>)> {
    if let Some(ids) = &input.ids {
        let vocab = model.checkpoint.config().vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
            bail!(
                "--ids: {id} is outside the vocabulary of {vocab} words; give ids from 0 to {}",
                vocab - 1
            );
        }
        return Ok((ids.clone(), vec![true; ids.len()], None));
    }
    let tokenizer = model.tokenizer()?;
    if let Some(file) = &input.text {
        let ids = tokenizer.encode(&read(file)?, true)?;
        let scored = vec![true; ids.len()];
        return Ok((ids, scored, Some(tokenizer)));
    }
    let file = input.chat.as_deref().context("no input")?;
    let content = Content::from_json(&read(file)?).with_context(|| file.display().to_string())?;
    let Content::Messages { messages, tools } = content else {
        bail!("{}: no `messages`; for other text there is --text", file.display());
    };
    let encoded = model
        .template()?
        .encode_with_mask(&tokenizer, &messages, tools.as_ref(), &serde_json::Map::new())
        .with_context(|| file.display().to_string())?;
    Ok((encoded.ids, encoded.supervised, Some(tokenizer)))
}

fn read(file: &Path) -> Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

fn text(score: &Score) -> String {
    let mut table = Table::new(&["token", "id", "log-prob"]);
    for ((piece, id), logprob) in score.pieces.iter().zip(&score.ids).zip(&score.logprobs) {
        let logprob = logprob.map_or("-".into(), |l| format!("{l:.4}"));
        table.row([format!("{piece:?}"), id.to_string(), logprob]);
    }
    format!(
        "{}\n{} of {} tokens scored · mean log-prob {:.5} · perplexity {:.4} · {}\n",
        table.text(),
        score.scored,
        score.tokens,
        score.mean_logprob,
        score.perplexity,
        score.device
    )
}
