//! `samebit rl`: reinforcement learning.

use crate::interrupt;
use crate::learning::{Learning, Plan};
use crate::model::{self, Source};
use crate::output::{self, Table, duration};
use crate::progress;
use crate::resumed;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use rl::{Flow, Observer, Outcome, RlEval, RlEvent, RlSettings};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arguments of `samebit rl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Settings file (TOML) with the same keys as the flags below; flags outrank it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: RlSettings,
    /// Go on from the newest checkpoint of a run: RUN alone is enough, its record has the settings; without RUN, the one in
    /// --out
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,
    /// Resume although these changed: settings, or what the refusal names (data, template, grader, binary, …)
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',', requires = "resume")]
    allow_changed: Vec<String>,
    /// Run with uncommitted changes in the working directory; the record keeps the patch
    #[arg(long)]
    allow_dirty: bool,
    /// Sign the finished run with the key in a file of 64 hexadecimal digits [default: $SAMEBIT_SIGN_KEY]
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Print what every rank holds in each phase, and stop
    #[arg(long)]
    plan: bool,
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
    /// The most that every rank together was planned to hold.
    planned_bytes: usize,
    steps: Vec<RlEvent>,
    evaluations: Vec<RlEval>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.schema {
        return output::report(true, &schemars::schema_for!(RlSettings), |_| String::new());
    }
    // A resumed run goes to where it was begun; what this command names is where it is given.
    let signing_key = resumed::signing_key(args.sign_key.as_deref())?;
    let source = resumed::source(&args.source)?;
    let resume = args.resume.as_ref().map(Option::as_deref);
    let requested = resumed::requested(resume, args.config.as_deref(), &args.settings)?;
    let reference = requested.settings.train.model.clone();
    let reference = reference.context("no model: give --model, or `model` in the settings file")?;
    let model = model::open(&reference, &source, args.json)?;
    let learning = Learning::new(requested, model)?;
    if args.plan {
        return output::report(args.json, &learning.plan, Plan::text);
    }
    let mut surroundings = learning.surroundings(args.allow_dirty)?;
    surroundings.allow_changed = args.allow_changed;
    surroundings.signing_key = signing_key;
    if !args.json {
        tell!("{}", learning.summary().trim_end());
    }
    let mut bar = Bar::new(args.json, args.resume.is_some())?;
    let outcome = learning.run(&mut bar, &surroundings, args.resume.is_some(), args.json)?;
    let out = learning.resolved.train.out.value.clone();
    let report = Learned {
        product: match &outcome {
            Outcome::Finished { product } => Some(product.clone()),
            Outcome::Stopped { .. } => None,
        },
        planned_bytes: learning.plan.peak_bytes,
        steps: bar.steps,
        evaluations: bar.evaluations,
        out,
    };
    output::report(args.json, &report, text)?;
    if let Outcome::Stopped { step } = outcome {
        bail!("stopped after step {step}; go on with --resume {}", report.out.display());
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
    let held_out = match &report.evaluations[..] {
        [] => String::new(),
        [one] => format!("held-out reward {:.4}\n", one.reward),
        [before, .., after] => {
            format!("held-out reward {:.4} → {:.4}\n", before.reward, after.reward)
        }
    };
    // Pairs have no rollouts to compare with.
    let compared = match first.pairs {
        Some(_) => String::new(),
        None => format!(": {differing} differing bytes in {compared} log-probs"),
    };
    let end = match &report.product {
        Some(product) => format!("finished: {}", product.display()),
        None => "stopped".to_string(),
    };
    format!(
        "{} steps in {}{compared}\n{}{held_out}{end}\n",
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
    resumed: bool,
    steps: Vec<RlEvent>,
    evaluations: Vec<RlEval>,
}

impl Bar {
    fn new(quiet: bool, resumed: bool) -> Result<Bar> {
        let stop = interrupt::stop_flag()?;
        let (steps, evaluations) = (Vec::new(), Vec::new());
        Ok(Bar { bar: None, quiet, stop, resumed, steps, evaluations })
    }

    fn line(&self, text: &str) {
        if !self.quiet && !std::io::stderr().is_terminal() {
            tell!("{text}");
        }
    }
}

impl Observer for Bar {
    fn start(&mut self, step: usize, steps: usize) {
        if self.resumed && step == 0 && !self.quiet {
            tell!("the run has made no checkpoint: it goes on from its first step");
        }
        let bar = progress::steps(steps as u64, self.quiet);
        bar.set_position(step as u64);
        self.bar = Some(bar);
    }

    fn evaluated(&mut self, event: &RlEval) {
        self.line(&format!("after step {}: held-out reward {:.4}", event.step, event.reward));
        self.evaluations.push(*event);
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
