//! From what was asked to what runs.

use formats::{Checkpoint, Dtype};

use super::{
    Chosen, Date, Mode, OrderKind, Profile, Requested, Resolved, ScheduleKind, SettingsError, Size,
    TooLongPolicy, WeightType,
};

/// Passes over the data where nothing says how long to train.
pub(crate) const EPOCHS: usize = 1;
const RANK: usize = 16;
const LORA_LR: f64 = 2e-4;
const FULL_LR: f64 = 2e-5;
const WARMUP_RATIO: f64 = 0.03;
const MICRO_TOKENS: usize = 2048;
/// A sequence needs a few words of tables in the plan, so there is room for many short ones.
const TOKENS_A_SEQUENCE: usize = 16;

/// Sequences that a micro-batch of so many tokens has room for, where nothing says otherwise.
pub fn default_sequences(tokens: usize) -> usize {
    tokens.div_ceil(TOKENS_A_SEQUENCE).max(1)
}
const SAVE_EVERY: usize = 100;
const KEEP_CHECKPOINTS: usize = 2;
const ENCODE_CACHE_LIMIT: Size = Size(16 << 30);
const EVAL_EVERY: usize = 100;

/// What defaults depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The model's longest context, tokens.
    pub max_positions: usize,
    /// Whether bf16 holds every weight matrix of the checkpoint without rounding.
    pub stored_as_bf16: bool,
    /// Threads that the machine has for this process.
    pub threads: usize,
    /// Today, where the model's chat template asks for the date.
    pub template_date: Option<Date>,
}

impl Facts {
    /// The facts of a checkpoint and this machine.
    pub fn of(checkpoint: &Checkpoint) -> Facts {
        let mut matrices = checkpoint.tensors().iter().filter(|t| t.shape.len() == 2);
        Facts {
            max_positions: checkpoint.config().max_position_embeddings,
            stored_as_bf16: matrices.all(|tensor| tensor.dtype == Dtype::Bf16),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            template_date: None,
        }
    }

    /// The same with a chat template that does or does not ask for the date.
    #[must_use]
    pub fn with_template(self, asks_for_date: bool) -> Facts {
        Facts { template_date: asks_for_date.then(Date::today), ..self }
    }
}

