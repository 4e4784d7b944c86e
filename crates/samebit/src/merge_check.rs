//! Whether a merged model says what base and adapter say together, and not what the base says alone.

use crate::commands::shared::Memory;
use crate::device::Device;
use crate::infer::{self, Setup};
use crate::model::Model;
use anyhow::{Context, Result, bail};
use engine::{Advance, Engine, GenerateShape, Job};
use formats::Dtype;
use formats::peft::Adapter;
use serde::Serialize;
use train::WeightType;

/// Tokens whose logits are compared.
const TOKENS: usize = 8;

/// The relative error of logits that rounding may cause: of f32 sums in another order, and of bf16 weights.
const BOUND_F32: f64 = 1e-4;
const BOUND_BF16: f64 = 0.05;

/// The part of the adapter's change that rounding may eat before the merge has lost it.
const LOST: f64 = 0.5;

/// What was found: distances between logits, relative to those of base and adapter, in the Euclidean norm.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) tokens: usize,
    /// From the merged model to base and adapter.
    pub(crate) error: f64,
    /// The most that `error` may be.
    pub(crate) bound: f64,
    /// From the base to base and adapter.
    pub(crate) change: f64,
}

/// Compares `merged`, in a folder, with `base` and `adapter`.
pub(crate) fn check(
    base: &Model,
    adapter: &Adapter,
    merged: &Model,
    device: &Device,
    quiet: bool,
) -> Result<Check> {
    let memory = Memory { weights: WeightType::Auto, memory: None };
    let shape = GenerateShape::full(1, TOKENS, 1);
    let job = Job { generate: Some(shape), ..Job::default() };
    let (tuned, plain) = {
        let setup = Setup { adapter: Some(adapter), memory: &memory, quiet };
        let mut engine = infer::engine(base, device, job, &setup)?;
        let tuned = logits(&mut engine, &shape)?;
        // A fresh adapter's B are zero: the base.
        engine.init_adapter(0);
        (tuned, logits(&mut engine, &shape)?)
    };
    let setup = Setup { adapter: None, memory: &memory, quiet };
    let mut engine = infer::engine(merged, device, job, &setup)?;
    let found = logits(&mut engine, &shape)?;
    let bf16 = merged.checkpoint.config().dtype == Dtype::Bf16;
    let size = norm(tuned.iter().map(|&x| f64::from(x)));
    let check = Check {
        tokens: TOKENS,
        error: distance(&found, &tuned) / size,
        bound: if bf16 { BOUND_BF16 } else { BOUND_F32 },
        change: distance(&plain, &tuned) / size,
    };
    check.judge()?;
    Ok(check)
}

impl Check {
    fn judge(&self) -> Result<()> {
        let Check { error, bound, change, .. } = *self;
        if change == 0.0 {
            bail!(
                "the adapter changes no logit of its base: its B are zero, so there is nothing to merge (was it trained?)"
            );
        }
        // False for a NaN too.
        let within = error <= bound;
        if !within {
            bail!(
                "the merged model's logits differ from those of base and adapter by {error:.1e}, more than {bound:.0e}: \
                 nothing was written"
            );
        }
        if error > LOST * change {
            bail!(
                "rounding changes the logits by {error:.1e} and the adapter by {change:.1e}: the merge would lose what was \
                 learnt; merge with --dtype f32"
            );
        }
        Ok(())
    }
}

/// Logits after each of a few tokens.
fn logits(engine: &mut Engine<'_>, shape: &GenerateShape) -> Result<Vec<f32>> {
    let vocab = engine.graph.vocab as u64;
    let numbers = canon::random::Numbers::new(0, canon::random::Purpose::Sample, 0);
    let pages = shape.slot(0);
    let mut all = Vec::new();
    for past in 0..TOKENS {
        let ids = [numbers.below(past as u64, vocab) as u32];
        let work = Advance { pages: &pages, past, ids: &ids, logits: true };
        let rows = engine.advance(&[work])?;
        all.extend(rows.first().context("no logits")?.iter().copied());
    }
    Ok(all)
}

fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    norm(a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(error: f64, bound: f64, change: f64) -> Result<()> {
        Check { tokens: TOKENS, error, bound, change }.judge()
    }

    #[test]
    fn a_merge_is_refused_for_each_reason() {
        assert!(judged(1e-6, BOUND_F32, 0.1).is_ok());
        for (error, bound, change, word) in [
            (1e-3, BOUND_F32, 0.1, "more than"),
            (f64::NAN, BOUND_F32, 0.1, "more than"),
            (0.0, BOUND_F32, 0.0, "its B are zero"),
            (0.01, BOUND_BF16, 0.015, "--dtype f32"),
        ] {
            let said = judged(error, bound, change).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
