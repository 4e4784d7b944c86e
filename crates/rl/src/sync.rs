//! Weights from the trainer to the rollout engine: whole trained parameters, hashed on both sides every time.

use engine::{Engine, Part};

use crate::checkpoint::trained;
use crate::engines::Engines;
use crate::error::{RlError, at};

const WHAT: &str = "passing weights";

/// The trained parameters, whole, one after the other; every rank of the engine's topology takes part.
fn gather(engine: &Engine<'_>, step: usize) -> Result<Vec<u8>, RlError> {
    let mut bytes = Vec::new();
    for id in trained(engine) {
        let whole = engine.gather_whole(id, Part::Value).map_err(at(step, WHAT))?;
        bytes.extend(whole.iter().flatten().flat_map(|value| value.to_le_bytes()));
    }
    Ok(bytes)
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Gives the rollout engine the trainer's weights; their hash, the same on both sides. Every rank of the world takes
/// part. Frozen weights are each engine's own, from the same checkpoint.
pub(crate) fn pass(engines: &mut Engines<'_>, step: usize) -> Result<String, RlError> {
    let mine = match &engines.trainer {
        Some(trainer) => gather(trainer, step)?,
        None => Vec::new(),
    };
    if engines.shared {
        let given = if engines.leads() { hash(&mine).into_bytes() } else { Vec::new() };
        let given = engines.lead_bytes("the weights' hash", given)?;
        return String::from_utf8(given).map_err(|error| RlError::Message(error.to_string()));
    }
    let bytes = engines.lead_bytes("weights", mine)?;
    let trainer = hash(&bytes);
    if let Some(roller) = &mut engines.roller {
        let mut rest = &bytes[..];
        for id in trained(roller) {
            let param = roller.graph.param_info(id);
            let (values, after) = rest
                .split_at_checked(4 * param.padded_rows * param.cols)
                .ok_or_else(|| RlError::Message("weights of another model".into()))?;
            rest = after;
            let values: Vec<f32> = values
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            roller.write_whole(id, &values);
        }
        let rollout = hash(&gather(roller, step)?);
        if rollout != trainer {
            return Err(RlError::NotPassed { step, trainer, rollout });
        }
    }
    Ok(trainer)
}
