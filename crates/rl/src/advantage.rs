//! Advantages: a completion's reward against those of its group, the completions of one prompt.

use serde::{Deserialize, Serialize};

/// Added to a group's standard deviation, as trl does.
pub const STD_EPSILON: f64 = 1e-4;

/// A group's advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// One a completion; `None` for one without a reward.
    pub advantages: Vec<Option<f64>>,
    /// Mean reward; `None` where no completion has one.
    pub mean: Option<f64>,
    /// Whether nothing can be learnt from the group: fewer than two rewards, or all the same. Every advantage is then
    /// exactly 0.
    pub uniform: bool,
}

/// `A = r − mean`, and with `by_std` divided by (sample standard deviation + 10⁻⁴). Sums are f64, in order.
pub fn of_group(rewards: &[Option<f64>], by_std: bool) -> Group {
    let given: Vec<f64> = rewards.iter().copied().flatten().collect();
    let n = given.len() as f64;
    let mean = (!given.is_empty()).then(|| given.iter().sum::<f64>() / n);
    let uniform = given.len() < 2 || given.iter().all(|&r| r == given[0]);
    let centre = mean.unwrap_or(0.0);
    let scale = if by_std && !uniform {
        let squares: f64 = given.iter().map(|r| (r - centre) * (r - centre)).sum();
        (squares / (n - 1.0)).sqrt() + STD_EPSILON
    } else {
        1.0
    };
    let advantage = |r: f64| if uniform { 0.0 } else { (r - centre) / scale };
    Group { advantages: rewards.iter().map(|r| r.map(advantage)).collect(), mean, uniform }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(rewards: &[f64]) -> Vec<Option<f64>> {
        rewards.iter().copied().map(Some).collect()
    }

    #[test]
    fn advantages_are_centred_and_scaled() {
        let plain = of_group(&some(&[1.0, 0.0, 0.0, 1.0]), false);
        assert_eq!(plain.advantages, some(&[0.5, -0.5, -0.5, 0.5]));
        assert_eq!((plain.mean, plain.uniform), (Some(0.5), false));
        // torch: ([1, 0, 0, 1] − 0.5) / (std + 1e-4), std = 0.57735027.
        let scaled = of_group(&some(&[1.0, 0.0, 0.0, 1.0]), true);
        assert!((scaled.advantages[0].unwrap() - 0.865_875_4).abs() < 1e-6, "{scaled:?}");
    }

    #[test]
    fn a_group_of_equal_rewards_has_no_advantage_and_says_so() {
        for rewards in [some(&[0.1, 0.1, 0.1]), some(&[7.0]), vec![None, Some(1.0)], vec![None]] {
            let group = of_group(&rewards, true);
            assert!(group.uniform);
            assert!(group.advantages.iter().flatten().all(|&a| a == 0.0));
        }
        assert_eq!(of_group(&[None], true).mean, None);
        assert!(!of_group(&some(&[0.1, 0.1, 0.2]), true).uniform);
    }

    #[test]
    fn a_dropped_completion_counts_in_no_mean() {
        let group = of_group(&[Some(1.0), None, Some(0.0)], false);
        assert_eq!(group.advantages, [Some(0.5), None, Some(-0.5)]);
    }
}
