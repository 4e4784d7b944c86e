//! Identities: of weights and of programs.

use engine::Engine;
use program::listing::identity;
use program::lower::{Mode, Options, lower};
use std::convert::Infallible;

/// The identity of an engine's base weights, in hexadecimal: BLAKE3 over every parameter that is not an adapter's, in the
/// graph's order: name, rows, columns, values as f32. Weights stored as bf16 have another identity than the same
/// as f32 only where bf16 rounded them.
pub(crate) fn weights(engine: &Engine<'_>) -> String {
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
        let hashed: Result<(), Infallible> = engine.visit_param(id, |values| {
            hasher.update(bytemuck::cast_slice(values));
            Ok(())
        });
        let Ok(()) = hashed;
    }
    hasher.finalize().to_hex().to_string()
}

/// The identity of the training step and the update, in hexadecimal: BLAKE3 over every field of every operation. It changes with the
/// model's shape and constants and with the micro-batch's shape, not with what is kept or recomputed.
pub(crate) fn programs(engine: &Engine<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    let blueprint = &engine.blueprint;
    if let Some(shape) = blueprint.job.train {
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
        let program = lower(&engine.graph, &blueprint.store, &options);
        hasher.update(identity(&program).as_bytes());
    }
    if let Some(compiled) = &blueprint.optimizer {
        hasher.update(identity(&compiled.program).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
