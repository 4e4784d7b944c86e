//! Identities: of weights and of programs.

use engine::{Engine, EngineError, Part};
use program::listing::identity;
use program::lower::{self, Mode, Options};
use program::store::StoreOptions;
use program::{Rank, Store, Topology};

/// The identity of an engine's base weights, in hexadecimal: BLAKE3 over every parameter that is not an adapter's, in the
/// graph's order: name, rows, columns, values as f32. Weights stored as bf16 have another identity than the same
/// as f32 only where bf16 rounded them. On the first rank, while the others follow.
pub(crate) fn weights(engine: &Engine<'_>) -> Result<String, EngineError> {
    let mut hasher = blake3::Hasher::new();
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        if param.adapter {
            continue;
        }
        hasher.update(&(param.name.len() as u64).to_le_bytes());
        hasher.update(param.name.as_bytes());
        hasher.update(&(param.rows as u64).to_le_bytes());
        hasher.update(&(param.cols as u64).to_le_bytes());
        engine.visit_served(id, Part::Value, |values| {
            hasher.update(bytemuck::cast_slice(values));
            Ok::<(), EngineError>(())
        })?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The identity of the training step and the update, in hexadecimal: BLAKE3 over every field of every operation. It changes with the
/// model's shape and constants and with the micro-batch's shape, not with what is kept or recomputed, nor with the number
/// of ranks: it is that of one rank's programs.
pub(crate) fn programs(engine: &Engine<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    let blueprint = &engine.blueprint;
    let one = Topology { tp: 1, cp: 1, dp: 1, ..blueprint.store.topology };
    if let Some(shape) = blueprint.job.train {
        let options = StoreOptions { accumulation: shape.accumulation, ..StoreOptions::default() };
        let store = Store::new(&engine.graph, one, Rank::FIRST, options);
        // What is kept changes no bit, and may differ with threads or the lease: the program that keeps everything stands
        // for all.
        let options = Options {
            mode: Mode::Train { coef_known: shape.coef_known },
            tokens: shape.tokens,
            segments: shape.segments,
            chunk: engine::head_chunk(engine.graph.vocab),
            head: blueprint.job.head,
            adapters: true,
            keep: Vec::new(),
        };
        for program in
            [lower::lower(&engine.graph, &store, &options), lower::optimizer(&engine.graph, &store)]
        {
            hasher.update(identity(&program).as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}
