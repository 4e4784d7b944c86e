//! `samebit plan`: what a run will cost, from a configuration alone.

use crate::commands::shared::{self, Adapt, Memory};
use crate::device::{Compute, Device};
use crate::model::{self, Source};
use crate::output;
use crate::plan::{Request, plan, render};
use anyhow::{Result, bail};
use program::Topology;

/// Arguments of `samebit plan`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference, or a config.json
    model: String,
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
    let (config, stored_as_bf16, identity) = model::config(&args.model, &args.source, args.json)?;
    let topology = Topology { tp: args.tp, cp: args.cp, dp: args.dp, width: args.width };
    topology.check()?;
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
    let device = Device::new(&args.compute)?;
    if let Some(gflops) = args.gflops {
        device.set_gflops(gflops)?;
    }
    let train = args.adapt.train()?;
    let request = Request {
        train: train.clone(),
        weights: shared::weights(args.memory.weights, stored_as_bf16, &train),
        topology,
        micro_batch: args.micro_batch,
        sequence: args.sequence,
        accumulation: args.accumulation,
        lease: args.memory.memory.map(|size| size.0),
        tokens: args.tokens,
        table: !args.no_table,
    };
    let (report, program) = plan(&config, &identity, &request, &device)?;
    if args.ops {
        return output::print(&program::listing::listing(&program));
    }
    output::report(args.json, &report, render)
}
