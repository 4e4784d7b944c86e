//! Gates of a running run: what must hold of real tensors and real figures, or the run stops.

use engine::{Engine, EngineError, Part};
use program::ParamId;
use record::Gate;

/// Every trained tensor of which something must be seen: LoRA's B, which begins as zeros, or in full mode every one.
/// (LoRA's A has no gradient in the first step, since B is zero.)
fn gated(engine: &Engine<'_>) -> Vec<ParamId> {
    let trained =
        engine.graph.param_ids().filter(|&id| engine.blueprint.store.slot(id).state.is_some());
    let is_gated = |&id: &ParamId| {
        let param = engine.graph.param_info(id);
        !param.adapter || param.name.ends_with(".lora_B.weight")
    };
    trained.filter(is_gated).collect()
}

/// What the other ranks do while a gate looks at the state.
#[derive(Clone, Copy)]
enum Others {
    /// They follow the first rank, which alone looks.
    Follow,
    /// They look too.
    Look,
}

/// The largest magnitude of a part of the state.
fn largest(
    engine: &Engine<'_>,
    id: ParamId,
    part: Part,
    others: Others,
) -> Result<f32, EngineError> {
    let mut largest = 0f32;
    let take = |numbers: &[f32]| {
        largest = numbers.iter().fold(largest, |most, x| most.max(x.abs()));
        Ok::<(), EngineError>(())
    };
    match others {
        Others::Follow => engine.visit_served(id, part, take)?,
        Others::Look => engine.visit_whole(id, part, take)?,
    }
    Ok(largest)
}

/// Name of the gate of gradients.
pub const GRADIENTS: &str = "trained tensors receive gradient";
/// Name of the gate of adapters' values.
pub const ADAPTERS: &str = "adapters learn";
const ADVICE: &str =
    "nothing is learnt there: look at `targets`, the mask of what is learnt, and the learning rate";

/// Whether every gated tensor has a non-zero gradient, with the smallest of their largest elements. On the first rank,
/// while the others follow.
///
/// # Errors
/// Another rank failed.
pub fn gradients(engine: &Engine<'_>) -> Result<Gate, EngineError> {
    judge(engine, GRADIENTS, "gradient", Part::Gradient, Others::Follow)
}

/// [`gradients`] on every rank together.
///
/// # Errors
/// Another rank failed.
pub(crate) fn gradients_together(engine: &Engine<'_>) -> Result<Gate, EngineError> {
    judge(engine, GRADIENTS, "gradient", Part::Gradient, Others::Look)
}

/// Whether every LoRA matrix B has a non-zero element, with the smallest of their largest ones; skipped in full mode,
/// where values are non-zero from the start. On the first rank, while the others follow.
///
/// # Errors
/// Another rank failed.
pub fn adapters(engine: &Engine<'_>) -> Result<Gate, EngineError> {
    if !engine.graph.params.iter().any(|param| param.adapter) {
        return Ok(Gate::skipped(ADAPTERS, "mode full has no adapters"));
    }
    judge(engine, ADAPTERS, "B", Part::Value, Others::Follow)
}

/// Name of the gate of trained values.
pub const FINITE: &str = "trained values are finite";

/// Whether every value of every trained tensor is a number: an update may overflow where its gradient did not. On the
/// first rank, while the others follow.
///
/// # Errors
/// Another rank failed.
pub fn finite(engine: &Engine<'_>) -> Result<Gate, EngineError> {
    let trained: Vec<ParamId> = crate::contents::trained(engine).collect();
    let (total, mut overflown) = (trained.len(), Vec::new());
    for id in trained {
        let mut good = true;
        engine.visit_served(id, Part::Value, |numbers| {
            good &= numbers.iter().all(|x| x.is_finite());
            Ok::<(), EngineError>(())
        })?;
        if !good {
            overflown.push(engine.graph.param_info(id).name.to_string());
        }
    }
    let named: Vec<&str> = overflown.iter().map(String::as_str).collect();
    let figure = figure(&named, total, "hold inf or NaN");
    let advice = "the last update overflowed: lower the learning rate, and begin again or resume from a checkpoint";
    Ok(Gate::of(FINITE, overflown.is_empty(), figure, advice))
}

