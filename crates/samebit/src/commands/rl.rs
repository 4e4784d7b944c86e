//! `samebit rl`: reinforcement learning.

use crate::interrupt;
use crate::learning::Learning;
use crate::model::{self, Source};
use crate::output::{self, Table, duration};
use crate::progress;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use rl::{Flow, Observer, Outcome, RlEvent, RlSettings};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use train::Requested;

/// Arguments of `samebit rl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Settings file (TOML) with the same keys as the flags below; flags outrank it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: RlSettings,
    /// Go on from the newest checkpoint of the run in --out
    #[arg(long)]
    resume: bool,
    /// Print the JSON schema of the settings file and stop
    #[arg(long)]
    schema: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

/// The report.
#[derive(Serialize)]
struct Learned {
    out: PathBuf,
    /// Adapter or model folder; null when the run was stopped.
    product: Option<PathBuf>,
    /// Held-out reward before the first step; null where it was not measured, or by a resumed run.
    eval_before: Option<f64>,
    planned_bytes: usize,
    steps: Vec<RlEvent>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.schema {
        return output::report(true, &schemars::schema_for!(RlSettings), |_| String::new());
    }
    let requested = Requested::read(args.config.as_deref(), args.settings)?;
    let reference = requested.settings.train.model.clone();
    let reference = reference.context("no model: give --model, or `model` in the settings file")?;
    let model = model::open(&reference, &args.source, args.json)?;
    let learning = Learning::new(requested, model)?;
    if !args.json {
        eprint!("{}", learning.summary());
    }
    let mut bar = Bar::new(args.json)?;
    let outcome = learning.run(&mut bar, args.resume, args.json)?;
    let out = learning.resolved.train.out.value.clone();
    let report = Learned {
        product: match &outcome {
            Outcome::Finished { product } => Some(product.clone()),
            Outcome::Stopped { .. } => None,
        },
        eval_before: bar.before,
        planned_bytes: learning.ledger().total(),
        steps: bar.steps,
        out,
    };
    output::report(args.json, &report, text)?;
    if let Outcome::Stopped { step } = outcome {
        bail!("stopped after step {step}; go on with --resume");
    }
    Ok(())
}

fn text(report: &Learned) -> String {
    let (Some(first), Some(last)) = (report.steps.first(), report.steps.last()) else {
        return "no step was left to run\n".into();
    };
    let seconds: f64 = report.steps.iter().map(|s| s.seconds.total).sum();
    let compared: usize = report.steps.iter().map(|s| s.compared).sum();
    let differing: usize = report.steps.iter().map(|s| s.differing_bytes).sum();
    let mut table = Table::new(&["", "first", "last"]);
    let mut row = |name: &str, of: &dyn Fn(&RlEvent) -> f64| {
        table.row([name.to_string(), format!("{:.4}", of(first)), format!("{:.4}", of(last))]);
    };
    row("loss", &|s| s.loss);
    if first.pairs.is_some() {
        row("accuracy", &|s| s.pairs.map_or(0.0, |p| p.accuracy));
        row("margin", &|s| s.pairs.map_or(0.0, |p| p.margin));
    } else {
        row("reward", &|s| s.reward);
        row("length", &|s| s.length);
    }
    let held_out = report.steps.iter().rev().find_map(|s| s.eval_reward);
    let held_out = match (report.eval_before, held_out) {
        (Some(before), Some(after)) => format!("held-out reward {before:.4} → {after:.4}\n"),
        (None, Some(after)) => format!("held-out reward {after:.4}\n"),
        _ => String::new(),
    };
    let end = match &report.product {
        Some(product) => format!("finished: {}", product.display()),
        None => "stopped".to_string(),
    };
    format!(
        "{} steps in {}: {differing} differing bytes in {compared} log-probs\n{}{held_out}{end}\n",
        report.steps.len(),
        duration(seconds),
        table.text()
    )
}

/// Draws the loop's progress (a line a step where there is no terminal) and stops it on Ctrl-C or SIGTERM.
struct Bar {
    bar: Option<ProgressBar>,
    quiet: bool,
    stop: Arc<AtomicBool>,
    before: Option<f64>,
    steps: Vec<RlEvent>,
}

impl Bar {
    fn new(quiet: bool) -> Result<Bar> {
        let stop = interrupt::stop_flag()?;
        Ok(Bar { bar: None, quiet, stop, before: None, steps: Vec::new() })
    }

    fn line(&self, text: &str) {
        if !self.quiet && !std::io::stderr().is_terminal() {
            eprintln!("{text}");
        }
    }
}

impl Observer for Bar {
    fn start(&mut self, step: usize, steps: usize) {
        let bar = progress::steps(steps as u64, self.quiet);
        bar.set_position(step as u64);
        self.bar = Some(bar);
    }

    fn before(&mut self, eval_reward: f64) {
        self.before = Some(eval_reward);
        self.line(&format!("before the first step: held-out reward {eval_reward:.4}"));
    }

    fn rollout(&mut self, done: usize, total: usize) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("generating {done} of {total}"));
        }
    }

    fn asked_to_stop(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn step(&mut self, event: &RlEvent) -> Flow {
        let mut text = format!("loss {:.4}", event.loss);
        match &event.pairs {
            Some(pairs) => text += &format!("  accuracy {:.3}", pairs.accuracy),
            None => {
                text += &format!("  reward {:.3}  uniform {}", event.reward, event.uniform);
                text += &format!("/{}  length {:.1}", event.groups, event.length);
            }
        }
        if let Some(reward) = event.eval_reward {
            text += &format!("  held-out {reward:.3}");
        }
        text += &format!("  {:.1} s", event.seconds.total);
        if let Some(bar) = &self.bar {
            bar.set_position(event.step as u64);
            bar.set_message(text.clone());
            if event.step == event.steps {
                bar.finish_and_clear();
            }
        }
        self.line(&format!("step {} of {}: {text}", event.step, event.steps));
        self.steps.push(event.clone());
        if self.asked_to_stop() { Flow::Stop } else { Flow::Continue }
    }
}
