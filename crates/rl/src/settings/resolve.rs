//! From what was asked to what runs.

use std::path::PathBuf;
use std::time::Duration;

use canon::policy::scale;
use engine::{Job, LEAST_TEMPERATURE, Sampling, TrainShape};
use program::Topology;
use program::keep::Keep;
use program::lower::Head;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use train::{Chosen, Facts, Mode, Requested, SettingsError};

use super::{FailurePolicy, KlPlace, MethodKind, RewardKind, RlSettings};
use crate::loss::{KlEstimator, Normalise, PolicyLoss};
use crate::rewards::{Endpoint, ExternalProgram, Grader, Verifier, VerifierError};

/// Keys of training that a run of this kind reads.
const TRAIN_KEYS: [&str; 32] = [
    "model",
    "data",
    "out",
    "mode",
    "rank",
    "alpha",
    "rslora",
    "targets",
    "lr",
    "schedule",
    "warmup_steps",
    "warmup_ratio",
    "max_steps",
    "micro_tokens",
    "micro_sequences",
    "max_length",
    "template_date",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "max_grad_norm",
    "seed",
    "save_every",
    "keep_checkpoints",
    "memory",
    "threads",
    "profile",
    "weights",
    "tp",
    "cp",
    "dp",
];

/// Keys that only groups read, and only pairs.
const GRPO_KEYS: [&str; 29] = [
    "prompts",
    "group",
    "updates",
    "max_tokens",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "normalise",
    "advantage_std",
    "filter_groups",
    "clip_low",
    "clip_high",
    "kl_coef",
    "kl_estimator",
    "kl_in",
    "entropy_coef",
    "reward",
    "reward_pattern",
    "reward_schema",
    "reward_program",
    "reward_url",
    "reward_timeout_s",
    "reward_failure",
    "eval",
    "eval_every",
    "rollout_sequences",
    "rollout_tp",
    "rollout_cp",
];
/// Keys of training that no run of this kind reads.
const OTHER_KEYS: [&str; 10] = [
    "epochs",
    "accumulation",
    "too_long",
    "order",
    "encode_cache",
    "encode_cache_limit",
    "save_every_minutes",
    "eval_fraction",
    "patience",
    "loss_limit",
];
const DPO_KEYS: [&str; 2] = ["beta", "pairs"];
const SHARED_KEYS: [&str; 2] = ["method", "raw"];

/// The largest count taken for a setting.
const COUNT_LIMIT: usize = 1 << 20;

/// Steps where nothing says how many.
const STEPS: usize = 100;

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// Model, adapter, optimizer, memory, topology.
    pub train: train::Resolved,
    /// Give prompts as they are.
    pub raw: Chosen<bool>,
    /// The algorithm with its settings.
    pub method: Method,
}

/// The algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Groups.
    Grpo(Box<Grpo>),
    /// Pairs.
    Dpo(Dpo),
}

/// Settings of groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grpo {
    /// Prompts of a step.
    pub prompts: Chosen<usize>,
    /// Completions of a prompt.
    pub group: Chosen<usize>,
    /// Updates of a step.
    pub updates: Chosen<usize>,
    /// Most tokens of a completion.
    pub max_tokens: Chosen<usize>,
    /// Stop texts.
    pub stop: Chosen<Vec<String>>,
    /// Temperature.
    pub temperature: Chosen<f64>,
    /// Most candidates; 0 for all.
    pub top_k: Chosen<usize>,
    /// Smallest set of candidates by probability.
    pub top_p: Chosen<f64>,
    /// How terms are averaged.
    pub normalise: Chosen<Normalise>,
    /// Whether advantages are divided by the group's deviation.
    pub advantage_std: Chosen<bool>,
    /// Whether groups of equal rewards are left out of averages.
    pub filter_groups: Chosen<bool>,
    /// Lower clip.
    pub clip_low: Chosen<f64>,
    /// Upper clip.
    pub clip_high: Chosen<f64>,
    /// Weight of the divergence.
    pub kl_coef: Chosen<f64>,
    /// Its estimator, where there is one.
    pub kl_estimator: Option<Chosen<KlEstimator>>,
    /// Where it is charged, where there is one.
    pub kl_in: Option<Chosen<KlPlace>>,
    /// Weight of the entropy bonus.
    pub entropy_coef: Chosen<f64>,
    /// Who grades.
    pub reward: Chosen<Reward>,
    /// What becomes of a completion that could not be graded.
    pub reward_failure: Chosen<FailurePolicy>,
    /// Most sequences at once.
    pub rollout_sequences: Chosen<usize>,
    /// Tensor-parallel ranks that generate.
    pub rollout_tp: Chosen<usize>,
    /// Context-parallel ranks that generate.
    pub rollout_cp: Chosen<usize>,
}

