//! Ranges of settings.

use std::fmt::Display;

use super::{Facts, Mode, Requested, Resolved, SettingsError, WeightType};

/// The largest count that is taken for a setting; above it lies a slip of the keyboard.
const COUNT_LIMIT: usize = 1 << 30;

impl Requested {
    /// Checks every value that has a range.
    pub(super) fn check(&self, r: &Resolved, facts: &Facts) -> Result<(), SettingsError> {
        let counts = [
            ("rank", r.rank.as_ref().map(|c| c.value)),
            ("epochs", r.epochs.as_ref().map(|c| c.value)),
            ("max_steps", r.max_steps.as_ref().map(|c| c.value)),
            ("micro_tokens", Some(r.micro_tokens.value)),
            ("micro_sequences", Some(r.micro_sequences.value)),
            ("accumulation", Some(r.accumulation.value)),
            ("save_every", Some(r.save_every.value)),
            ("keep_checkpoints", Some(r.keep_checkpoints.value)),
            ("eval_every", r.eval_every.as_ref().map(|c| c.value)),
            ("patience", r.patience.as_ref().map(|c| c.value)),
            ("threads", Some(r.threads.value)),
            ("tp", Some(r.tp.value)),
            ("cp", Some(r.cp.value)),
            ("dp", Some(r.dp.value)),
        ];
        for (key, value) in counts.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            self.within(
                key,
                value,
                (1..=COUNT_LIMIT).contains(&value),
                "at least 1, at most 2^30",
            )?;
        }
        for source in &r.data.value {
            let needed = format!("given a weight over 0 and at most {}", data::WEIGHT_LIMIT);
            self.within("data", source, data::is_weight(source.weight), &needed)?;
        }
        r.topology().check()?;
        let warmup = r.warmup_steps.as_ref().map_or(0, |c| c.value);
        self.within("warmup_steps", warmup, warmup <= COUNT_LIMIT, "at most 2^30")?;
        if let Some(steps) = &r.max_steps {
            let needed = format!("at most max_steps, {}", steps.value);
            self.within("warmup_steps", warmup, warmup <= steps.value, &needed)?;
        }
        let positive = |x: f64| (x as f32).is_finite() && x as f32 > 0.0;
        let not_negative = |x: f64| x == 0.0 || positive(x);
        let part = |x: f64| (0.0..1.0).contains(&x) && (x as f32) < 1.0;
        let ratio = r.warmup_ratio.as_ref().map_or(0.0, |c| c.value);
        let alpha = r.alpha.as_ref().map_or(1.0, |c| c.value);
        let minutes = r.save_every_minutes.as_ref().map_or(1.0, |c| c.value);
        let limit = r.loss_limit.as_ref().map_or(1.0, |c| c.value);
        let held_out = r.eval_fraction.as_ref().map_or(0.5, |c| c.value);
        let numbers = [
            ("save_every_minutes", minutes, positive(minutes), "a positive number"),
            ("loss_limit", limit, positive(limit), "a positive number of nats"),
            ("eval_fraction", held_out, held_out > 0.0 && held_out < 1.0, "between 0 and 1"),
            ("alpha", alpha, positive(alpha), "a positive number"),
            ("lr", r.lr.value, positive(r.lr.value), "a positive number"),
            ("eps", r.eps.value, positive(r.eps.value), "a positive number"),
            ("weight_decay", r.weight_decay.value, not_negative(r.weight_decay.value), "0 or more"),
            (
                "max_grad_norm",
                r.max_grad_norm.value,
                not_negative(r.max_grad_norm.value),
                "0 or more",
            ),
            ("beta1", r.beta1.value, part(r.beta1.value), "from 0 up to, not including, 1"),
            ("beta2", r.beta2.value, part(r.beta2.value), "from 0 up to, not including, 1"),
            ("warmup_ratio", ratio, part(ratio), "from 0 up to, not including, 1"),
        ];
        for (key, value, good, needed) in numbers {
            self.within(key, value, good, needed)?;
        }
        let longest = r.micro_tokens.value.min(facts.max_positions);
        let length = r.max_length.value;
        let needed = format!(
            "between 2 and {longest}, the lesser of micro_tokens ({}) and the model's context ({})",
            r.micro_tokens.value, facts.max_positions
        );
        self.within("max_length", length, (2..=longest).contains(&length), &needed)?;
        let rounds = r.mode.value == Mode::Full && r.weights.value == WeightType::Bf16;
        self.within(
            "weights",
            "bf16",
            !rounds,
            "f32 in mode `full`: small updates are lost in bf16 weights",
        )
    }
}

impl<S> Requested<S> {
    /// Refuses a value that is not `good`.
    ///
    /// # Errors
    /// [`SettingsError::OutOfRange`].
    pub fn within(
        &self,
        key: &'static str,
        value: impl Display,
        good: bool,
        needed: &str,
    ) -> Result<(), SettingsError> {
        if good {
            return Ok(());
        }
        Err(SettingsError::OutOfRange {
            key,
            value: value.to_string(),
            from: self.from(key),
            needed: needed.to_owned(),
        })
    }
}