impl Requested {
    /// Chooses every setting that was not given and checks every one.
    ///
    /// # Errors
    /// [`SettingsError`]: a key missing, ignored in the mode, in conflict with another, or out of range.
    pub fn resolve(&self, facts: &Facts) -> Result<Resolved, SettingsError> {
        let s = &self.settings;
        self.refuse_both("epochs", "max_steps")?;
        self.refuse_both("warmup_steps", "warmup_ratio")?;
        if s.encode_cache == Some(false) {
            self.refuse_both("encode_cache", "encode_cache_limit")?;
        }
        self.refuse_both("eval", "eval_fraction")?;
        let evaluates = s.eval.is_some() || s.eval_fraction.is_some();
        if !evaluates {
            self.refuse_evaluation_keys()?;
        }
        let mode = self.or_default("mode", s.mode, Mode::Lora);
        let lora = mode.value == Mode::Lora;
        if !lora {
            self.refuse_lora_keys()?;
        }
        let rank = self.or_default("rank", s.rank, RANK);
        let alpha =
            self.or("alpha", s.alpha, || (2.0 * rank.value as f64, "twice the rank".into()));
        let rslora = self.or_default("rslora", s.rslora, false);
        let targets = self.or_default("targets", s.targets.clone(), vec!["all-linear".into()]);
        let lr = self.or("lr", s.lr, || match mode.value {
            Mode::Lora => (LORA_LR, "default of mode lora".into()),
            Mode::Full => (FULL_LR, "default of mode full".into()),
        });
        let micro_tokens = self.or_default("micro_tokens", s.micro_tokens, MICRO_TOKENS);
        let budget = micro_tokens.value;
        let mut resolved = Resolved {
            model: self.require("model", s.model.clone())?,
            data: self.require("data", s.data.clone())?,
            out: self.require("out", s.out.clone())?,
            rank: lora.then_some(rank),
            alpha: lora.then_some(alpha),
            rslora: lora.then_some(rslora),
            targets: lora.then_some(targets),
            mode,
            lr,
            schedule: self.or_default("schedule", s.schedule, ScheduleKind::Cosine),
            warmup_steps: self.given("warmup_steps", s.warmup_steps),
            warmup_ratio: match s.warmup_steps {
                Some(_) => None,
                None => Some(self.or_default("warmup_ratio", s.warmup_ratio, WARMUP_RATIO)),
            },
            epochs: match s.max_steps {
                Some(_) => None,
                None => Some(self.or_default("epochs", s.epochs, EPOCHS)),
            },
            max_steps: self.given("max_steps", s.max_steps),
            micro_sequences: self.micro_sequences(budget),
            micro_tokens,
            accumulation: self.or_default("accumulation", s.accumulation, 1),
            max_length: self.max_length(budget, facts),
            too_long: self.or_default("too_long", s.too_long, TooLongPolicy::Refuse),
            template_date: self.template_date(facts)?,
            order: self.or_default("order", s.order, OrderKind::Shuffled),
            encode_cache: self.or_default("encode_cache", s.encode_cache, true),
            encode_cache_limit: self.or_default(
                "encode_cache_limit",
                s.encode_cache_limit,
                ENCODE_CACHE_LIMIT,
            ),
            weight_decay: self.or_default("weight_decay", s.weight_decay, 0.0),
            beta1: self.or_default("beta1", s.beta1, 0.9),
            beta2: self.or_default("beta2", s.beta2, 0.999),
            eps: self.or_default("eps", s.eps, 1e-8),
            max_grad_norm: self.or_default("max_grad_norm", s.max_grad_norm, 1.0),
            seed: self.or_default("seed", s.seed, 0),
            save_every: self.or_default("save_every", s.save_every, SAVE_EVERY),
            keep_checkpoints: self.or_default(
                "keep_checkpoints",
                s.keep_checkpoints,
                KEEP_CHECKPOINTS,
            ),
            save_every_minutes: self.given("save_every_minutes", s.save_every_minutes),
            eval: self.given("eval", s.eval.clone()),
            eval_fraction: self.given("eval_fraction", s.eval_fraction),
            eval_every: evaluates.then(|| self.or_default("eval_every", s.eval_every, EVAL_EVERY)),
            patience: self.given("patience", s.patience),
            loss_limit: self.given("loss_limit", s.loss_limit),
            memory: self.given("memory", s.memory),
            threads: self.threads_asked(facts),
            tp: self.or_default("tp", s.tp, 1),
            cp: self.or_default("cp", s.cp, 1),
            dp: self.or_default("dp", s.dp, 1),
            profile: self.or_default("profile", s.profile, Profile::CpuF32),
            weights: self.weights(lora, facts),
        };
        self.check(&resolved, facts)?;
        resolved.threads = self.threads(facts, resolved.topology().ranks());
        Ok(resolved)
    }

    fn threads_asked(&self, facts: &Facts) -> Chosen<usize> {
        self.or("threads", self.settings.threads, || (facts.threads, "this machine's".into()))
    }

    /// Threads that run: as many on each of the ranks, at least one, and no more than were asked for beyond that.
    pub fn threads(&self, facts: &Facts, ranks: usize) -> Chosen<usize> {
        let Chosen { value: asked, why } = self.threads_asked(facts);
        let each = if asked < ranks { 1 } else { asked / ranks };
        match each * ranks {
            value if value == asked => Chosen { value, why },
            value => {
                let why = format!("{each} on each of {ranks} ranks, of {asked} ({why})");
                Chosen { value, why }
            }
        }
    }
}

impl<S> Requested<S> {
    /// A value as given, or by default with the reason.
    pub fn or<T>(
        &self,
        key: &str,
        given: Option<T>,
        default: impl FnOnce() -> (T, String),
    ) -> Chosen<T> {
        let (value, why) = match given {
            Some(value) => (value, self.from(key)),
            None => default(),
        };
        Chosen { value, why }
    }

