//! The learning rate of each step.

use canon::sin_cos;

use crate::settings::{Resolved, ScheduleKind};

/// The learning rate over a run of a known number of steps.
///
/// Over the first `warmup` steps it rises in equal parts, reaching the peak at the last of them; then it falls as the
/// schedule says, by `(step - warmup) / (steps - warmup)` of the way to zero, which it does not reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    peak: f64,
    kind: ScheduleKind,
    warmup: usize,
    steps: usize,
}

impl LearningRate {
    /// The learning rate of a run of `steps` optimizer steps.
    pub fn new(settings: &Resolved, steps: usize) -> LearningRate {
        let warmup = match (&settings.warmup_steps, &settings.warmup_ratio) {
            (Some(given), _) => given.value,
            (None, Some(ratio)) => (ratio.value * steps as f64).ceil() as usize,
            (None, None) => 0,
        };
        LearningRate {
            peak: settings.lr.value,
            kind: settings.schedule.value,
            warmup: warmup.min(steps),
            steps,
        }
    }

    /// Steps of the warm-up.
    pub fn warmup(&self) -> usize {
        self.warmup
    }

    /// The learning rate of a step, from 0. Basic operations in f64 and the canon's cosine, so it is the same number on
    /// every machine.
    pub fn at(&self, step: usize) -> f32 {
        if step < self.warmup {
            return (self.peak * ((step + 1) as f64 / self.warmup as f64)) as f32;
        }
        let length = self.steps.saturating_sub(self.warmup).max(1);
        let part = ((step - self.warmup) as f64 / length as f64).min(1.0);
        let factor = match self.kind {
            ScheduleKind::Constant => 1.0,
            ScheduleKind::Linear => 1.0 - part,
            ScheduleKind::Cosine => {
                let (_, cos) = sin_cos((std::f64::consts::PI * part) as f32);
                0.5 * (1.0 + f64::from(cos))
            }
        };
        (self.peak * factor) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lr(kind: ScheduleKind, warmup: usize, steps: usize) -> Vec<f32> {
        let lr = LearningRate { peak: 8.0, kind, warmup, steps };
        (0..steps).map(|step| lr.at(step)).collect()
    }

    #[test]
    fn it_rises_to_the_peak_and_falls_as_told() {
        assert_eq!(lr(ScheduleKind::Constant, 2, 4), [4.0, 8.0, 8.0, 8.0]);
        assert_eq!(lr(ScheduleKind::Linear, 2, 6), [4.0, 8.0, 8.0, 6.0, 4.0, 2.0]);
        assert_eq!(lr(ScheduleKind::Linear, 0, 2), [8.0, 4.0]);
        let cosine = lr(ScheduleKind::Cosine, 0, 4);
        let exact = [8.0, 4.0 + 8f32.sqrt(), 4.0, 4.0 - 8f32.sqrt()];
        for (ours, exact) in cosine.iter().zip(exact) {
            assert!((ours - exact).abs() < 1e-6, "{cosine:?}");
        }
    }

    #[test]
    fn a_warmup_as_long_as_the_run_only_rises() {
        assert_eq!(lr(ScheduleKind::Cosine, 4, 4), [2.0, 4.0, 6.0, 8.0]);
    }
}
