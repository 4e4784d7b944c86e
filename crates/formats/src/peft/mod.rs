//! LoRA adapters in the files of the `peft` library: `adapter_config.json` and
//! `adapter_model.safetensors`.

mod config;
mod error;
mod origin;
mod reader;
mod writer;

pub use config::{AdapterConfig, TargetModules};
pub use error::Error;
pub use origin::Origin;
pub use reader::{Adapter, Module};
pub use writer::{Factors, write};

/// The adapter's configuration file.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The adapter's weights.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// What an adapter was trained on; peft does not know this file.
pub const ORIGIN_FILE: &str = "samebit.json";

/// What peft puts before the model's own module names.
const PREFIX: &str = "base_model.model.";
/// The largest rank that is read or written.
pub const MAX_RANK: usize = 1 << 14;
