//! Settings as run.

use std::path::PathBuf;

use data::{Arrangement, Extent, Packing, Schedule, TooLong};
use engine::{Hyper, TrainShape};
use families::{BuildOptions, LoraSpec, Train};
use program::keep::Keep;
use program::{DType, Topology};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

use super::{
    DataSource, Date, Mode, OrderKind, Profile, ScheduleKind, Size, TooLongPolicy, WeightType,
};

/// A value and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen<T> {
    /// The value.
    pub value: T,
    /// Where it was given, or how it was chosen.
    pub why: String,
}

/// What runs. Absent: LoRA settings in full mode, and limits that are not set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// The model reference.
    pub model: Chosen<String>,
    /// Data sources, in order.
    pub data: Chosen<Vec<DataSource>>,
    /// The run's folder.
    pub out: Chosen<PathBuf>,
    /// What is trained.
    pub mode: Chosen<Mode>,
    /// LoRA rank.
    pub rank: Option<Chosen<usize>>,
    /// LoRA alpha.
    pub alpha: Option<Chosen<f64>>,
    /// Whether LoRA's scale is alpha / √rank.
    pub rslora: Option<Chosen<bool>>,
    /// LoRA target patterns.
    pub targets: Option<Chosen<Vec<String>>>,
    /// Peak learning rate.
    pub lr: Chosen<f64>,
    /// How it falls.
    pub schedule: Chosen<ScheduleKind>,
    /// Steps over which it rises, when given as steps.
    pub warmup_steps: Option<Chosen<usize>>,
    /// The same as a part of all steps.
    pub warmup_ratio: Option<Chosen<f64>>,
    /// Passes over the data.
    pub epochs: Option<Chosen<usize>>,
    /// Optimizer steps, instead.
    pub max_steps: Option<Chosen<usize>>,
    /// Tokens of a logical micro-batch.
    pub micro_tokens: Chosen<usize>,
    /// Most sequences of one.
    pub micro_sequences: Chosen<usize>,
    /// Logical micro-batches of a step.
    pub accumulation: Chosen<usize>,
    /// Most tokens of a sample.
    pub max_length: Chosen<usize>,
    /// The day that the chat template is told, where it asks for the date.
    pub template_date: Option<Chosen<Date>>,
    /// What becomes of longer ones.
    pub too_long: Chosen<TooLongPolicy>,
    /// How an epoch is ordered.
    pub order: Chosen<OrderKind>,
    /// Whether encoded data is kept for later runs.
    pub encode_cache: Chosen<bool>,
    /// Most bytes of it.
    pub encode_cache_limit: Chosen<Size>,
    /// Decoupled weight decay.
    pub weight_decay: Chosen<f64>,
    /// Decay of the first moment.
    pub beta1: Chosen<f64>,
    /// Decay of the second moment.
    pub beta2: Chosen<f64>,
    /// Added to the root of the second moment.
    pub eps: Chosen<f64>,
    /// Largest gradient norm; 0 for no limit.
    pub max_grad_norm: Chosen<f64>,
    /// The seed.
    pub seed: Chosen<u64>,
    /// Steps between checkpoints.
    pub save_every: Chosen<usize>,
    /// Minutes between them, besides.
    pub save_every_minutes: Option<Chosen<f64>>,
    /// Checkpoints kept.
    pub keep_checkpoints: Chosen<usize>,
    /// Held-out files.
    pub eval: Option<Chosen<Vec<PathBuf>>>,
    /// The part of the data that is held out instead.
    pub eval_fraction: Option<Chosen<f64>>,
    /// Steps between evaluations; absent where nothing is held out.
    pub eval_every: Option<Chosen<usize>>,
    /// Evaluations without a lower loss after which the run stops.
    pub patience: Option<Chosen<usize>>,
    /// The loss over which the run fails, nats; absent for what the vocabulary implies.
    pub loss_limit: Option<Chosen<f64>>,
    /// The lease.
    pub memory: Option<Chosen<Size>>,
    /// Threads.
    pub threads: Chosen<usize>,
    /// Tensor-parallel ranks.
    pub tp: Chosen<usize>,
    /// Context-parallel ranks.
    pub cp: Chosen<usize>,
    /// Data-parallel ranks.
    pub dp: Chosen<usize>,
    /// The arithmetic.
    pub profile: Chosen<Profile>,
    /// How weight matrices are stored; never [`WeightType::Auto`].
    pub weights: Chosen<WeightType>,
}

