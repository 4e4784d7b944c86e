//! Model families: configuration to graph, checkpoint names to parameters.
//!
//! [`build`] turns a checked configuration into a [`program::Graph`]: nodes over symbolic values, with parameters under
//! their Hugging Face names and LoRA branches under PEFT's. A family is a file that says how it differs from the dense
//! decoder in `decoder`; it knows nothing of devices, memory or ranks.

mod adapt;
mod decoder;
mod error;
mod llama;
mod qwen2;
mod qwen3;
mod rope;

pub use adapt::{LoraSpec, PatternMatch, Train, lora_module, nearest};
pub use error::FamilyError;

use formats::{Architecture, ModelConfig};
use program::{DType, Graph};

/// What to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildOptions {
    /// Width V of the canon: leaves of sums over sharded dimensions.
    pub width: usize,
    /// Storage type of weight matrices; norms and biases are f32.
    pub weights: DType,
    /// What is trained.
    pub train: Train,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions { width: program::Topology::WIDTH, weights: DType::F32, train: Train::Nothing }
    }
}

/// A built model.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// What each LoRA pattern matched; empty without LoRA.
    pub patterns: Vec<PatternMatch>,
}

/// Builds the graph of a model.
///
/// # Errors
/// A LoRA pattern that matches nothing, or an impossible rank.
pub fn build(config: &ModelConfig, options: &BuildOptions) -> Result<Model, FamilyError> {
    let shape = match config.architecture {
        Architecture::Llama => llama::shape(config),
        Architecture::Qwen2 => qwen2::shape(config),
        Architecture::Qwen3 => qwen3::shape(config),
    };
    decoder::build(&shape, options)
}