    /// A value as given, or one that is always the default.
    pub fn or_default<T>(&self, key: &str, given: Option<T>, default: T) -> Chosen<T> {
        self.or(key, given, || (default, "default".into()))
    }

    /// A value if it was given.
    pub fn given<T>(&self, key: &str, given: Option<T>) -> Option<Chosen<T>> {
        let why = self.from(key);
        given.map(|value| Chosen { value, why })
    }

    /// A value that must be given.
    ///
    /// # Errors
    /// [`SettingsError::Missing`].
    pub fn require<T>(
        &self,
        key: &'static str,
        given: Option<T>,
    ) -> Result<Chosen<T>, SettingsError> {
        self.given(key, given).ok_or(SettingsError::Missing { key })
    }
}

impl Requested {
    fn refuse_both(&self, first: &'static str, second: &'static str) -> Result<(), SettingsError> {
        if [first, second].iter().all(|key| self.sources.contains_key(*key)) {
            return Err(SettingsError::Conflict { first, second });
        }
        Ok(())
    }

    fn refuse_evaluation_keys(&self) -> Result<(), SettingsError> {
        for key in ["eval_every", "patience"] {
            if self.sources.contains_key(key) {
                return Err(SettingsError::NothingHeldOut { key, from: self.from(key) });
            }
        }
        Ok(())
    }

    fn refuse_lora_keys(&self) -> Result<(), SettingsError> {
        for key in ["rank", "alpha", "rslora", "targets"] {
            if self.sources.contains_key(key) {
                let from = self.from(key);
                return Err(SettingsError::Ignored { key, from, mode: "full" });
            }
        }
        Ok(())
    }

    fn max_length(&self, budget: usize, facts: &Facts) -> Chosen<usize> {
        self.or("max_length", self.settings.max_length, || {
            if facts.max_positions < budget {
                (facts.max_positions, "the model's context".into())
            } else {
                (budget, "micro_tokens: a sample is never split".into())
            }
        })
    }

    fn template_date(&self, facts: &Facts) -> Result<Option<Chosen<Date>>, SettingsError> {
        let key = "template_date";
        match (self.settings.template_date, facts.template_date) {
            (Some(_), None) => Err(SettingsError::NoDate { key, from: self.from(key) }),
            (given, today) => {
                let default = |today| (today, "the day of the first start".to_owned());
                Ok(today.map(|today| self.or(key, given, || default(today))))
            }
        }
    }

    fn micro_sequences(&self, budget: usize) -> Chosen<usize> {
        self.or("micro_sequences", self.settings.micro_sequences, || {
            (
                default_sequences(budget),
                format!("one for every {TOKENS_A_SEQUENCE} of micro_tokens"),
            )
        })
    }