/// Settings of pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dpo {
    /// Weight of the divergence.
    pub beta: Chosen<f64>,
    /// Pairs of a step.
    pub pairs: Chosen<usize>,
}

/// Who grades, with what that takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reward {
    /// By the last number.
    Numeric,
    /// By the whole text.
    Exact,
    /// By a pattern.
    Regex(String),
    /// By a schema's file.
    JsonSchema(PathBuf),
    /// By the number after `####`.
    Gsm8k,
    /// By a program, within seconds.
    Program(Vec<String>, f64),
    /// By a server, within seconds.
    Http(String, f64),
}

/// Seconds that an outside grader has, where nothing says.
const REWARD_TIMEOUT_S: f64 = 60.0;

impl Reward {
    /// The grader.
    ///
    /// # Errors
    /// A pattern or a schema that is wrong.
    pub fn grader(&self) -> Result<Grader, VerifierError> {
        let verifier = match self {
            Reward::Numeric => Verifier::Numeric,
            Reward::Exact => Verifier::Exact,
            Reward::Regex(pattern) => Verifier::pattern(pattern)?,
            Reward::JsonSchema(path) => Verifier::schema(path)?,
            Reward::Gsm8k => Verifier::Gsm8k,
            Reward::Program(command, limit_s) => {
                let limit = Duration::from_secs_f64(*limit_s);
                return Ok(Grader::Program(ExternalProgram { command: command.clone(), limit }));
            }
            Reward::Http(url, limit_s) => {
                let limit = Duration::from_secs_f64(*limit_s);
                return Ok(Grader::Http(Endpoint { url: url.clone(), limit }));
            }
        };
        Ok(Grader::Verifier(verifier))
    }
}

impl Grpo {
    /// How tokens are chosen.
    pub fn sampling(&self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature.value as f32,
            top_k: self.top_k.value,
            top_p: self.top_p.value as f32,
            seed,
            ..Sampling::default()
        }
    }

    /// What the head finds of each token.
    pub fn head(&self) -> Head {
        let truncated = self.top_k.value > 0 || self.top_p.value < 1.0;
        let scale = scale(self.temperature.value as f32);
        Head { scale, truncated, entropy: self.entropy_coef.value != 0.0 }
    }

    /// The loss.
    pub fn loss(&self) -> PolicyLoss {
        let in_loss = self.kl_in.as_ref().is_some_and(|place| place.value == KlPlace::Loss);
        let kl = self.kl_estimator.as_ref().filter(|_| in_loss);
        PolicyLoss {
            normalise: self.normalise.value,
            max_tokens: self.max_tokens.value,
            clip_low: self.clip_low.value,
            clip_high: self.clip_high.value,
            kl: kl.map(|estimator| (self.kl_coef.value, estimator.value)),
            entropy: self.entropy_coef.value,
        }
    }

    /// The divergence in the reward: its weight and estimator.
    pub fn reward_kl(&self) -> Option<(f64, KlEstimator)> {
        let in_reward = self.kl_in.as_ref().is_some_and(|place| place.value == KlPlace::Reward);
        let estimator = self.kl_estimator.as_ref().filter(|_| in_reward);
        estimator.map(|estimator| (self.kl_coef.value, estimator.value))
    }

    /// Completions of a step.
    pub fn samples(&self) -> usize {
        self.prompts.value * self.group.value
    }
}

impl Resolved {
    /// Chooses every setting that was not given and checks every one.
    ///
    /// # Errors
    /// As `train::Requested::resolve`, for these keys too.
    pub fn new(
        requested: &Requested<RlSettings>,
        facts: &Facts,
    ) -> Result<Resolved, SettingsError> {
        let s = &requested.settings;
        let method = s.method.unwrap_or(MethodKind::Grpo);
        refuse_ignored(requested, method)?;
        let mut asked = Requested { settings: s.train.clone(), sources: requested.sources.clone() };
        asked.settings.max_steps.get_or_insert(STEPS);
        let train = asked.resolve(facts)?;
        let raw = requested.or_default("raw", s.raw, false);
        let method = match method {
            MethodKind::Grpo => Method::Grpo(Box::new(grpo(requested, &train)?)),
            MethodKind::Dpo => Method::Dpo(dpo(requested, &train)?),
        };
        let mut resolved = Resolved { train, raw, method };
        let ranks = resolved.training().ranks().max(resolved.generating().ranks());
        resolved.train.threads = asked.threads(facts, ranks);
        Ok(resolved)
    }