impl Resolved {
    /// The LoRA adapter's shape; `None` in full mode.
    pub fn lora(&self) -> Option<LoraSpec> {
        Some(LoraSpec {
            r: self.rank.as_ref()?.value,
            alpha: self.alpha.as_ref()?.value,
            rslora: self.rslora.as_ref()?.value,
            targets: self.targets.as_ref()?.value.clone(),
        })
    }

    /// What to build the model's graph with.
    pub fn build_options(&self) -> BuildOptions {
        let weights = match self.weights.value {
            WeightType::Bf16 => DType::Bf16,
            WeightType::F32 | WeightType::Auto => DType::F32,
        };
        let train = self.lora().map_or(Train::Full, Train::Lora);
        BuildOptions { weights, train, ..BuildOptions::default() }
    }

    /// The shape of the training job under a choice of what to keep.
    pub fn train_shape(&self, keep: Keep) -> TrainShape {
        TrainShape {
            tokens: self.micro_tokens.value,
            segments: self.micro_sequences.value,
            accumulation: self.accumulation.value,
            keep,
            coef_known: true,
        }
    }

    /// The ranks, at the width of the canon.
    pub fn topology(&self) -> Topology {
        let (tp, cp, dp) = (self.tp.value, self.cp.value, self.dp.value);
        Topology { tp, cp, dp, width: Topology::WIDTH }
    }

    /// Tokens and sequences of a micro-batch of the evaluation; `None` where nothing is held out.
    pub fn score_shape(&self) -> Option<(usize, usize)> {
        self.eval_every.as_ref()?;
        Some((self.micro_tokens.value, self.micro_sequences.value))
    }

    /// What becomes of samples longer than `max_length`.
    pub fn too_long(&self) -> TooLong {
        match self.too_long.value {
            TooLongPolicy::Refuse => TooLong::Refuse,
            TooLongPolicy::Drop => TooLong::Drop,
            TooLongPolicy::Left => TooLong::Left,
            TooLongPolicy::Middle => TooLong::Middle,
        }
    }

    /// The moment that the chat template is told, seconds since 1970-01-01T00:00Z; `None` where it asks for none.
    pub fn template_time(&self) -> Option<i64> {
        self.template_date.as_ref().map(|date| date.value.unix_time())
    }

    /// How samples are packed.
    pub fn packing(&self) -> Packing {
        Packing {
            tokens: self.micro_tokens.value,
            sequences: self.micro_sequences.value,
            accumulation: self.accumulation.value,
            seed: self.seed.value,
            arrangement: match self.order.value {
                OrderKind::Shuffled => Arrangement::Shuffled,
                OrderKind::Buckets => Arrangement::Buckets,
            },
        }
    }

    /// The data's sources.
    pub fn sources(&self) -> Vec<data::Source> {
        self.data.value.iter().map(data::Source::from).collect()
    }

    /// How long to train: `max_steps`, else `epochs`, of which exactly one is there.
    pub fn extent(&self) -> Extent {
        match (&self.max_steps, &self.epochs) {
            (Some(steps), _) => Extent::Steps(steps.value),
            (None, Some(epochs)) => Extent::Epochs(epochs.value),
            (None, None) => Extent::Epochs(super::resolve::EPOCHS),
        }
    }

    /// The order of the run over a data set.
    ///
    /// # Errors
    /// As [`Schedule::new`], and [`TrainError::Warmup`].
    pub fn schedule(&self, dataset: &data::Dataset) -> Result<Schedule, TrainError> {
        let schedule = Schedule::new(dataset, self.packing(), self.extent())?;
        let warmup = self.warmup_steps.as_ref().map_or(0, |steps| steps.value);
        let steps = schedule.steps();
        if warmup > steps {
            return Err(TrainError::Warmup { warmup, steps });
        }
        Ok(schedule)
    }

    /// The optimizer's settings at a learning rate.
    pub fn hyper(&self, lr: f32) -> Hyper {
        Hyper {
            lr,
            beta1: self.beta1.value as f32,
            beta2: self.beta2.value as f32,
            eps: self.eps.value as f32,
            weight_decay: self.weight_decay.value as f32,
            max_grad_norm: self.max_grad_norm.value as f32,
        }
    }
}
