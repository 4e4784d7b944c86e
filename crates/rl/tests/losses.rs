//! Coefficients against torch's differentiation of trl's formulas: `scripts/goldens/losses.py`.

use rl::advantage::of_group;
use rl::dpo::{self, Side};
use rl::loss::{KlEstimator, Normalise, PolicyLoss, Tokens};
use serde::Deserialize;

/// How far a coefficient may be off: those of the file are of f64, these of f32.
const NEAR: f64 = 1e-6;

type Lists = Vec<Vec<f64>>;

#[derive(Deserialize)]
struct Golden {
    policy: Vec<Policy>,
    dpo: Vec<Dpo>,
}

#[derive(Deserialize)]
struct Policy {
    normalise: Normalise,
    max_tokens: usize,
    clip_low: f64,
    clip_high: f64,
    kl: Option<KlEstimator>,
    kl_coef: f64,
    by_std: bool,
    logp: Lists,
    old: Lists,
    reference: Lists,
    rewards: Vec<f64>,
    advantages: Vec<f64>,
    loss: f64,
    coefs: Lists,
}

#[derive(Deserialize)]
struct Dpo {
    beta: f64,
    logp: Lists,
    reference: Lists,
    loss: f64,
    coefs: Lists,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/losses.json")).unwrap()
}

fn f32s(lists: &Lists) -> Vec<Vec<f32>> {
    lists.iter().map(|list| list.iter().map(|&x| x as f32).collect()).collect()
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= NEAR, "{what}: {found} is not {expected}");
}

#[test]
fn policy_losses_have_the_gradients_of_trl() {
    let cases = golden().policy;
    assert_eq!(cases.len(), 24, "3 normalisations, 4 divergences, 2 advantages");
    for case in cases {
        let rewards: Vec<Option<f64>> = case.rewards.iter().copied().map(Some).collect();
        let advantages = of_group(&rewards, case.by_std).advantages;
        for (found, &expected) in advantages.iter().zip(&case.advantages) {
            near(found.unwrap(), expected, "advantage");
        }
        let (logp, old) = (f32s(&case.logp), f32s(&case.old));
        let reference = f32s(&case.reference);
        let tokens = |i: usize| Tokens {
            advantage: advantages[i].unwrap(),
            logp: &logp[i],
            old: &old[i],
            full: &logp[i],
            reference: Some(&reference[i]),
        };
        let batch: Vec<Tokens<'_>> = (0..logp.len()).map(tokens).collect();
        let loss = PolicyLoss {
            normalise: case.normalise,
            max_tokens: case.max_tokens,
            clip_low: case.clip_low,
            clip_high: case.clip_high,
            kl: case.kl.map(|estimator| (case.kl_coef, estimator)),
            entropy: 0.0,
        };
        let (coefs, measured) = loss.coefs(&batch);
        assert!(measured.clipped_low > 0.0 && measured.clipped_high > 0.0, "{measured:?}");
        let what = format!("{:?}, {:?}", case.normalise, case.kl);
        near(measured.loss, case.loss, &what);
        for (found, expected) in coefs.iter().zip(&case.coefs) {
            assert_eq!(found.policy.len(), expected.len());
            for (t, &expected) in expected.iter().enumerate() {
                let full = found.full.get(t).copied().unwrap_or(0.0);
                near(f64::from(found.policy[t]) + f64::from(full), expected, &what);
            }
        }
    }
}

#[test]
fn dpo_has_the_gradients_of_trl() {
    let cases = golden().dpo;
    assert_eq!(cases.len(), 2);
    for case in cases {
        let (logp, reference) = (f32s(&case.logp), f32s(&case.reference));
        let side = |i: usize| Side { logp: &logp[i], reference: &reference[i] };
        let pairs: Vec<_> = (0..logp.len()).step_by(2).map(|i| (side(i), side(i + 1))).collect();
        let (coefs, measured) = dpo::coefs(&pairs, case.beta);
        near(measured.loss, case.loss, "loss");
        for (pair, found) in coefs.iter().enumerate() {
            for (side, found) in [(2 * pair, found.chosen), (2 * pair + 1, found.rejected)] {
                for &expected in &case.coefs[side] {
                    near(f64::from(found), expected, "coefficient");
                }
            }
        }
    }
}
