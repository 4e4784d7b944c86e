//! Arguments that several commands take.

use crate::device::Compute;
use crate::model::Source;
use anyhow::{Result, bail};
use families::{LoraSpec, Train};
use program::DType;
use train::{Size, WeightType};

/// Storage type of weight matrices. `Auto` keeps in bf16 what is stored in bf16 and everything else in f32, so that
/// nothing is rounded; full training needs f32.
pub(crate) fn weights(requested: WeightType, stored_as_bf16: bool, train: &Train) -> DType {
    match requested {
        WeightType::F32 => DType::F32,
        WeightType::Bf16 => DType::Bf16,
        WeightType::Auto if stored_as_bf16 && *train != Train::Full => DType::Bf16,
        WeightType::Auto => DType::F32,
    }
}

/// Storage of weights and the lease; part of every command that computes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Memory {
    /// Storage of weight matrices; auto keeps bf16 as it is and anything else in f32
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) weights: WeightType,
    /// Lease: bytes that a rank may use (6GiB, 512MiB)
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
}

/// How a model is loaded and run; part of every command that runs one.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Running {
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) compute: Compute,
    #[command(flatten)]
    pub(crate) source: Source,
}

/// What is trained.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Adapt {
    /// Train every parameter instead of LoRA matrices
    #[arg(long, conflicts_with_all = ["rank", "alpha", "targets", "rslora"])]
    pub(crate) full: bool,
    /// LoRA rank
    #[arg(long)]
    pub(crate) rank: Option<usize>,
    /// LoRA alpha; the scale is alpha / rank [default: twice the rank]
    #[arg(long)]
    pub(crate) alpha: Option<f64>,
    /// Modules that get LoRA matrices: all-linear, or names or ends of names, `*` for any characters
    #[arg(long, value_delimiter = ',', value_name = "PATTERN,...")]
    pub(crate) targets: Option<Vec<String>>,
    /// Scale by alpha / √rank
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub(crate) rslora: bool,
}

impl Adapt {
    /// Whether a flag names something of LoRA's.
    pub(crate) fn names_lora(&self) -> bool {
        self.rank.is_some() || self.alpha.is_some() || self.targets.is_some() || self.rslora
    }

    /// Default LoRA rank.
    const RANK: usize = 16;

    pub(crate) fn train(&self) -> Result<Train> {
        if self.full {
            return Ok(Train::Full);
        }
        let r = self.rank.unwrap_or(Self::RANK);
        if r == 0 {
            bail!("--rank 0: a LoRA rank is at least 1");
        }
        let alpha = self.alpha.unwrap_or(2.0 * r as f64);
        if !(alpha > 0.0 && alpha.is_finite()) {
            bail!("--alpha {alpha}: a LoRA alpha is a positive number");
        }
        Ok(Train::Lora(LoraSpec {
            r,
            alpha,
            rslora: self.rslora,
            targets: self.targets.clone().unwrap_or_else(|| vec!["all-linear".into()]),
        }))
    }
}