    /// Every setting that the method reads, by key: a [`Chosen`] or null.
    pub(crate) fn by_key(&self, requested: &Requested<RlSettings>) -> Map<String, Value> {
        let object = |value: Result<Value, serde_json::Error>| match value {
            Ok(Value::Object(map)) => map,
            other => unreachable!("settings are an object: {other:?}"),
        };
        let (name, own, keys) = match &self.method {
            Method::Grpo(grpo) => ("grpo", object(serde_json::to_value(grpo)), &GRPO_KEYS[..]),
            Method::Dpo(dpo) => ("dpo", object(serde_json::to_value(dpo)), &DPO_KEYS[..]),
        };
        let mut all = object(serde_json::to_value(&self.train));
        all.retain(|key, _| TRAIN_KEYS.iter().chain(keys).any(|k| k == key));
        all.extend(own);
        all.insert("method".into(), json!({"value": name, "why": requested.from("method")}));
        all.insert("raw".into(), json!(self.raw));
        all
    }

    /// Whether completions are generated.
    pub fn is_online(&self) -> bool {
        matches!(self.method, Method::Grpo(_))
    }

    /// The topology that trains.
    pub fn training(&self) -> Topology {
        self.train.topology()
    }

    /// The topology that generates; that of training with pairs.
    pub fn generating(&self) -> Topology {
        match &self.method {
            Method::Grpo(g) => Topology {
                tp: g.rollout_tp.value,
                cp: g.rollout_cp.value,
                dp: 1,
                width: self.training().width,
            },
            Method::Dpo(_) => self.training(),
        }
    }

    /// What the head finds of each token.
    pub fn head(&self) -> Head {
        match &self.method {
            Method::Grpo(g) => g.head(),
            Method::Dpo(_) => Head::default(),
        }
    }

    /// Samples of a step.
    pub fn samples(&self) -> usize {
        match &self.method {
            Method::Grpo(g) => g.samples(),
            Method::Dpo(dpo) => 2 * dpo.pairs.value,
        }
    }

    /// What the trainer of a rank does: its micro-batches are enough for sequences of `longest` tokens. Generation is
    /// apart.
    pub fn training_job(&self, longest: usize, keep: Keep) -> Job {
        let (tokens, segments) = (self.train.micro_tokens.value, self.train.micro_sequences.value);
        // Of two micro-batches in turn either more than one is full, by tokens or by sequences.
        let samples = self.samples();
        let by_tokens = (2 * samples * longest).div_ceil(tokens);
        let by_count = (2 * samples).div_ceil(segments);
        let accumulation = (by_tokens + by_count + 1).min(samples);
        let shape = TrainShape { tokens, segments, accumulation, keep, coef_known: true };
        let reference = match &self.method {
            Method::Grpo(g) => g.kl_coef.value != 0.0,
            Method::Dpo(_) => true,
        };
        Job {
            train: Some(shape),
            // Pairs, later updates, and steps that teach nothing: their log-probs are compared all the same.
            score: Some((tokens, segments)),
            score_base: reference.then_some((tokens, segments)),
            head: self.head(),
            generate: None,
        }
    }

    /// Optimizer steps of rollouts, or of pairs.
    pub fn steps(&self) -> usize {
        self.train.max_steps.as_ref().map_or(STEPS, |steps| steps.value)
    }
}

fn refuse_ignored(
    requested: &Requested<RlSettings>,
    method: MethodKind,
) -> Result<(), SettingsError> {
    let (own, mode) = match method {
        MethodKind::Grpo => (&GRPO_KEYS[..], "grpo"),
        MethodKind::Dpo => (&DPO_KEYS[..], "dpo"),
    };
    for key in requested.sources.keys() {
        let known = TRAIN_KEYS.iter().chain(own).chain(&SHARED_KEYS).any(|k| k == key);
        if !known {
            return Err(ignored(requested, key, mode));
        }
    }
    Ok(())
}

fn ignored(requested: &Requested<RlSettings>, key: &str, mode: &'static str) -> SettingsError {
    let mut all = GRPO_KEYS.into_iter().chain(DPO_KEYS).chain(OTHER_KEYS);
    let name = all.find(|k| *k == key).unwrap_or("a key of `samebit train`");
    SettingsError::Ignored { key: name, from: requested.from(key), mode }
}

