//! Pairs: samples two by two, the chosen one first. Pure functions of a stored step, which a replay runs again.

use crate::dpo::{self, DpoMeasured, Side};
use crate::loss::Coefs;
use crate::prompts::Pair;
use crate::settings::Dpo;
use crate::store::Sample;

/// The samples of some pairs.
pub(crate) fn samples(pairs: &[Pair], chosen: &[usize]) -> Vec<Sample> {
    let both = |&index: &usize| {
        let pair = &pairs[index];
        [("chosen", &pair.chosen), ("rejected", &pair.rejected)].map(|(ending, ids)| Sample {
            prompt: index,
            origin: pair.prompt.origin.clone(),
            prompt_ids: pair.prompt.ids.clone(),
            ids: ids.clone(),
            ending: ending.into(),
            ..Sample::default()
        })
    };
    chosen.iter().flat_map(both).collect()
}

/// Coefficients of every sample's tokens from log-probs, a list a sample.
pub(crate) fn coefs(
    samples: &[Sample],
    settings: &Dpo,
    logp: &[Vec<f32>],
) -> (Vec<Coefs>, DpoMeasured) {
    let side = |i: usize| Side { logp: &logp[i], reference: &samples[i].reference };
    let pairs: Vec<(Side<'_>, Side<'_>)> =
        (0..samples.len()).step_by(2).map(|i| (side(i), side(i + 1))).collect();
    let (found, measured) = dpo::coefs(&pairs, settings.beta.value);
    let of = |i: usize, coef: f32| Coefs {
        policy: vec![coef; samples[i].ids.len()],
        ..Coefs::default()
    };
    let all = found
        .iter()
        .enumerate()
        .flat_map(|(pair, c)| [of(2 * pair, c.chosen), of(2 * pair + 1, c.rejected)])
        .collect();
    (all, measured)
}
