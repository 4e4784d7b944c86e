//! Weights from the trainer to the rollout engine: trained parameters alone, by shard plan, with fingerprints of both
//! sides every time.

use rollout::{Fingerprint, Since};

use crate::checkpoint::trained;
use crate::engines::Engines;
use crate::error::RlError;

/// Gives the rollout engine the trainer's weights; their fingerprint, the same on both sides and on every topology. Every
/// rank of the world takes part. Frozen weights are each engine's own, from the same checkpoint; an update that changed
/// nothing is the caller's to notice, who knows the gradient.
pub(crate) fn pass(engines: &mut Engines<'_>, step: usize) -> Result<String, RlError> {
    let failed = |source| RlError::Sync { step, source };
    let Engines { trainer, roller, seat, sync, .. } = engines;
    if let (Some(seat), Some(sync)) = (seat, sync) {
        let passed = sync.run(seat, trainer.as_ref(), roller.as_mut(), Since::Anything);
        return Ok(passed.map_err(failed)?.to_string());
    }
    let given = match trainer {
        Some(trainer) => {
            let fingerprint =
                Fingerprint::of(trainer, &trained(trainer)).map_err(|e| failed(e.into()))?;
            fingerprint.to_string().into_bytes()
        }
        None => Vec::new(),
    };
    let given = engines.from_lead("the weights' fingerprint", given)?;
    String::from_utf8(given).map_err(|error| RlError::Message(error.to_string()))
}
