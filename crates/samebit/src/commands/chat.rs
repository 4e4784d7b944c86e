//! `samebit chat`: talk to a model in the terminal.

use crate::base::WithAdapter;
use crate::commands::generate::PASS_TOKENS;
use crate::commands::shared::Running;
use crate::completion::{Decoding, complete};
use crate::device::Device;
use crate::infer::{self, Setup};
use crate::model;
use crate::output;
use anyhow::{Context, Result, bail};
use engine::{GenerateShape, Job};
use rollout::Scheduler;
use serde_json::{Map, Value, json};
use std::io::{BufRead, IsTerminal};

/// Arguments of `samebit chat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference
    model: String,
    /// System message
    #[arg(long)]
    system: Option<String>,
    #[command(flatten)]
    adapter: WithAdapter,
    /// Tokens of the whole conversation
    #[arg(long, default_value_t = 2048)]
    context: usize,
    #[command(flatten)]
    decoding: Decoding,
    #[command(flatten)]
    running: Running,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let model = model::open(&args.model, &args.running.source, false)?;
    let device = Device::new(&args.running.compute)?;
    let tokenizer = model.tokenizer()?;
    let template = model.template()?;
    args.decoding.check()?;
    if args.context == 0 {
        bail!("--context 0: a conversation has tokens");
    }
    let longest = model.checkpoint.config().max_position_embeddings;
    let context = args.context.min(longest);
    let shape = GenerateShape::full(1, context, PASS_TOKENS.min(context));
    let adapter = args.adapter.open(&model, false)?;
    let setup = Setup {
        adapter: adapter.as_ref().map(|(adapter, _)| adapter),
        memory: &args.running.memory,
        quiet: false,
    };
    let mut engine =
        infer::engine(&model, &device, Job { generate: Some(shape), ..Job::default() }, &setup)?;
    let ends = model.stops(&tokenizer);
    let mut messages: Vec<Value> =
        args.system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    // Its pages stay known from turn to turn: what a turn has in common with the last one does not run again.
    let mut scheduler = Scheduler::new(&engine, Some(&tokenizer))?;
    let prompting = std::io::stdin().is_terminal();
    if prompting {
        tell!("{} · Ctrl-D ends the talk", model.identity);
    }
    for line in prompt_lines(prompting) {
        let line = line.context("standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(json!({"role": "user", "content": line}));
        let text = template.render(&messages, None, true, &Map::new())?;
        let ids = tokenizer.encode(&text, false)?;
        if ids.is_empty() || ids.len() >= context {
            // The talk goes on without this message: a shorter one may fit.
            messages.pop();
            tell!(
                "that message makes {} tokens and the conversation has room for {context}: shorten it, or start again \
                 with a larger --context (the model's is {longest})",
                ids.len()
            );
            continue;
        }
        let request = args.decoding.request(0, ids, &ends);
        let said = complete(&mut engine, &mut scheduler, request, output::print)?;
        output::print("\n")?;
        messages.push(json!({"role": "assistant", "content": said.completion.text}));
    }
    Ok(())
}

/// Lines of standard input, each after a prompt when someone types them.
fn prompt_lines(prompting: bool) -> impl Iterator<Item = std::io::Result<String>> {
    let mut lines = std::io::stdin().lock().lines();
    std::iter::from_fn(move || {
        if prompting {
            eprint!("> ");
        }
        lines.next()
    })
}
