//! Groups: from rewards and log-probs to coefficients. Pure functions of a stored step, which a replay runs again.

use crate::advantage::of_group;
use crate::loss::{Coefs, Measured, Tokens};
use crate::settings::Grpo;
use crate::store::Sample;

/// What groups came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Groups {
    /// Groups.
    pub(crate) groups: usize,
    /// Groups from which nothing can be learnt.
    pub(crate) uniform: usize,
    /// Mean divergence a token that rewards were charged with.
    pub(crate) charged_kl: Option<f64>,
}

/// Charges rewards with the divergence, if the settings say so, and gives every graded sample its advantage.
pub(crate) fn advantages(samples: &mut [Sample], g: &Grpo) -> Groups {
    let charge = g.reward_kl();
    let (mut sum, mut tokens) = (0.0, 0);
    if let Some((coef, estimator)) = charge {
        for sample in samples.iter_mut().filter(|s| s.reward.is_some()) {
            let pairs = sample.full().iter().zip(&sample.reference);
            let kl: f64 = pairs.map(|(&logp, &reference)| estimator.at(logp, reference).0).sum();
            sum += kl;
            tokens += sample.ids.len();
            sample.charged = Some(coef * kl);
        }
    }
    let mut found = Groups {
        charged_kl: charge.filter(|_| tokens > 0).map(|_| sum / tokens as f64),
        ..Groups::default()
    };
    for group in samples.chunks_mut(g.group.value) {
        let net = |s: &Sample| s.reward.map(|reward| reward - s.charged.unwrap_or(0.0));
        let rewards: Vec<Option<f64>> = group.iter().map(net).collect();
        let of = of_group(&rewards, g.advantage_std.value);
        found.groups += 1;
        found.uniform += usize::from(of.uniform);
        for (sample, advantage) in group.iter_mut().zip(of.advantages) {
            sample.advantage = advantage;
        }
    }
    found
}

/// Which samples the loss is a mean of: graded, with tokens, and where groups are filtered, in one that teaches.
pub(crate) fn counted(samples: &[Sample], g: &Grpo) -> Vec<bool> {
    let teaches = |group: &[Sample]| {
        !g.filter_groups.value || group.iter().any(|s| s.advantage.is_some_and(|a| a != 0.0))
    };
    let groups = samples.chunks(g.group.value);
    groups
        .flat_map(|group| {
            let teaches = teaches(group);
            group.iter().map(move |s| teaches && s.advantage.is_some() && !s.ids.is_empty())
        })
        .collect()
}

/// Coefficients of every sample's tokens, zeros where a sample does not count. `logp` and `full` are a list a sample, as
/// the policy is now; without a list `full` is `logp`, and its coefficients are added to the policy's.
pub(crate) fn coefs(
    samples: &[Sample],
    g: &Grpo,
    logp: &[Vec<f32>],
    full: Option<&[Vec<f32>]>,
) -> (Vec<Coefs>, Measured) {
    let counted = counted(samples, g);
    let taken: Vec<usize> = (0..samples.len()).filter(|&i| counted[i]).collect();
    let tokens = |&i: &usize| {
        let s = &samples[i];
        Tokens {
            advantage: s.advantage.unwrap_or(0.0),
            logp: &logp[i],
            old: &s.logp,
            full: full.map_or(&logp[i], |full| &full[i]),
            reference: (!s.reference.is_empty()).then_some(&s.reference[..]),
        }
    };
    let batch: Vec<Tokens<'_>> = taken.iter().map(tokens).collect();
    let (found, measured) = g.loss().coefs(&batch);
    let mut all: Vec<Coefs> = samples
        .iter()
        .map(|s| Coefs { policy: vec![0.0; s.ids.len()], ..Coefs::default() })
        .collect();
    for (i, mut coefs) in taken.into_iter().zip(found) {
        if full.is_none() {
            let added = coefs.policy.iter_mut().zip(std::mem::take(&mut coefs.full));
            added.for_each(|(policy, full)| *policy += full);
        }
        all[i] = coefs;
    }
    (all, measured)
}

/// Whether some coefficient is not 0.
pub(crate) fn teaches(coefs: &[Coefs]) -> bool {
    let all = coefs.iter().flat_map(|c| c.policy.iter().chain(&c.full).chain(&c.entropy));
    all.into_iter().any(|&c| c != 0.0)
}
