//! From logits to a token: penalty, temperature, top-k, min-p, top-p, and a counter-based draw; and the token's
//! log-prob under exactly that choice.

use crate::candidates::Candidates;
use canon::policy::{Kept, scale};
use canon::random::{Numbers, Purpose};
use std::collections::HashSet;
use std::ops::Range;

/// The lowest temperature of a draw. Far below it logits leave the range of f32; at it a draw has long been greedy.
pub const LEAST_TEMPERATURE: f32 = 1e-6;

/// How to choose a token. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise at least [`LEAST_TEMPERATURE`].
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

/// A chosen token with what it was chosen from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// The last kept candidate: with it the training program forms the same policy.
    pub kept: Kept,
    /// The token's log-prob among the kept candidates, at the temperature.
    pub logp: f32,
    /// Its log-prob over the whole vocabulary, at the same temperature.
    pub full_logp: f32,
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
            (
                "temperature",
                settings.temperature,
                settings.temperature == 0.0 || settings.temperature >= LEAST_TEMPERATURE,
                "0, which is greedy, or at least 1e-6",
            ),
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
    /// Logits are multiplied by 1 / temperature; candidates are ordered by (logit descending, id ascending); top-k,
    /// then min-p, then top-p keep a prefix of that order, the last by prefix sums of `e^(logit - best)` in f64; the
    /// draw is the first candidate whose prefix sum is above `u` times the kept sum. (Where nothing is dropped that sum is
    /// the tiles' and may be above every prefix sum in its last bits; where none is above its share, the share of
    /// the last prefix sum counts.)
    ///
    /// # Errors
    /// Logits that are not finite.
    pub fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        let mut candidates = self.candidates(logits)?;
        let (token, _) = self.pick(&mut candidates, position);
        Ok(token)
    }

    /// The same token with its log-probs. `leaves` are those of the vocabulary (`Graph::vocab_leaves`): with them the
    /// log-probs are the bits of the scoring and training programs, on any topology.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub fn choose_scored(
        &mut self,
        logits: &[f32],
        position: u64,
        leaves: &[Range<usize>],
    ) -> Result<Choice, SamplingError> {
        let mut candidates = self.candidates(logits)?;
        let (token, count) = self.pick(&mut candidates, position);
        let kept = candidates.kept(count);
        Ok(Choice {
            token,
            kept,
            logp: candidates.log_prob(token, kept, leaves),
            full_logp: candidates.log_prob(token, Kept::ALL, leaves),
        })
    }

    fn candidates(&self, logits: &[f32]) -> Result<Candidates, SamplingError> {
        if logits.is_empty() {
            return Err(SamplingError::NoLogits);
        }
        all_finite(logits)?;
        let (penalty, scale) = (self.settings.repetition_penalty, scale(self.settings.temperature));
        let mut scaled = logits.to_vec();
        if penalty != 1.0 {
            for &id in &self.seen {
                if let Some(logit) = scaled.get_mut(id as usize) {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        scaled.iter_mut().for_each(|logit| *logit *= scale);
        all_finite(&scaled)?;
        Ok(Candidates::new(scaled))
    }

    /// The chosen token, and how many candidates it was chosen from.
    fn pick(&mut self, candidates: &mut Candidates, position: u64) -> (u32, usize) {
        let (place, count) = match self.settings.temperature == 0.0 {
            // The mode of the whole distribution: nothing is dropped.
            true => (0, candidates.len()),
            false => self.draw(candidates, position),
        };
        let (_, token) = candidates.at(place);
        self.seen.insert(token);
        (token, count)
    }

    /// The place of the drawn candidate, and how many are kept.
    fn draw(&self, candidates: &mut Candidates, position: u64) -> (usize, usize) {
        let settings = &self.settings;
        let mut count = candidates.len();
        let mut total = candidates.total();
        if settings.top_k > 0 && settings.top_k < count {
            count = settings.top_k;
            total = (0..count).map(|place| candidates.weight(place)).sum();
        }
        if settings.min_p > 0.0 {
            // The best candidate's weight is exactly 1, so shares of it are the weights themselves.
            let least = f64::from(settings.min_p);
            count = (1..count).find(|&place| candidates.weight(place) < least).unwrap_or(count);
            total = (0..count).map(|place| candidates.weight(place)).sum();
        }
        if settings.top_p < 1.0 {
            let reach = f64::from(settings.top_p) * total;
            (count, total) = prefix(candidates, count, |sum| sum >= reach);
        }
        let place = place_of(candidates, count, f64::from(self.numbers.uniform(position)), total);
        (place, count)
    }
}

/// The place of the candidate that `u` in [0, 1) draws from the first `count`, whose weights sum to about `total`.
fn place_of(candidates: &mut Candidates, count: usize, u: f64, total: f64) -> usize {
    let target = u * total;
    let (mut upto, sum) = prefix(candidates, count, |sum| target < sum);
    if target >= sum {
        (upto, _) = prefix(candidates, count, |before| u * sum < before);
    }
    upto - 1
}

/// Refuses logits that are not all numbers.
fn all_finite(logits: &[f32]) -> Result<(), SamplingError> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        None => Ok(()),
        Some(token) => Err(SamplingError::NonFinite { token, value: logits[token] }),
    }
}