fn judge(
    engine: &Engine<'_>,
    name: &str,
    what: &str,
    part: Part,
    others: Others,
) -> Result<Gate, EngineError> {
    let mut found: Vec<(ParamId, f32)> = Vec::new();
    for id in gated(engine) {
        found.push((id, largest(engine, id, part, others)?));
    }
    let tensor = |id: ParamId| engine.graph.param_info(id).name.to_string();
    let dead: Vec<String> =
        found.iter().filter(|(_, x)| *x == 0.0).map(|&(id, _)| tensor(id)).collect();
    let smallest = found.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let Some(&(smallest, magnitude)) = smallest else {
        return Ok(Gate::failed(name, "no tensor is trained", ADVICE));
    };
    if dead.is_empty() {
        let count = found.len();
        let figure = format!(
            "{count} of {count}; the weakest {what} reaches {magnitude:.1e} ({})",
            tensor(smallest)
        );
        return Ok(Gate::ok(name, figure));
    }
    let figure = format!(
        "{} of {} have a {what} of zeros: {}",
        dead.len(),
        found.len(),
        dead.into_iter().take(NAMED).collect::<Vec<_>>().join(", ")
    );
    Ok(Gate::failed(name, figure, ADVICE))
}

/// Tensors that a failure names.
const NAMED: usize = 5;

/// Name of the gate of trained tensors' bytes.
pub(crate) const CHANGED: &str = "trained tensors changed";

/// Whether every trained tensor has other bytes than at the start. `unchanged` are those that have not.
pub(crate) fn changed(unchanged: &[&str], total: usize) -> Gate {
    let advice = "updates are lost: raise the learning rate, or look at why these get no gradient";
    let figure = figure(unchanged, total, "are as at the start");
    Gate::of(CHANGED, unchanged.is_empty(), figure, advice)
}

/// Name of the gate of the frozen weights.
pub const FROZEN: &str = "frozen weights unchanged";

/// Whether every frozen tensor has the bytes that the session began with. `changed` are those that have not; in full
/// mode there are none at all.
pub(crate) fn frozen(changed: &[&str], total: usize) -> Gate {
    if total == 0 {
        return Gate::skipped(FROZEN, "mode full trains every weight");
    }
    let advice =
        "memory was overwritten: what was trained since is not what this run trains; report it";
    let figure = figure(changed, total, "are not as the session began with them");
    Gate::of(FROZEN, changed.is_empty(), figure, advice)
}

/// Name of the gate of a checkpoint that a run goes on from.
pub const RESUMED: &str = "checkpoint gives what was recorded";

/// Whether every trained tensor has the bytes that were recorded when its checkpoint was made. `differing` are those
/// that have not.
pub(crate) fn resumed(differing: &[&str], total: usize) -> Gate {
    let advice = "the checkpoint is another run's or was changed: put it back, or remove its folder to resume from the \
        one before";
    let figure = figure(differing, total, "are not as recorded");
    Gate::of(RESUMED, differing.is_empty(), figure, advice)
}

/// How many of `total` tensors hold, or which do not, and what these are.
fn figure(wrong: &[&str], total: usize, are: &str) -> String {
    match wrong.len() {
        0 => format!("{total} of {total}"),
        count => format!("{count} of {total} {are}: {}", wrong[..count.min(NAMED)].join(", ")),
    }
}

/// Bounds of the loss that the vocabulary implies.
///
/// A model that knows nothing gives each of V words 1/V, a loss of ln V nats. One that does worse than that on its first
/// step has been given something it was not made for: another template, tokenizer, mask or weights. Later a small batch
/// may be hard, but a loss over twice ln V says that the weights are ruined. The mean of N tokens scatters: a token's
/// loss has a standard deviation of about 3 nats in language models, so three deviations of the mean, 9/√N, are allowed
/// on top, and in the first step two nats, since weights drawn at random are no worse than that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossBounds {
    ln_vocabulary: f64,
    given: Option<f64>,
}

/// Three standard deviations of one token's loss, nats.
const SCATTER_NATS: f64 = 9.0;
/// What the first loss may have over ln V, nats.
const FIRST_MARGIN_NATS: f64 = 2.0;
/// Times ln V that a later loss may reach.
const LATER_TIMES: f64 = 2.0;
/// A mean of negative log-probs is not negative, but for the rounding of f32 log-probs.
const LEAST_NATS: f64 = -1e-3;

/// Name of the gate of losses.
pub const LOSS: &str = "loss within bounds";

