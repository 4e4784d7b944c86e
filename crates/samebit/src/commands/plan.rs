//! `samebit plan`: what a run will cost, from a configuration alone.

use crate::commands::shared::{self, Adapt, Memory};
use crate::device::{Compute, Device};
use crate::model::{self, Source};
use crate::output;
use crate::plan::{Request, plan, render};
use crate::serving::Server;
use crate::tuning;
use anyhow::{Context, Result, bail};
use formats::ModelConfig;
use program::Topology;
use program::keep::{Keep, Level};
use std::path::{Path, PathBuf};
use train::{Facts, Requested, Settings};

/// Arguments of `samebit plan`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference, or a config.json
    #[arg(required_unless_present = "config")]
    model: Option<String>,
    /// Plan the run of this settings file (TOML), as `train` would run it
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "model", "full", "rank", "alpha", "targets", "rslora", "micro_batch", "sequence", "accumulation", "weights",
        "memory", "threads", "profile", "tp", "cp", "dp", "width",
    ])]
    config: Option<PathBuf>,
    #[command(flatten)]
    adapt: Adapt,
    /// Sequences in a logical micro-batch
    #[arg(long, default_value_t = 4)]
    micro_batch: usize,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 512)]
    sequence: usize,
    /// Logical micro-batches in an optimizer step
    #[arg(long, default_value_t = 1)]
    accumulation: usize,
    /// Tensor-parallel degree
    #[arg(long, default_value_t = 1)]
    tp: usize,
    /// Context-parallel degree
    #[arg(long, default_value_t = 1)]
    cp: usize,
    /// Data-parallel degree: ranks share the micro-batches of a step
    #[arg(long, default_value_t = 1)]
    dp: usize,
    /// Width V of the canon
    #[arg(long, default_value_t = Topology::WIDTH)]
    width: usize,
    #[command(flatten)]
    memory: Memory,
    /// Tokens to train on, over all epochs
    #[arg(long)]
    tokens: Option<u64>,
    /// Rate of matrix products to reckon with instead of this machine's
    #[arg(long)]
    gflops: Option<f64>,
    /// Say whether a server takes the adapter as it is or merged weights, and why
    #[arg(long, value_enum)]
    serve_with: Option<Server>,
    /// Print the program of the training step, one line an operation
    #[arg(long, conflicts_with = "json")]
    ops: bool,
    /// Without the table over micro-batches and sequence lengths
    #[arg(long)]
    no_table: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    source: Source,
}

/// Most sequences, tokens of one, and micro-batches of a step that a plan takes.
const MOST: usize = 1 << 20;

pub(crate) fn run(args: Args) -> Result<()> {
    let (model, planned) = match (&args.config, &args.model) {
        (Some(file), _) => settings_of(file, &args)?,
        (None, Some(model)) => flags_of(model, &args)?,
        (None, None) => bail!("nothing to plan: give a model, or --config"),
    };
    let device = Device::new(&planned.compute)?;
    if let Some(gflops) = args.gflops {
        device.set_gflops(gflops)?;
    }
    let (report, program) = plan(&model.config, &model.identity, &planned.request, &device)?;
    if args.ops {
        return output::print(&program::listing::listing(&program));
    }
    output::report(args.json, &report, render)
}

/// What is known of the model.
struct Known {
    config: ModelConfig,
    identity: String,
}

/// What to plan, and what computes.
struct Planned {
    request: Request,
    compute: Compute,
}

/// The run that flags describe.
fn flags_of(model: &str, args: &Args) -> Result<(Known, Planned)> {
    let topology = Topology { tp: args.tp, cp: args.cp, dp: args.dp, width: args.width };
    topology.check()?;
    let (config, stored_as_bf16, identity) = model::config(model, &args.source, args.json)?;
    let counts = [
        ("--micro-batch", args.micro_batch),
        ("--sequence", args.sequence),
        ("--accumulation", args.accumulation),
    ];
    for (name, count) in counts {
        if count == 0 || count > MOST {
            bail!("{name} {count}: must be between 1 and {MOST}");
        }
    }
    if args.sequence > config.max_position_embeddings {
        bail!(
            "--sequence {} is longer than the model's context, {} tokens (max_position_embeddings)",
            args.sequence,
            config.max_position_embeddings
        );
    }
    let train = args.adapt.train()?;
    let request = Request {
        train: train.clone(),
        weights: shared::weights(args.memory.weights, stored_as_bf16, &train),
        topology,
        score: None,
        micro_batch: args.micro_batch,
        sequence: args.sequence,
        exact: None,
        accumulation: args.accumulation,
        lease: args.memory.memory.map(|size| size.0),
        tokens: args.tokens,
        table: !args.no_table,
        server: args.serve_with,
    };
    Ok((Known { config, identity }, Planned { request, compute: args.compute.clone() }))
}

/// The run that a settings file describes, resolved as `train` resolves it. Neither data nor a folder is needed.
fn settings_of(file: &Path, args: &Args) -> Result<(Known, Planned)> {
    let mut requested = Requested::read(Some(file), Settings::default())?;
    requested.settings.data.get_or_insert_default();
    requested.settings.out.get_or_insert_default();
    let model = requested.settings.model.clone().with_context(|| {
        format!("{}: no model: give `model`, as `train` needs it", file.display())
    })?;
    let (config, stored_as_bf16, identity) = model::config(&model, &args.source, args.json)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let max_positions = config.max_position_embeddings;
    let resolved = requested.resolve(&Facts {
        max_positions,
        stored_as_bf16,
        threads,
        // No template is read here, and a day changes no byte of memory.
        template_date: requested.settings.template_date,
    })?;
    let options = resolved.build_options();
    let shape = resolved.train_shape(Keep::uniform(Level::All)).step();
    let sequence = resolved.max_length.value;
    let request = Request {
        train: options.train,
        weights: options.weights,
        topology: resolved.topology(),
        score: resolved.score_shape(),
        micro_batch: (shape.tokens / sequence).max(1),
        sequence,
        exact: Some(shape),
        accumulation: resolved.accumulation.value,
        lease: resolved.memory.as_ref().map(|size| size.value.0),
        tokens: args.tokens,
        table: !args.no_table,
        server: args.serve_with,
    };
    let threads = tuning::threads_of_a_rank(&resolved);
    let compute = Compute { threads: Some(threads), profile: resolved.profile.value };
    Ok((Known { config, identity }, Planned { request, compute }))
}