fn grpo(requested: &Requested<RlSettings>, train: &train::Resolved) -> Result<Grpo, SettingsError> {
    let (r, s) = (requested, &requested.settings);
    let topology = train.topology();
    let kl_coef = r.or_default("kl_coef", s.kl_coef, 0.0);
    let charged = kl_coef.value != 0.0;
    if !charged {
        for key in ["kl_estimator", "kl_in"] {
            if r.sources.contains_key(key) {
                return Err(ignored(r, key, "kl_coef = 0"));
            }
        }
    }
    let normalise = r.or_default("normalise", s.normalise, Normalise::Token);
    let unbiased = normalise.value == Normalise::Constant;
    let advantage_std = r.or("advantage_std", s.advantage_std, || {
        let why = if unbiased { "Dr. GRPO divides by no deviation" } else { "default" };
        (!unbiased, why.into())
    });
    let clip_low = r.or_default("clip_low", s.clip_low, 0.2);
    let prompts = r.or_default("prompts", s.prompts, 8);
    let group = r.or_default("group", s.group, 8);
    let together = prompts.value.saturating_mul(group.value).clamp(1, 64);
    let resolved = Grpo {
        updates: r.or_default("updates", s.updates, 1),
        max_tokens: r.or_default("max_tokens", s.max_tokens, 256),
        stop: r.or_default("stop", s.stop.clone(), vec![]),
        temperature: r.or_default("temperature", s.temperature, 1.0),
        top_k: r.or_default("top_k", s.top_k, 0),
        top_p: r.or_default("top_p", s.top_p, 1.0),
        normalise,
        advantage_std,
        filter_groups: r.or_default("filter_groups", s.filter_groups, false),
        clip_high: r.or("clip_high", s.clip_high, || (clip_low.value, "clip_low".into())),
        clip_low,
        kl_estimator: charged
            .then(|| r.or_default("kl_estimator", s.kl_estimator, KlEstimator::K3)),
        kl_in: charged.then(|| r.or_default("kl_in", s.kl_in, KlPlace::Loss)),
        kl_coef,
        entropy_coef: r.or_default("entropy_coef", s.entropy_coef, 0.0),
        reward: reward(r)?,
        reward_failure: r.or_default("reward_failure", s.reward_failure, FailurePolicy::Fail),
        rollout_sequences: r.or("rollout_sequences", s.rollout_sequences, || {
            (together, "prompts × group, at most 64".into())
        }),
        rollout_tp: r.or("rollout_tp", s.rollout_tp, || (topology.tp, "as training".into())),
        rollout_cp: r.or("rollout_cp", s.rollout_cp, || (topology.cp, "as training".into())),
        prompts,
        group,
    };
    check_grpo(r, &resolved, train)?;
    Ok(resolved)
}

fn kind_name(kind: RewardKind) -> &'static str {
    match kind {
        RewardKind::Numeric => "reward = numeric",
        RewardKind::Exact => "reward = exact",
        RewardKind::Regex => "reward = regex",
        RewardKind::JsonSchema => "reward = json-schema",
        RewardKind::Gsm8k => "reward = gsm8k",
        RewardKind::Program => "reward = program",
        RewardKind::Http => "reward = http",
    }
}

fn reward(r: &Requested<RlSettings>) -> Result<Chosen<Reward>, SettingsError> {
    let s = &r.settings;
    let kind = r.require("reward", s.reward)?;
    let takes = |kind: RewardKind| match kind {
        RewardKind::Regex => &["reward_pattern"][..],
        RewardKind::JsonSchema => &["reward_schema"],
        RewardKind::Program => &["reward_program", "reward_timeout_s"],
        RewardKind::Http => &["reward_url", "reward_timeout_s"],
        RewardKind::Numeric | RewardKind::Exact | RewardKind::Gsm8k => &[],
    };
    const KEYS: [&str; 5] =
        ["reward_pattern", "reward_schema", "reward_program", "reward_url", "reward_timeout_s"];
    for key in KEYS {
        if r.sources.contains_key(key) && !takes(kind.value).contains(&key) {
            return Err(ignored(r, key, kind_name(kind.value)));
        }
    }
    let limit_s = s.reward_timeout_s.unwrap_or(REWARD_TIMEOUT_S);
    let good = limit_s > 0.0 && limit_s <= 86_400.0;
    r.within("reward_timeout_s", limit_s, good, "over 0, at most a day")?;
    let value = match kind.value {
        RewardKind::Numeric => Reward::Numeric,
        RewardKind::Exact => Reward::Exact,
        RewardKind::Gsm8k => Reward::Gsm8k,
        RewardKind::Regex => {
            Reward::Regex(r.require("reward_pattern", s.reward_pattern.clone())?.value)
        }
        RewardKind::JsonSchema => {
            Reward::JsonSchema(r.require("reward_schema", s.reward_schema.clone())?.value)
        }
        RewardKind::Program => {
            let command = r.require("reward_program", s.reward_program.clone())?.value;
            r.within("reward_program", command.join(" "), !command.is_empty(), "a program")?;
            Reward::Program(command, limit_s)
        }
        RewardKind::Http => {
            Reward::Http(r.require("reward_url", s.reward_url.clone())?.value, limit_s)
        }
    };
    Ok(Chosen { value, why: kind.why })
}

