//! Direct preference optimization (Rafailov et al., 2023) on the path of coefficients.
//!
//! Of a pair, `x = β·((Σ logp − Σ ref of the chosen) − (the same of the rejected))`, sums in f64 in the order of tokens;
//! the loss is the mean of `−ln σ(x)` over pairs, so each token of a chosen completion has the coefficient
//! `−β·σ(−x) / pairs`, and each of a rejected one its negative. `σ`, `exp` and `ln` are the canon's, in f32.

use serde::{Deserialize, Serialize};

/// Log-probs of one completion's tokens by the policy and by the reference.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// By the policy.
    pub logp: &'a [f32],
    /// By the reference.
    pub reference: &'a [f32],
}

impl Side<'_> {
    /// How much likelier the policy makes the completion than the reference does, nats.
    fn log_ratio(&self) -> f64 {
        let sum = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>();
        sum(self.logp) - sum(self.reference)
    }
}

/// Coefficients of one pair: each token of a completion has the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairCoefs {
    /// Of the chosen completion's tokens.
    pub chosen: f32,
    /// Of the rejected one's.
    pub rejected: f32,
}

/// What the loss measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DpoMeasured {
    /// The loss.
    pub loss: f64,
    /// Part of the pairs whose chosen completion gained more than the rejected one.
    pub accuracy: f64,
    /// Mean of `x`.
    pub margin: f64,
    /// Mean of `β·(Σ logp − Σ ref)` of the chosen.
    pub chosen_reward: f64,
    /// The same of the rejected.
    pub rejected_reward: f64,
}

/// Coefficients of every pair of a batch.
pub fn coefs(pairs: &[(Side<'_>, Side<'_>)], beta: f64) -> (Vec<PairCoefs>, DpoMeasured) {
    let n = pairs.len() as f64;
    let mut m = DpoMeasured::default();
    let coefs = pairs
        .iter()
        .map(|(chosen, rejected)| {
            let (chosen, rejected) = (beta * chosen.log_ratio(), beta * rejected.log_ratio());
            let x = chosen - rejected;
            m.loss += softplus(-x) / n;
            m.accuracy += f64::from(u8::from(x > 0.0)) / n;
            m.margin += x / n;
            m.chosen_reward += chosen / n;
            m.rejected_reward += rejected / n;
            let slope = beta * f64::from(canon::sigmoid(-x as f32)) / n;
            PairCoefs { chosen: -slope as f32, rejected: slope as f32 }
        })
        .collect();
    (coefs, m)
}

/// `ln(1 + e^x)`.
fn softplus(x: f64) -> f64 {
    let tail = canon::ln(1.0 + canon::exp(-x.abs() as f32));
    x.max(0.0) + f64::from(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGP: [&[f32]; 4] = [&[-1.0, -0.5], &[-2.0, -0.25, -1.0], &[-0.3], &[-0.4, -0.6]];
    const REFERENCE: [&[f32]; 4] = [&[-1.2, -0.9], &[-1.5, -0.5, -1.0], &[-0.2], &[-0.4, -0.5]];

    fn pairs(logp: &[Vec<f32>]) -> Vec<(Side<'_>, Side<'_>)> {
        let side = |i: usize| Side { logp: &logp[i], reference: REFERENCE[i] };
        vec![(side(0), side(1)), (side(2), side(3))]
    }

    #[test]
    fn coefficients_are_the_derivatives() {
        const STEP: f32 = 1.0 / 64.0;
        let logp: Vec<Vec<f32>> = LOGP.iter().map(|l| l.to_vec()).collect();
        let (found, measured) = coefs(&pairs(&logp), 0.5);
        assert!((0.0..1.0).contains(&measured.loss));
        for i in 0..4 {
            let expected = if i % 2 == 0 { found[i / 2].chosen } else { found[i / 2].rejected };
            let at = |step: f32| {
                let mut moved = logp.clone();
                moved[i][0] += step;
                coefs(&pairs(&moved), 0.5).1.loss
            };
            let slope = (at(STEP) - at(-STEP)) / (2.0 * f64::from(STEP));
            assert!((slope - f64::from(expected)).abs() < 1e-4, "{i}: {slope} {expected}");
        }
    }

    #[test]
    fn a_policy_equal_to_its_reference_has_the_loss_of_a_coin() {
        let same: Vec<Vec<f32>> = REFERENCE.iter().map(|l| l.to_vec()).collect();
        let (found, measured) = coefs(&pairs(&same), 0.1);
        assert!((measured.loss - std::f64::consts::LN_2).abs() < 1e-6);
        assert_eq!((measured.accuracy, measured.margin), (0.0, 0.0));
        assert_eq!(found[0], PairCoefs { chosen: -0.025, rejected: 0.025 });
    }
}
