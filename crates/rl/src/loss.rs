//! Losses as functions of token log-probs: each gives d loss / d log-prob a token, and what it measured.
//!
//! Differences of log-probs are taken in f32 and exponentials by the canon's `exp`, so a ratio of equal log-probs is
//! exactly 1; products and sums are f64 in the order of the tokens; a coefficient of each measure is rounded to f32 once, at
//! the end (where policy and whole vocabulary are one, the two rounded coefficients are added in f32).
//!
//! | estimator of KL(policy ‖ reference), `x = ref − logp` | value | d value / d logp |
//! |---|---|---|
//! | k1 | `−x` | `1` |
//! | k2 | `x² / 2` | `−x` |
//! | k3 | `e^x − x − 1` | `1 − e^x` |

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An estimator of the divergence from the reference, of one token (Schulman, "Approximating KL divergence", 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KlEstimator {
    /// `logp − ref`: unbiased, of either sign.
    K1,
    /// `(ref − logp)² / 2`: biased, not negative.
    K2,
    /// `e^(ref − logp) − (ref − logp) − 1`: unbiased, not negative.
    K3,
}

impl KlEstimator {
    /// Value and derivative by `logp`.
    pub fn at(self, logp: f32, reference: f32) -> (f64, f64) {
        let x = f64::from(reference - logp);
        match self {
            KlEstimator::K1 => (-x, 1.0),
            KlEstimator::K2 => (0.5 * x * x, -x),
            KlEstimator::K3 => {
                let e = f64::from(canon::exp(reference - logp));
                (e - x - 1.0, 1.0 - e)
            }
        }
    }
}

/// How tokens' terms become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Normalise {
    /// GRPO: the mean over a completion's tokens, then the mean over completions.
    Sequence,
    /// DAPO: the mean over all tokens.
    Token,
    /// Dr. GRPO: the sum over all tokens, divided by completions times the most tokens of one, which no length biases.
    Constant,
}

/// The loss of a batch of completions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyLoss {
    /// How terms are averaged.
    pub normalise: Normalise,
    /// Most tokens of a completion: the divisor of [`Normalise::Constant`].
    pub max_tokens: usize,
    /// The ratio is clipped below at 1 minus this.
    pub clip_low: f64,
    /// And above at 1 plus this.
    pub clip_high: f64,
    /// Coefficient and estimator of the divergence in the loss.
    pub kl: Option<(f64, KlEstimator)>,
    /// The entropy's mean times this is taken from the loss.
    pub entropy: f64,
}

/// One completion's tokens.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// The completion's advantage.
    pub advantage: f64,
    /// Log-probs by the policy that is trained, as it is now.
    pub logp: &'a [f32],
    /// Log-probs when the tokens were chosen.
    pub old: &'a [f32],
    /// Log-probs over the whole vocabulary, now: those of the policy where it keeps every candidate.
    pub full: &'a [f32],
    /// Log-probs by the reference, where the loss has a divergence.
    pub reference: Option<&'a [f32]>,
}

/// d loss / d measure of each token of one completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coefs {
    /// Of the policy's log-probs.
    pub policy: Vec<f32>,
    /// Of the log-probs over the whole vocabulary.
    pub full: Vec<f32>,
    /// Of the entropies.
    pub entropy: Vec<f32>,
}

/// What a loss measured over its tokens; entropies are known only once the model has run ([`PolicyLoss::entropy`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The loss without its entropy term.
    pub loss: f64,
    /// Its part from clipped ratios and advantages.
    pub policy_loss: f64,
    /// Mean divergence a token, by the estimator; 0 where the loss has none.
    pub kl: f64,
    /// Mean ratio.
    pub ratio_mean: f64,
    /// Least ratio.
    pub ratio_min: f64,
    /// Greatest ratio.
    pub ratio_max: f64,
    /// Part of the tokens that the lower clip took the gradient from.
    pub clipped_low: f64,
    /// The same of the upper.
    pub clipped_high: f64,
    /// Completions.
    pub completions: usize,
    /// Tokens.
    pub tokens: usize,
}

impl PolicyLoss {
    /// The weight of a token in the loss. `completions` and `tokens` count the whole batch.
    fn weight(&self, length: usize, completions: usize, tokens: usize) -> f64 {
        match self.normalise {
            Normalise::Sequence => 1.0 / (completions as f64 * length as f64),
            Normalise::Token => 1.0 / tokens as f64,
            Normalise::Constant => 1.0 / (completions as f64 * self.max_tokens as f64),
        }
    }

