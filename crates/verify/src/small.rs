//! The model of the matrix: a small qwen3 over bytes, with stops that come naturally.

use crate::error::VerifyError;
use crate::work::Work;
use arena::Executor;
use canon::random::{Numbers, Purpose};
use engine::{Engine, EngineError};
use families::{BuildOptions, Train};
use formats::ModelConfig;
use program::Graph;
use serde_json::json;

/// The 256 bytes and an end marker.
const WORDS: usize = 257;

/// What is asked.
const PROMPTS: [&str; 4] =
    ["two and two are", "a ship sails at", "the end of it", "count: one, two,"];

/// Bytes that end a completion, with the end marker: about one in sixteen, so that most completions end by themselves.
const STOPS: [u8; 15] = *b"\n.!?;:,)]}>\"'-\t";

/// Seed of the weights.
const SEED: u64 = 11;

/// A small model with random weights.
pub struct SmallModel {
    graph: Graph,
}

impl SmallModel {
    /// The model: four layers, eight key/value heads, full training or LoRA.
    ///
    /// # Errors
    /// A LoRA pattern that matches nothing.
    pub fn new(train: &Train, width: usize) -> Result<SmallModel, VerifyError> {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
            "vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 4,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256,
            "tie_word_embeddings": false, "attention_bias": false,
        });
        let invalid = |reason: String| VerifyError::SmallModel { reason };
        let config = config.as_object().cloned().unwrap_or_default();
        let config = ModelConfig::from_json(config).map_err(|e| invalid(e.to_string()))?;
        let options = BuildOptions { train: train.clone(), width, ..BuildOptions::default() };
        let built = families::build(&config, &options).map_err(|e| invalid(e.to_string()))?;
        Ok(SmallModel { graph: built.graph })
    }

    /// The model as work; `arithmetic` says what the executors compute with ([`Work::arithmetic`]).
    pub fn work<'a>(
        &self,
        executor: &'a (dyn Fn() -> Box<dyn Executor> + Sync),
        arithmetic: String,
    ) -> Work<'a> {
        Work {
            name: "small qwen3 over bytes (4 layers, 8 key/value heads, random weights)".into(),
            weights: format!("random, seed {SEED}"),
            arithmetic,
            graph: self.graph.clone(),
            load: &load,
            executor,
            prompts: PROMPTS.iter().map(|p| p.bytes().map(u32::from).collect()).collect(),
            stops: STOPS.iter().map(|b| u32::from(*b)).chain([WORDS as u32 - 1]).collect(),
        }
    }
}

/// The same random values on every topology; padding rows stay zero.
fn load(engine: &mut Engine<'_>) -> Result<(), EngineError> {
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        let mut values = vec![0f32; param.elements()];
        let (low, high) = if param.name.contains("norm") { (0.8, 1.2) } else { (-0.2, 0.2) };
        let numbers = Numbers::new(SEED, Purpose::Init, u64::from(id.0));
        numbers.fill_uniform(0, low, high, &mut values);
        engine.write_whole(id, &values);
    }
    Ok(())
}
