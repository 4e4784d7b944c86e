//! Settings of a reinforcement-learning run: those of training, and these.

mod resolve;

pub use resolve::{Dpo, Grpo, Method, Resolved, Reward};

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::loss::{KlEstimator, Normalise};

/// The algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MethodKind {
    /// Groups of completions, advantages against their group, clipped ratios.
    Grpo,
    /// Direct preference optimization on pairs; nothing is generated.
    Dpo,
}

/// Where the divergence from the reference is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KlPlace {
    /// In the loss, token by token.
    Loss,
    /// In the reward, summed over the completion.
    Reward,
}

/// Who grades.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RewardKind {
    /// The completion's last number is the answer's.
    Numeric,
    /// The completion is the answer, apart from space around it.
    Exact,
    /// The completion matches reward_pattern, whose group, if any, catches the answer.
    Regex,
    /// The completion is JSON that reward_schema accepts.
    JsonSchema,
    /// The number after the completion's last #### is the answer's.
    Gsm8k,
    /// reward_program: JSON Lines on its standard input, a line a reward on its standard output.
    Program,
    /// reward_url: a POST of the samples.
    Http,
}

/// What becomes of a completion that could not be graded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FailurePolicy {
    /// The run ends and names it.
    Fail,
    /// It is left out and counted.
    Drop,
}

/// Every setting of a reinforcement-learning run, as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, clap::Args)]
pub struct RlSettings {
    /// Settings of the model, the adapter, the optimizer, memory and topology.
    #[serde(flatten)]
    #[command(flatten)]
    pub train: train::Settings,
    /// The algorithm
    #[arg(long)]
    pub method: Option<MethodKind>,
    /// Prompts of a step
    #[arg(long)]
    pub prompts: Option<usize>,
    /// Completions of a prompt
    #[arg(long)]
    pub group: Option<usize>,
    /// Optimizer updates of a step, each over all of its completions; 1 with top_k or top_p
    #[arg(long)]
    pub updates: Option<usize>,
    /// Most tokens of a completion
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Text that ends a completion and is not part of what is graded; may be given several times
    #[arg(long)]
    pub stop: Option<Vec<String>>,
    /// Give prompts as they are, not as a user's turn in the model's chat template
    #[arg(long)]
    pub raw: Option<bool>,
    /// Logits are divided by this, in rollout and training
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Most candidates; 0 for all
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Smallest set of candidates that reaches this probability
    #[arg(long)]
    pub top_p: Option<f64>,
    /// How tokens' terms become one loss
    #[arg(long)]
    pub normalise: Option<Normalise>,
    /// Divide advantages by the group's standard deviation
    #[arg(long)]
    pub advantage_std: Option<bool>,
    /// Leave groups of equal rewards out of the loss's averages
    #[arg(long)]
    pub filter_groups: Option<bool>,
    /// The ratio is clipped below at 1 minus this
    #[arg(long)]
    pub clip_low: Option<f64>,
    /// The ratio is clipped above at 1 plus this
    #[arg(long)]
    pub clip_high: Option<f64>,
    /// Weight of the divergence from the base model; 0 for none
    #[arg(long)]
    pub kl_coef: Option<f64>,
    /// Its estimator
    #[arg(long)]
    pub kl_estimator: Option<KlEstimator>,
    /// Where it is charged
    #[arg(long)]
    pub kl_in: Option<KlPlace>,
    /// Weight of the entropy bonus; 0 for none
    #[arg(long)]
    pub entropy_coef: Option<f64>,
    /// Who grades
    #[arg(long)]
    pub reward: Option<RewardKind>,
    /// reward regex: the pattern
    #[arg(long)]
    pub reward_pattern: Option<String>,
    /// reward json-schema: the schema's file
    #[arg(long)]
    pub reward_schema: Option<PathBuf>,
    /// reward program: the program and its arguments, one after the other
    #[arg(long, num_args = 1.., value_terminator = ";")]
    pub reward_program: Option<Vec<String>>,
    /// reward http: the address
    #[arg(long)]
    pub reward_url: Option<String>,
    /// reward program and http: most seconds for the completions of a step
    #[arg(long)]
    pub reward_timeout_s: Option<f64>,
    /// What becomes of a completion that could not be graded
    #[arg(long)]
    pub reward_failure: Option<FailurePolicy>,
    /// Most sequences generated at once
    #[arg(long)]
    pub rollout_sequences: Option<usize>,
    /// Tensor-parallel ranks that generate [default: those that train]
    #[arg(long)]
    pub rollout_tp: Option<usize>,
    /// Context-parallel ranks that generate [default: those that train]
    #[arg(long)]
    pub rollout_cp: Option<usize>,
    /// dpo: weight of the divergence that the loss implies
    #[arg(long)]
    pub beta: Option<f64>,
    /// dpo: pairs of a step
    #[arg(long)]
    pub pairs: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use train::{Facts, Requested, SettingsError};

