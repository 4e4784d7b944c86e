//! An engine for inference: weights loaded, an adapter attached if there is one.

use crate::commands::shared::{self, Memory};
use crate::device::{self, Device};
use crate::model::Model;
use crate::progress;
use anyhow::{Result, bail};
use engine::{Blueprint, Engine, Job};
use families::{BuildOptions, LoraSpec, Train};
use formats::merged::Weights;
use formats::peft::Adapter;
use program::{Lease, Rank, Topology};
use train::Facts;

/// What to run a model with.
pub(crate) struct Setup<'a> {
    pub(crate) adapter: Option<&'a Adapter>,
    pub(crate) memory: &'a Memory,
    pub(crate) quiet: bool,
}

/// Plans, checks the lease, allocates, loads.
pub(crate) fn engine(
    model: &Model,
    device: &Device,
    job: Job,
    setup: &Setup<'_>,
) -> Result<Engine<'static>> {
    // Said before anything is planned: the engine would name the first module only.
    Weights::new(&model.checkpoint, setup.adapter)?;
    let train = setup.adapter.map_or(Ok(Train::Nothing), adapted)?;
    let config = model.checkpoint.config();
    let stored_as_bf16 = Facts::of(&model.checkpoint).stored_as_bf16;
    let options = BuildOptions {
        weights: shared::weights(setup.memory.weights, stored_as_bf16, &train),
        train,
        ..BuildOptions::default()
    };
    let graph = families::build(config, &options)?.graph;
    let workspace = device.workspace();
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    if let Some(size) = setup.memory.memory {
        Lease { bytes: size.0 }.check(&blueprint.ledger)?;
    }
    device::check_available(&blueprint.ledger)?;
    let mut engine = Engine::new(graph, blueprint, device.executor()?)?;
    load(&mut engine, model, setup.quiet)?;
    if let Some(adapter) = setup.adapter {
        engine.load_adapter(adapter)?;
    }
    Ok(engine)
}

/// Loads weights under a progress bar.
pub(crate) fn load(engine: &mut Engine<'_>, model: &Model, quiet: bool) -> Result<()> {
    let total = engine.ledger().bytes(program::Kind::Weight) as u64;
    let bar = progress::bytes("loading weights", total, quiet);
    engine.load(&model.checkpoint, &mut |done| bar.set_position(done))?;
    bar.finish_and_clear();
    Ok(())
}

/// The LoRA shape of an adapter: one rank and one scale for all its modules.
pub(crate) fn adapted(adapter: &Adapter) -> Result<Train> {
    let config = adapter.config();
    let scale = config.lora_alpha
        / if config.use_rslora { (config.r as f64).sqrt() } else { config.r as f64 };
    for module in adapter.modules() {
        if module.rank != config.r || module.scale != scale {
            bail!(
                "the adapter gives `{}` rank {} and scale {}, others rank {} and scale {scale}: \
                 one rank and one scale for all modules is what samebit takes",
                module.name,
                module.rank,
                module.scale,
                config.r
            );
        }
    }
    Ok(Train::Adapted(LoraSpec {
        r: config.r,
        alpha: config.lora_alpha,
        rslora: config.use_rslora,
        targets: adapter.modules().iter().map(|m| m.name.clone()).collect(),
    }))
}
