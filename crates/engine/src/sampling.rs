//! From logits to a token: penalty, temperature, top-k, top-p, min-p, and a counter-based draw.

use canon::random::{Numbers, Purpose};
use std::collections::HashSet;

/// How to choose a token. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Most candidates; 0 for all.
    pub top_k: usize,
    /// Smallest set of candidates whose probability reaches this; 1 for all.
    pub top_p: f32,
    /// Candidates with less than this share of the best one's probability are dropped; 0 for none.
    pub min_p: f32,
    /// Positive logits of tokens that were there are divided by this, negative ones multiplied; 1 for none.
    pub repetition_penalty: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// A setting or a row of logits that no token can be chosen with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// Out of its range.
    #[error("{name} = {value}: must be {range}")]
    Setting {
        /// Which.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
    /// No logits at all.
    #[error("there are no logits to choose from")]
    NoLogits,
    /// Logits that are not all numbers.
    #[error("the logit of token {token} is {value}: a weight or an activation is not finite")]
    NonFinite {
        /// First such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
}

/// Chooses tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Sampling,
    numbers: Numbers,
    seen: HashSet<u32>,
}

impl Sampler {
    /// A sampler of sample `id`; draws depend on (seed, id, position) alone.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(settings: Sampling, id: u64) -> Result<Self, SamplingError> {
        let checks = [
            ("temperature", settings.temperature, settings.temperature >= 0.0, "0 or more"),
            (
                "top_p",
                settings.top_p,
                settings.top_p > 0.0 && settings.top_p <= 1.0,
                "over 0, at most 1",
            ),
            ("min_p", settings.min_p, (0.0..1.0).contains(&settings.min_p), "0 or more, under 1"),
            (
                "repetition_penalty",
                settings.repetition_penalty,
                settings.repetition_penalty > 0.0,
                "over 0",
            ),
        ];
        for (name, value, good, range) in checks {
            if !good || !value.is_finite() {
                return Err(SamplingError::Setting { name, value, range });
            }
        }
        let numbers = Numbers::new(settings.seed, Purpose::Sample, id);
        Ok(Sampler { settings, numbers, seen: HashSet::new() })
    }

    /// Tells tokens of the prompt, for the repetition penalty.
    pub fn observe(&mut self, ids: &[u32]) {
        self.seen.extend(ids);
    }

    /// The token at `position` of the sequence, from logits over the vocabulary.
    ///
    /// Candidates are ordered by (logit descending, id ascending); probabilities are summed in that order.
    ///
    /// # Errors
    /// Logits that are not finite.
    pub fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        if logits.is_empty() {
            return Err(SamplingError::NoLogits);
        }
        if let Some(token) = logits.iter().position(|l| !l.is_finite()) {
            return Err(SamplingError::NonFinite { token, value: logits[token] });
        }
        let penalty = self.settings.repetition_penalty;
        let penalised = |id: usize| {
            let logit = logits[id];
            if penalty == 1.0 || !self.seen.contains(&(id as u32)) {
                logit
            } else if logit > 0.0 {
                logit / penalty
            } else {
                logit * penalty
            }
        };
        let token = if self.settings.temperature == 0.0 {
            let best = (0..logits.len())
                .map(|id| (penalised(id), id as u32))
                .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
            best.map_or(0, |(_, id)| id)
        } else {
            let all = (0..logits.len()).map(|id| (penalised(id), id as u32)).collect();
            self.draw(all, position)
        };
        self.seen.insert(token);
        Ok(token)
    }

    fn draw(&self, mut candidates: Vec<(f32, u32)>, position: u64) -> u32 {
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let settings = &self.settings;
        if settings.top_k > 0 {
            candidates.truncate(settings.top_k);
        }
        let best = candidates[0].0;
        for candidate in &mut candidates {
            candidate.0 = canon::exp((candidate.0 - best) / settings.temperature);
        }
        // The best candidate's weight is exactly 1, so shares of it are the weights themselves.
        let kept = candidates.iter().take_while(|c| c.0 >= settings.min_p).count();
        candidates.truncate(kept.max(1));
        let total: f32 = candidates.iter().map(|c| c.0).sum();
        if settings.top_p < 1.0 {
            let mut sum = 0.0;
            let mut kept = 0;
            for candidate in &candidates {
                sum += candidate.0;
                kept += 1;
                if sum >= settings.top_p * total {
                    break;
                }
            }
            candidates.truncate(kept);
        }
        let total: f32 = candidates.iter().map(|c| c.0).sum();
        let target = self.numbers.uniform(position) * total;
        let mut sum = 0.0;
        for candidate in &candidates {
            sum += candidate.0;
            if target < sum {
                return candidate.1;
            }
        }
        candidates[candidates.len() - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(settings: Sampling) -> Sampler {
        Sampler::new(settings, 7).unwrap()
    }

    /// Tokens drawn at many positions.
    fn drawn(settings: Sampling, logits: &[f32]) -> Vec<u32> {
        (0..4000).map(|p| sampler(settings).choose(logits, p).unwrap()).collect()
    }

    fn ln(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn greedy_takes_the_lower_id_of_a_tie() {
        assert_eq!(sampler(Sampling::default()).choose(&[1.0, 3.0, 3.0], 0), Ok(1));
    }

    #[test]
    fn draws_follow_probabilities() {
        let settings = Sampling { temperature: 1.0, ..Sampling::default() };
        let tokens = drawn(settings, &ln(&[0.2, 0.5, 0.3]));
        for (id, p) in [(0, 0.2), (1, 0.5), (2, 0.3)] {
            let share = tokens.iter().filter(|&&t| t == id).count() as f32 / 4000.0;
            assert!((share - p).abs() < 0.03, "{id}: {share}");
        }
    }

    #[test]
    fn each_filter_drops_what_it_should() {
        let logits = ln(&[0.5, 0.3, 0.15, 0.05]);
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        let cases = [
            (Sampling { top_k: 2, ..base }, 1),
            (Sampling { top_p: 0.75, ..base }, 1),
            (Sampling { min_p: 0.25, ..base }, 2),
            (base, 3),
        ];
        for (settings, last) in cases {
            assert_eq!(drawn(settings, &logits).into_iter().max(), Some(last), "{settings:?}");
        }
    }

    #[test]
    fn a_repeated_token_is_penalised() {
        let mut sampler = sampler(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        sampler.observe(&[1]);
        assert_eq!(sampler.choose(&[2.0, 3.0], 0), Ok(0));
        // Both have been there now: 2/2 < 3/2.
        assert_eq!(sampler.choose(&[2.0, 3.0], 1), Ok(1));
    }

    #[test]
    fn bad_settings_and_logits_are_refused() {
        let bad = [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { top_p: 0.0, ..Sampling::default() },
            Sampling { min_p: 1.0, ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
        ];
        for settings in bad {
            assert!(matches!(Sampler::new(settings, 0), Err(SamplingError::Setting { .. })));
        }
        assert_eq!(sampler(Sampling::default()).choose(&[], 0), Err(SamplingError::NoLogits));
        let refused = sampler(Sampling::default()).choose(&[0.0, f32::NAN], 0);
        assert!(matches!(refused, Err(SamplingError::NonFinite { token: 1, .. })));
    }
}
