//! Qwen 3, dense: Llama with an RMS norm of each head of q and k before the rotation.
//!
//! Source: `modeling_qwen3.py` of transformers 5.24.

use crate::decoder::Shape;
use formats::ModelConfig;

pub(crate) fn shape(config: &ModelConfig) -> Shape<'_> {
    Shape { config, head_norm: true }
}