impl LossBounds {
    /// Bounds for a vocabulary; `given` replaces the upper one.
    pub fn new(vocabulary: usize, given: Option<f64>) -> LossBounds {
        LossBounds { ln_vocabulary: (vocabulary as f64).ln(), given }
    }

    /// The most that the mean loss of `supervised` tokens may be in a step, from 1; nats.
    pub fn limit(&self, step: usize, supervised: usize) -> f64 {
        let scatter = SCATTER_NATS / (supervised.max(1) as f64).sqrt();
        let most = match step {
            1 => self.ln_vocabulary + FIRST_MARGIN_NATS,
            _ => LATER_TIMES * self.ln_vocabulary,
        };
        self.given.unwrap_or(most + scatter)
    }

    /// Whether a step's loss is within the bounds.
    pub fn judge(&self, step: usize, supervised: usize, loss: f64) -> Gate {
        let limit = self.limit(step, supervised);
        let figure =
            format!("{loss:.4} of at most {limit:.4} nats (ln V = {:.4})", self.ln_vocabulary);
        let good = (LEAST_NATS..=limit).contains(&loss);
        Gate::of(LOSS, good, figure, LOSS_ADVICE).at(step)
    }
}

const LOSS_ADVICE: &str = "in the first step: the model was not made for this data (template, tokenizer, mask, \
    weights); later: it diverged (learning rate). `loss_limit` sets another bound";

#[cfg(test)]
mod tests {
    use super::*;
    use record::Verdict;

    #[test]
    fn the_first_loss_is_bound_by_uniform_guessing() {
        let bounds = LossBounds::new(49_152, None);
        let uniform = 49_152f64.ln();
        let outcome = |step, supervised, loss| bounds.judge(step, supervised, loss).verdict;
        assert_eq!(outcome(1, 10_000, 2.0), Verdict::Ok);
        assert_eq!(outcome(1, 10_000, uniform + 2.08), Verdict::Ok);
        assert_eq!(outcome(1, 10_000, uniform + 2.1), Verdict::Failed);
        // Few tokens scatter more.
        assert_eq!(outcome(1, 9, uniform + 4.9), Verdict::Ok);
        assert_eq!(outcome(1, 9, uniform + 5.1), Verdict::Failed);
    }

    #[test]
    fn later_losses_may_reach_twice_that() {
        let bounds = LossBounds::new(1000, None);
        let twice = 2.0 * 1000f64.ln();
        let outcome = |loss| bounds.judge(2, 8_100, loss).verdict;
        assert_eq!(outcome(twice + 0.09), Verdict::Ok);
        assert_eq!(outcome(twice + 0.11), Verdict::Failed);
        assert_eq!(outcome(f64::NAN), Verdict::Failed);
        assert_eq!(outcome(f64::INFINITY), Verdict::Failed);
    }

    #[test]
    fn a_loss_is_not_negative() {
        let bounds = LossBounds::new(1000, None);
        assert_eq!(bounds.judge(5, 10, -9e-4).verdict, Verdict::Ok);
        assert_eq!(bounds.judge(5, 10, -1.1e-3).verdict, Verdict::Failed);
    }

    #[test]
    fn a_given_limit_replaces_the_upper_bound() {
        let bounds = LossBounds::new(1000, Some(3.0));
        for step in [1, 2] {
            assert_eq!(bounds.judge(step, 10, 3.0).verdict, Verdict::Ok);
            assert_eq!(bounds.judge(step, 10, 3.0001).verdict, Verdict::Failed);
        }
    }

    #[test]
    fn tensors_that_stay_are_named() {
        assert_eq!(changed(&[], 4).verdict, Verdict::Ok);
        let gate = changed(&["a"], 4);
        assert_eq!(
            (gate.verdict, gate.figure.as_str()),
            (Verdict::Failed, "1 of 4 are as at the start: a")
        );
        assert_eq!(frozen(&[], 4).verdict, Verdict::Ok);
        assert_eq!(frozen(&["a"], 4).verdict, Verdict::Failed);
        assert_eq!(frozen(&[], 0).verdict, Verdict::Skipped);
        let gate = resumed(&["a", "b", "c", "d", "e", "f"], 7);
        assert_eq!(
            (gate.verdict, gate.figure.as_str()),
            (Verdict::Failed, "6 of 7 are not as recorded: a, b, c, d, e")
        );
        assert_eq!(resumed(&[], 7).verdict, Verdict::Ok);
    }
}