fn check_grpo(
    r: &Requested<RlSettings>,
    g: &Grpo,
    train: &train::Resolved,
) -> Result<(), SettingsError> {
    for (key, value, least) in [
        ("prompts", g.prompts.value, 1),
        ("group", g.group.value, 2),
        ("updates", g.updates.value, 1),
        ("rollout_sequences", g.rollout_sequences.value, 1),
    ] {
        let needed = format!("at least {least}, at most 2^20");
        r.within(key, value, (least..=COUNT_LIMIT).contains(&value), &needed)?;
    }
    let whole = g.top_k.value == 0 && g.top_p.value == 1.0;
    // Kept candidates are said by the logit of the last one. Logits have a meaning only up to a constant, which an update
    // shifts, so the same logit says another set after it; and a token that falls out of its set has the probability 0.
    let needed = "1 with top_k or top_p: the candidates that a token was chosen from are named by a logit of the policy \
                  that generated, which names others after an update";
    r.within("updates", g.updates.value, whole || g.updates.value == 1, needed)?;
    let (longest, tokens) = (train.max_length.value, g.max_tokens.value);
    let needed =
        format!("at least 1, less than max_length ({longest}), which holds the prompt too");
    r.within("max_tokens", tokens, (1..longest).contains(&tokens), &needed)?;
    let t = g.temperature.value;
    let warm = t as f32 >= LEAST_TEMPERATURE && (t as f32).is_finite();
    r.within("temperature", t, warm, "at least 1e-6: a greedy choice has no policy gradient")?;
    let p = g.top_p.value;
    r.within("top_p", p, p > 0.0 && p <= 1.0, "over 0, at most 1")?;
    r.within("top_k", g.top_k.value, g.top_k.value <= COUNT_LIMIT, "at most 2^20")?;
    let low = g.clip_low.value;
    r.within("clip_low", low, (0.0..1.0).contains(&low), "from 0 up to, not including, 1")?;
    for (key, value) in [
        ("clip_high", g.clip_high.value),
        ("kl_coef", g.kl_coef.value),
        ("entropy_coef", g.entropy_coef.value),
    ] {
        r.within(key, value, value >= 0.0 && value.is_finite(), "0 or more")?;
    }
    let lora = train.mode.value == Mode::Lora;
    let base = lora || g.kl_coef.value == 0.0;
    let needed = "0 in mode `full`: the reference is the base model without its adapter";
    r.within("kl_coef", g.kl_coef.value, base, needed)?;
    let empty = g.stop.value.iter().any(String::is_empty);
    r.within("stop", "\"\"", !empty, "texts of at least one character")
}

fn dpo(requested: &Requested<RlSettings>, train: &train::Resolved) -> Result<Dpo, SettingsError> {
    let (r, s) = (requested, &requested.settings);
    let resolved =
        Dpo { beta: r.or_default("beta", s.beta, 0.1), pairs: r.or_default("pairs", s.pairs, 8) };
    let (beta, pairs) = (resolved.beta.value, resolved.pairs.value);
    r.within("beta", beta, beta > 0.0 && beta.is_finite(), "over 0")?;
    r.within("pairs", pairs, (1..=COUNT_LIMIT).contains(&pairs), "at least 1, at most 2^20")?;
    let needed = "lora with method dpo: the reference is the base model without its adapter";
    r.within("mode", "full", train.mode.value == Mode::Lora, needed)?;
    Ok(resolved)
}