    /// Coefficients of every completion of a batch. A completion without tokens has none and counts for nothing.
    ///
    /// # Panics
    /// On arrays of unequal length, or without a reference where the loss has a divergence.
    pub fn coefs(&self, batch: &[Tokens<'_>]) -> (Vec<Coefs>, Measured) {
        let completions = batch.iter().filter(|c| !c.logp.is_empty()).count();
        let tokens: usize = batch.iter().map(|c| c.logp.len()).sum();
        let mut measured = Measured {
            completions,
            tokens,
            ratio_min: f64::INFINITY,
            ratio_max: f64::NEG_INFINITY,
            ..Measured::default()
        };
        let coefs = batch
            .iter()
            .map(|c| {
                let weight = self.weight(c.logp.len().max(1), completions, tokens);
                self.completion(c, weight, &mut measured)
            })
            .collect();
        if tokens == 0 {
            return (coefs, Measured::default());
        }
        let n = tokens as f64;
        measured.ratio_mean /= n;
        measured.kl /= n;
        measured.clipped_low /= n;
        measured.clipped_high /= n;
        (coefs, measured)
    }

    /// One completion; means are sums until the batch is through.
    fn completion(&self, c: &Tokens<'_>, weight: f64, m: &mut Measured) -> Coefs {
        let length = c.logp.len();
        assert!(c.old.len() == length && c.full.len() == length, "one value a token");
        let mut coefs = Coefs::default();
        for t in 0..length {
            let ratio = f64::from(canon::exp(c.logp[t] - c.old[t]));
            let (low, high) = (1.0 - self.clip_low, 1.0 + self.clip_high);
            let below = c.advantage < 0.0 && ratio < low;
            let above = c.advantage > 0.0 && ratio > high;
            let clipped = ratio.clamp(low, high);
            let term = -f64::min(ratio * c.advantage, clipped * c.advantage);
            let slope = if below || above { 0.0 } else { -c.advantage * ratio };
            m.policy_loss += weight * term;
            m.loss += weight * term;
            m.ratio_mean += ratio;
            m.ratio_min = m.ratio_min.min(ratio);
            m.ratio_max = m.ratio_max.max(ratio);
            m.clipped_low += f64::from(u8::from(below));
            m.clipped_high += f64::from(u8::from(above));
            coefs.policy.push((weight * slope) as f32);
            if let Some((coef, estimator)) = self.kl {
                let reference = c.reference.expect("a divergence has a reference");
                let (value, slope) = estimator.at(c.full[t], reference[t]);
                m.kl += value;
                m.loss += weight * (coef * value);
                coefs.full.push((weight * (coef * slope)) as f32);
            }
            if self.entropy != 0.0 {
                coefs.entropy.push((-self.entropy * weight) as f32);
            }
        }
        coefs
    }

    /// The entropy's part of the loss, and its mean a token.
    pub fn entropy(&self, batch: &[&[f32]]) -> (f64, f64) {
        let completions = batch.iter().filter(|c| !c.is_empty()).count();
        let tokens: usize = batch.iter().map(|c| c.len()).sum();
        let (mut loss, mut sum) = (0.0, 0.0);
        for entropies in batch {
            let weight = self.weight(entropies.len().max(1), completions, tokens);
            for &entropy in *entropies {
                loss -= self.entropy * weight * f64::from(entropy);
                sum += f64::from(entropy);
            }
        }
        (loss, if tokens == 0 { 0.0 } else { sum / tokens as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGP: [&[f32]; 3] = [&[-0.7, -1.2, -0.3], &[-2.0, -0.1], &[-0.5]];
    const OLD: [&[f32]; 3] = [&[-0.8, -0.7, -0.3], &[-1.6, -0.6], &[-0.52]];
    const REFERENCE: [&[f32]; 3] = [&[-0.9, -1.0, -0.4], &[-1.0, -0.4], &[-0.5]];
    const ADVANTAGES: [f64; 3] = [1.25, -0.5, 0.0];

    fn loss(normalise: Normalise, kl: Option<(f64, KlEstimator)>) -> PolicyLoss {
        PolicyLoss { normalise, max_tokens: 4, clip_low: 0.2, clip_high: 0.3, kl, entropy: 0.01 }
    }

    fn batch<'a>(logp: &'a [Vec<f32>], full: &'a [Vec<f32>]) -> Vec<Tokens<'a>> {
        (0..3)
            .map(|i| Tokens {
                advantage: ADVANTAGES[i],
                logp: &logp[i],
                old: OLD[i],
                full: &full[i],
                reference: Some(REFERENCE[i]),
            })
            .collect()
    }

    fn all() -> impl Iterator<Item = PolicyLoss> {
        let normalises = [Normalise::Sequence, Normalise::Token, Normalise::Constant];
        let kls = [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3];
        let kls = kls.map(|k| Some((0.1, k))).into_iter().chain([None]).collect::<Vec<_>>();
        normalises.into_iter().flat_map(move |n| kls.clone().into_iter().map(move |kl| loss(n, kl)))
    }

    #[test]
    fn coefficients_are_the_derivatives() {
        const STEP: f32 = 1.0 / 128.0;
        let logp: Vec<Vec<f32>> = LOGP.iter().map(|l| l.to_vec()).collect();
        for loss in all() {
            let (coefs, _) = loss.coefs(&batch(&logp, &logp));
            for (i, row) in logp.iter().enumerate() {
                for t in 0..row.len() {
                    let at = |full: bool, step: f32| {
                        let mut moved = logp.clone();
                        moved[i][t] += step;
                        let (a, b) = if full { (&logp, &moved) } else { (&moved, &logp) };
                        loss.coefs(&batch(a, b)).1.loss
                    };
                    let slope = |full| (at(full, STEP) - at(full, -STEP)) / (2.0 * f64::from(STEP));
                    let policy = f64::from(coefs[i].policy[t]);
                    assert!((slope(false) - policy).abs() < 1e-4, "{loss:?} {i} {t}");
                    let full = f64::from(coefs[i].full.get(t).copied().unwrap_or(0.0));
                    assert!((slope(true) - full).abs() < 1e-4, "{loss:?} {i} {t}");
                }
            }
        }
    }

    #[test]
    fn a_policy_that_has_not_moved_has_ratio_one_and_is_never_clipped() {
        let old: Vec<Vec<f32>> = OLD.iter().map(|l| l.to_vec()).collect();
        let (coefs, measured) = loss(Normalise::Token, None).coefs(&batch(&old, &old));
        assert_eq!([measured.ratio_min, measured.ratio_mean, measured.ratio_max], [1.0; 3]);
        assert_eq!((measured.clipped_low, measured.clipped_high), (0.0, 0.0));
        assert_eq!(coefs[0].policy, [(-1.25 / 6.0) as f32; 3]);
        assert_eq!(coefs[2].policy, [0.0], "no advantage, no gradient");
    }

    #[test]
    fn clips_take_the_gradient_on_their_side_only() {
        let loss = PolicyLoss { entropy: 0.0, ..loss(Normalise::Token, None) };
        let coef = |advantage: f64, logp: f32| {
            let (logp, old) = ([logp], [0.0f32]);
            let tokens = Tokens { advantage, logp: &logp, old: &old, full: &logp, reference: None };
            loss.coefs(&[tokens]).0[0].policy[0]
        };
        assert_eq!(coef(1.0, 0.5), 0.0, "above, and better");
        assert!(coef(-1.0, 0.5) > 0.0, "above, and worse: pulled back");
        assert_eq!(coef(-1.0, -0.5), 0.0, "below, and worse");
        assert!(coef(1.0, -0.5) < 0.0, "below, and better: pulled up");
    }

    #[test]
    fn estimators_agree_where_nothing_differs() {
        for k in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            assert_eq!(k.at(-1.5, -1.5).0, 0.0);
        }
        let (value, slope) = KlEstimator::K3.at(-1.0, -1.5);
        assert!((value - ((-0.5f64).exp() + 0.5 - 1.0)).abs() < 1e-7);
        assert!((slope - (1.0 - (-0.5f64).exp())).abs() < 1e-7);
    }

    #[test]
    fn a_completion_without_tokens_counts_for_nothing() {
        let old: Vec<Vec<f32>> = OLD.iter().map(|l| l.to_vec()).collect();
        let mut with = batch(&old, &old);
        let empty = Tokens { advantage: 3.0, logp: &[], old: &[], full: &[], reference: Some(&[]) };
        let loss = loss(Normalise::Sequence, None);
        let (_, before) = loss.coefs(&with);
        with.push(empty);
        let (coefs, after) = loss.coefs(&with);
        assert_eq!((before, &coefs[3]), (after, &Coefs::default()));
        assert_eq!(loss.coefs(&[empty]).1, Measured::default());
    }

    #[test]
    fn entropy_is_taken_from_the_loss() {
        let loss = loss(Normalise::Token, None);
        let (part, mean) = loss.entropy(&[&[1.0, 2.0], &[3.0]]);
        assert!((part + 0.01 * 2.0).abs() < 1e-12 && (mean - 2.0).abs() < 1e-12);
    }
}