/// The least number of candidates whose sum of weights, in order, is `enough`, and that sum; all `count` where none is.
fn prefix(candidates: &mut Candidates, count: usize, enough: impl Fn(f64) -> bool) -> (usize, f64) {
    let mut sum = 0.0;
    for place in 0..count {
        sum += candidates.weight(place);
        if enough(sum) {
            return (place + 1, sum);
        }
    }
    (count, sum)
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
            (Sampling { top_k: 3, top_p: 0.6, ..base }, 1),
            (base, 3),
        ];
        for (settings, last) in cases {
            assert_eq!(drawn(settings, &logits).into_iter().max(), Some(last), "{settings:?}");
        }
    }

    const LEAF: Range<usize> = 0..128;

    #[test]
    fn top_p_renormalises_the_policy_and_not_the_vocabulary() {
        let logits = ln(&[0.5, 0.3, 0.15, 0.05]);
        let settings = Sampling { temperature: 1.0, top_p: 0.75, ..Sampling::default() };
        let choices = (0..100).map(|p| {
            sampler(settings).choose_scored(&logits, p, std::slice::from_ref(&LEAF)).unwrap()
        });
        let first = choices.into_iter().find(|choice| choice.token == 0).unwrap();
        assert!((first.logp - -0.470_003_6).abs() < 1e-7, "{first:?}");
        assert!((first.full_logp - -std::f32::consts::LN_2).abs() < 1e-7, "{first:?}");
        assert_eq!(first.kept, Kept { logit: logits[1], id: 1 });
    }

    #[test]
    fn a_token_is_the_same_with_its_log_prob_and_among_many() {
        let logits: Vec<f32> = (0..3000).map(|i| ((i * 7919) % 1013) as f32 / 300.0).collect();
        let leaves = [0..1536, 1536..3072];
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (500, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.9, 0.2)]
        {
            let settings =
                Sampling { temperature: 0.7, top_k, top_p, min_p, ..Sampling::default() };
            for position in 0..40 {
                let choice = sampler(settings).choose_scored(&logits, position, &leaves).unwrap();
                assert_eq!(sampler(settings).choose(&logits, position), Ok(choice.token));
                let scaled = scale(0.7) * logits[choice.token as usize];
                assert!(choice.kept.keeps(scaled, choice.token));
                assert!(choice.logp >= choice.full_logp);
                let whole = choice.kept == Kept::ALL;
                assert_eq!(whole, (top_k, top_p) == (0, 1.0));
                assert!(!whole || choice.logp.to_bits() == choice.full_logp.to_bits());
            }
        }
    }

    #[test]
    fn a_greedy_token_has_the_log_prob_of_temperature_1() {
        let logits = ln(&[0.2, 0.5, 0.3]);
        let choice = sampler(Sampling::default())
            .choose_scored(&logits, 0, std::slice::from_ref(&LEAF))
            .unwrap();
        assert_eq!((choice.token, choice.kept), (1, Kept::ALL));
        assert!((choice.logp - 0.5f32.ln()).abs() < 1e-6);
    }

    /// A total that is a little above the sum in order must not make the last candidate, of no weight, the drawn one.
    #[test]
    fn a_draw_at_the_very_end_is_of_a_candidate_with_weight() {
        let mut logits = vec![-60.0; 300];
        logits[..2].copy_from_slice(&[1.0, 0.0]);
        let mut candidates = Candidates::new(logits);
        let (_, sum) = prefix(&mut candidates, 300, |_| false);
        let u = 1.0 - f64::from(f32::EPSILON) / 2.0;
        assert_eq!(place_of(&mut candidates, 300, u, sum), 1);
        assert_eq!(place_of(&mut candidates, 300, u, sum * (1.0 + 1e-7)), 1);
        assert_eq!(place_of(&mut candidates, 300, 0.0, sum), 0);
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
            Sampling { temperature: 1e-38, ..Sampling::default() },
            Sampling { top_p: 0.0, ..Sampling::default() },
            Sampling { min_p: 1.0, ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
        ];
        for settings in bad {
            assert!(matches!(Sampler::new(settings, 0), Err(SamplingError::Setting { .. })));
        }
        let coldest = Sampling { temperature: LEAST_TEMPERATURE, ..Sampling::default() };
        assert_eq!(sampler(coldest).choose(&[1e4, -1e4, 1.0002e4], 0), Ok(2));
        let hot = Sampling { repetition_penalty: 1e-38, ..Sampling::default() };
        let mut hot = sampler(hot);
        hot.observe(&[1]);
        let refused = hot.choose(&[0.0, 1e4], 0);
        assert!(matches!(refused, Err(SamplingError::NonFinite { token: 1, .. })));
        assert_eq!(sampler(Sampling::default()).choose(&[], 0), Err(SamplingError::NoLogits));
        let refused = sampler(Sampling::default()).choose(&[0.0, f32::NAN], 0);
        assert!(matches!(refused, Err(SamplingError::NonFinite { token: 1, .. })));
    }
}
