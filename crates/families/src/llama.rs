//! Llama 1 to 3 and models of that form.
//!
//! Source: `modeling_llama.py` of transformers 5.24. This is the dense decoder as it stands.

use crate::decoder::Shape;
use formats::ModelConfig;

pub(crate) fn shape(config: &ModelConfig) -> Shape<'_> {
    Shape { config, head_norm: false }
}