    fn weights(&self, lora: bool, facts: &Facts) -> Chosen<WeightType> {
        let auto = || match (lora, facts.stored_as_bf16) {
            (true, true) => (WeightType::Bf16, "the checkpoint stores bf16"),
            (true, false) => (WeightType::F32, "bf16 would round the checkpoint's weights"),
            (false, _) => (WeightType::F32, "small updates are lost in bf16 weights"),
        };
        match self.settings.weights {
            None | Some(WeightType::Auto) => {
                let (value, why) = auto();
                Chosen { value, why: why.into() }
            }
            Some(value) => Chosen { value, why: self.from("weights") },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use data::Extent;
    use std::path::Path;

    const FACTS: Facts =
        Facts { max_positions: 8192, stored_as_bf16: true, threads: 4, template_date: None };
    const BASE: &str = "model = \"m\"\ndata = [\"d.jsonl\"]\nout = \"o\"\n";

    fn resolve(text: &str) -> Result<Resolved, SettingsError> {
        let path = Path::new("run.toml");
        let file = Settings::from_toml(text, path).unwrap();
        Requested::new(Some((path.into(), file)), Settings::default())?.resolve(&FACTS)
    }

    fn with(text: &str) -> Result<Resolved, SettingsError> {
        resolve(&format!("{BASE}{text}"))
    }

    #[test]
    fn every_choice_says_why() {
        let r = with("rank = 8\n").unwrap();
        let rank = r.rank.as_ref().unwrap();
        assert_eq!((rank.value, rank.why.as_str()), (8, "run.toml"));
        let alpha = r.alpha.as_ref().unwrap();
        assert_eq!((alpha.value, alpha.why.as_str()), (16.0, "twice the rank"));
        assert_eq!((r.lr.value, r.lr.why.as_str()), (2e-4, "default of mode lora"));
        assert_eq!((r.max_length.value, r.micro_sequences.value), (2048, 128));
        assert_eq!(r.weights.value, WeightType::Bf16);
        assert_eq!((r.epochs.map(|c| c.value), r.max_steps), (Some(1), None));
    }

    #[test]
    fn full_mode_trains_f32_weights_and_has_no_lora() {
        let r = with("mode = \"full\"\nmax_steps = 3\nwarmup_steps = 1").unwrap();
        assert_eq!((r.lora(), r.lr.value, r.weights.value), (None, 2e-5, WeightType::F32));
        assert_eq!((r.extent(), r.epochs.is_none()), (Extent::Steps(3), true));
        assert!(r.warmup_ratio.is_none());
        assert_eq!(r.build_options().train, families::Train::Full);
    }

    #[test]
    fn what_a_mode_ignores_is_refused() {
        for key in ["rank = 8", "alpha = 8.0", "rslora = true", "targets = [\"q_proj\"]"] {
            let error = with(&format!("mode = \"full\"\n{key}")).unwrap_err();
            assert!(matches!(error, SettingsError::Ignored { mode: "full", .. }), "{key}: {error}");
            assert!(with(key).is_ok(), "{key}");
        }
    }

    #[test]
    fn evaluation_keys_without_held_out_samples_are_refused() {
        for key in ["eval_every = 5", "patience = 2"] {
            let error = with(key).unwrap_err();
            assert!(matches!(error, SettingsError::NothingHeldOut { .. }), "{key}: {error}");
            for held_out in ["eval = [\"e.jsonl\"]", "eval_fraction = 0.1"] {
                assert!(with(&format!("{key}\n{held_out}")).is_ok(), "{key} {held_out}");
            }
        }
        let r = with("eval_fraction = 0.1").unwrap();
        assert_eq!(r.eval_every.as_ref().map(|c| c.value), Some(EVAL_EVERY));
        assert_eq!(r.score_shape(), Some((2048, 128)));
        assert_eq!(with("").unwrap().score_shape(), None);
    }

    #[test]
    fn two_ways_to_say_a_thing_are_refused() {
        let evaluation = "eval = [\"e\"]\neval_fraction = 0.1";
        for keys in
            ["epochs = 1\nmax_steps = 2", "warmup_steps = 1\nwarmup_ratio = 0.1", evaluation]
        {
            let error = with(keys).unwrap_err();
            assert!(matches!(error, SettingsError::Conflict { .. }), "{error}");
        }
    }

    #[test]
    fn what_must_be_given_is_named() {
        for (text, missing) in [
            ("data = [\"d\"]\nout = \"o\"", "model"),
            ("model = \"m\"\nout = \"o\"", "data"),
            ("model = \"m\"\ndata = [\"d\"]", "out"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(matches!(error, SettingsError::Missing { key } if key == missing), "{error}");
        }
    }

    #[test]
    fn a_weight_that_is_none_names_its_source() {
        for weight in ["0", "0.0", "-1", "nan", "inf", "1001"] {
            let data = format!("data = [\"a\", {{path = \"b\", weight = {weight}}}]");
            let error = resolve(&format!("model = \"m\"\nout = \"o\"\n{data}")).unwrap_err();
            assert!(matches!(error, SettingsError::OutOfRange { key: "data", .. }), "{error}");
            assert!(error.to_string().contains("`data` is b@"), "{error}");
        }
        let good = "data = [\"a\", {path = \"b\", weight = 0.5}]";
        let resolved = resolve(&format!("model = \"m\"\nout = \"o\"\n{good}")).unwrap();
        assert_eq!(resolved.sources()[1].weight, 0.5);
    }

    #[test]
    fn threads_are_those_that_run() {
        for (text, value, why) in [
            ("", 4, "this machine's"),
            ("threads = 3", 3, "run.toml"),
            ("threads = 3\ndp = 2", 2, "1 on each of 2 ranks, of 3 (run.toml)"),
            ("dp = 4", 4, "this machine's"),
            ("cp = 2\ndp = 4", 8, "1 on each of 8 ranks, of 4 (this machine's)"),
            ("threads = 9\ntp = 2\ndp = 2", 8, "2 on each of 4 ranks, of 9 (run.toml)"),
        ] {
            let threads = with(text).unwrap().threads;
            assert_eq!((threads.value, &*threads.why), (value, why), "{text}");
        }
    }

    #[test]
    fn a_template_is_told_a_day_only_if_it_asks() {
        let r = with("").unwrap();
        assert_eq!(r.template_date, None);
        let error = with("template_date = \"2024-07-26\"").unwrap_err();
        assert!(matches!(error, SettingsError::NoDate { .. }), "{error}");
        let today: Date = "2026-12-01".parse().unwrap();
        let facts = Facts { template_date: Some(today), ..FACTS };
        let resolve = |text: &str| {
            let file =
                Settings::from_toml(&format!("{BASE}{text}"), Path::new("run.toml")).unwrap();
            let requested = Requested::new(Some(("run.toml".into(), file)), Settings::default());
            requested.unwrap().resolve(&facts).unwrap().template_date.unwrap()
        };
        assert_eq!(resolve("").value, today);
        let given = resolve("template_date = \"2024-07-26\"");
        assert_eq!((given.value.to_string().as_str(), &*given.why), ("2024-07-26", "run.toml"));
    }

    #[test]
    fn a_cache_limit_without_a_cache_is_refused() {
        let error = with("encode_cache = false\nencode_cache_limit = \"1GiB\"").unwrap_err();
        assert!(matches!(error, SettingsError::Conflict { .. }), "{error}");
        assert!(
            with("encode_cache = false").is_ok() && with("encode_cache_limit = \"1GiB\"").is_ok()
        );
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let bad = [
            "rank = 0",
            "epochs = 0",
            "max_steps = 0",
            "micro_tokens = 0",
            "micro_sequences = 0",
            "accumulation = 0",
            "save_every = 0",
            "keep_checkpoints = 0",
            "threads = 0",
            "threads = 9999999999",
            "warmup_steps = 9999999999",
            "max_steps = 5\nwarmup_steps = 6",
            "lr = 0.0",
            "lr = nan",
            "lr = inf",
            "lr = -1e-4",
            "lr = 1e-60",
            "alpha = 0.0",
            "eps = 0.0",
            "weight_decay = -0.1",
            "max_grad_norm = -1.0",
            "beta1 = 1.0",
            "beta2 = 0.99999999999",
            "beta1 = -0.1",
            "warmup_ratio = 1.0",
            "max_length = 1",
            "max_length = 2049",
            "micro_tokens = 10000\nmax_length = 8193",
            "mode = \"full\"\nweights = \"bf16\"",
            "save_every_minutes = 0.0",
            "save_every_minutes = nan",
            "loss_limit = 0.0",
            "eval_fraction = 0.0",
            "eval_fraction = 1.0",
            "eval_fraction = 0.1\neval_every = 0",
            "eval_fraction = 0.1\npatience = 0",
        ];
        for text in bad {
            let error = with(text).unwrap_err();
            assert!(matches!(error, SettingsError::OutOfRange { .. }), "{text}: {error}");
        }
        let good = "max_length = 2048\nweight_decay = 0.0\nmax_grad_norm = 0.0\nbeta1 = 0.0\nwarmup_ratio = 0.0";
        with(good).unwrap();
        with("max_steps = 5\nwarmup_steps = 5").unwrap();
    }
}
