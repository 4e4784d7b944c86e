//! Qwen 2 and 2.5, dense: Llama with biases on q, k and v (which the configuration states).
//!
//! Source: `modeling_qwen2.py` of transformers 5.24.

use crate::decoder::Shape;
use formats::ModelConfig;

pub(crate) fn shape(config: &ModelConfig) -> Shape<'_> {
    Shape { config, head_norm: false }
}
