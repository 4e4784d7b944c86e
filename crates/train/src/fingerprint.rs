//! Identities: of weights and of programs.

use engine::Engine;
use program::listing::listing;

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
        hasher.update(bytemuck::cast_slice(&engine.read_param(id)));
    }
    hasher.finalize().to_hex().to_string()
}

/// The identity of the training step and the update, in hexadecimal: BLAKE3 over their listings. It changes with the
/// model's shape, the micro-batch's shape, what is kept and what is recomputed.
pub(crate) fn programs(engine: &Engine<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    let blueprint = &engine.blueprint;
    for compiled in [&blueprint.train, &blueprint.optimizer].into_iter().flatten() {
        hasher.update(listing(&compiled.program).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
