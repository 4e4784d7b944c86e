//! `samebit generate`: continue a prompt.

use crate::commands::shared::Running;
use crate::completion::{Completion, Decoding, complete};
use crate::device::Device;
use crate::infer::{self, Setup};
use crate::model;
use crate::output;
use anyhow::{Result, bail};
use engine::{GenerateShape, Job};
use serde::Serialize;
use serde_json::{Map, json};
use std::path::PathBuf;

/// Arguments of `samebit generate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference
    model: String,
    /// The prompt
    prompt: String,
    /// Give the prompt as it is, not as a user's turn in the model's chat template
    #[arg(long)]
    raw: bool,
    /// System message
    #[arg(long, conflicts_with = "raw")]
    system: Option<String>,
    /// PEFT adapter folder to generate with
    #[arg(long)]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    decoding: Decoding,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    running: Running,
}

/// The report.
#[derive(Serialize)]
struct Generated {
    model: String,
    device: String,
    prompt_ids: Vec<u32>,
    #[serde(flatten)]
    completion: Completion,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
}

/// Tokens of a prefill chunk.
pub(crate) const PREFILL: usize = 512;

pub(crate) fn run(args: Args) -> Result<()> {
    let model = model::open(&args.model, &args.running.source, args.json)?;
    let device = Device::new(&args.running.compute)?;
    let tokenizer = model.tokenizer()?;
    let prompt = if args.raw {
        tokenizer.encode(&args.prompt, true)?
    } else {
        let mut messages = Vec::new();
        if let Some(system) = &args.system {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": args.prompt}));
        let text = model.template()?.render(&messages, None, true, &Map::new())?;
        tokenizer.encode(&text, false)?
    };
    if prompt.is_empty() {
        bail!("the prompt has no tokens");
    }
    let context = model.checkpoint.config().max_position_embeddings;
    if prompt.len() >= context {
        bail!(
            "the prompt has {} tokens and the model's context is {context}: shorten it",
            prompt.len()
        );
    }
    let length = prompt.len().saturating_add(args.decoding.max_tokens).min(context);
    args.decoding.check()?;
    let shape = GenerateShape { sequences: 1, length, prefill: PREFILL.min(prompt.len()) };
    let setup =
        Setup { adapter: args.adapter.as_deref(), memory: &args.running.memory, quiet: args.json };
    let mut engine =
        infer::engine(&model, &device, Job { generate: Some(shape), ..Job::default() }, &setup)?;
    let ends = model.stops(&tokenizer);
    let quiet = args.json;
    let mut emit = |piece: &str| {
        if quiet { Ok(()) } else { output::print(piece) }
    };
    let completion =
        complete(&mut engine, &tokenizer, &prompt, 0, &ends, &args.decoding, &mut emit)?;
    if !args.json {
        return output::print("\n");
    }
    let decoded = completion.ids.len().saturating_sub(1) as f64;
    let report = Generated {
        model: model.identity.clone(),
        device: device.describe(),
        prefill_tokens_per_s: prompt.len() as f64 / completion.prefill_s,
        decode_tokens_per_s: decoded / completion.decode_s,
        prompt_ids: prompt,
        completion,
    };
    output::report(true, &report, |_| String::new())
}