    const FACTS: Facts =
        Facts { max_positions: 8192, stored_as_bf16: true, threads: 4, template_date: None };
    const BASE: &str = "model = \"m\"\ndata = [\"d.jsonl\"]\nout = \"o\"\nmax_steps = 3\n";

    fn resolve(text: &str) -> Result<Resolved, SettingsError> {
        let path = Path::new("rl.toml");
        let file: RlSettings = train::settings_from_toml(&format!("{BASE}{text}"), path)?;
        Resolved::new(&Requested::new(Some((path.into(), file)), RlSettings::default())?, &FACTS)
    }

    fn grpo(text: &str) -> Grpo {
        match resolve(&format!("reward = \"numeric\"\n{text}")).unwrap().method {
            Method::Grpo(grpo) => *grpo,
            Method::Dpo(_) => panic!("grpo is the default"),
        }
    }

    #[test]
    fn defaults_say_why_and_flags_of_training_are_there() {
        let g = grpo("lr = 1e-5\ngroup = 4\n");
        assert_eq!((g.group.value, g.group.why.as_str()), (4, "rl.toml"));
        assert_eq!((g.prompts.value, g.prompts.why.as_str()), (8, "default"));
        let resolved = resolve("reward = \"exact\"\nlr = 1e-5\n").unwrap();
        assert_eq!(resolved.train.lr.value, 1e-5);
        let command = <RlSettings as clap::Args>::augment_args(clap::Command::new("rl"));
        let flags: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .map(|flag| flag.replace('-', "_"))
            .collect();
        assert!(["lr", "group", "eval"].iter().all(|key| flags.contains(&key.to_string())));
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        for text in [
            "reward = \"numeric\"\nepochs = 2",
            "reward = \"numeric\"\naccumulation = 2",
            "reward = \"numeric\"\nbeta = 0.1",
            "reward = \"numeric\"\nreward_pattern = \"x\"",
            "reward = \"numeric\"\nreward_timeout_s = 1.0",
            "reward = \"numeric\"\nkl_estimator = \"k1\"",
            "reward = \"numeric\"\nkl_in = \"loss\"",
            "reward = \"numeric\"\npatience = 2",
            "method = \"dpo\"\neval = [\"e\"]",
            "method = \"dpo\"\ngroup = 4",
            "method = \"dpo\"\nreward = \"numeric\"",
        ] {
            let error = resolve(text).unwrap_err();
            assert!(matches!(error, SettingsError::Ignored { .. }), "{text}: {error}");
            let key = text.lines().last().and_then(|line| line.split(" = ").next()).unwrap();
            assert!(error.to_string().contains(&format!("`{key}`")), "{text}: {error}");
        }
    }

    #[test]
    fn what_must_be_given_is_named() {
        for (text, missing) in [
            ("", "reward"),
            ("reward = \"regex\"", "reward_pattern"),
            ("reward = \"json-schema\"", "reward_schema"),
            ("reward = \"program\"", "reward_program"),
            ("reward = \"http\"", "reward_url"),
        ] {
            let error = resolve(text).unwrap_err();
            assert!(matches!(error, SettingsError::Missing { key } if key == missing), "{error}");
            assert!(error.to_string().contains(&format!("--{}", missing.replace('_', "-"))));
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for text in [
            "group = 1",
            "prompts = 0",
            "updates = 0",
            "updates = 2\ntop_p = 0.9",
            "max_tokens = 0",
            "temperature = 0.0",
            "temperature = 1e-38",
            "temperature = -1.0",
            "temperature = nan",
            "top_p = 0.0",
            "top_p = 1.5",
            "clip_low = 1.0",
            "clip_high = -0.1",
            "kl_coef = -1.0",
            "entropy_coef = nan",
            "rollout_sequences = 0",
            "stop = [\"\"]",
            "max_tokens = 4096",
            "kl_coef = 0.1\nmode = \"full\"",
        ] {
            let error = resolve(&format!("reward = \"numeric\"\n{text}")).unwrap_err();
            assert!(matches!(error, SettingsError::OutOfRange { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = resolve("reward = \"numeric\"\ngruop = 4").unwrap_err().to_string();
        assert!(error.contains("unknown key `gruop`; did you mean `group`?"), "{error}");
    }
}
