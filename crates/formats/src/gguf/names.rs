//! GGUF tensor names and their Hugging Face equivalents (llama, qwen2 and qwen3).
//!
//! Source: `gguf-py/gguf/tensor_mapping.py` of llama.cpp.

/// The tensor of per-frequency divisors that Llama 3 files carry; it belongs to the configuration.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";

/// (GGUF, Hugging Face) names of a layer's modules.
const LAYER_MODULES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The Hugging Face name of a GGUF tensor, or `None` for a tensor that these families do not have.
pub(crate) fn to_hugging_face(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    // "01" would be a second spelling of layer 1.
    if layer.parse::<u32>().ok()?.to_string() != layer || !matches!(kind, "weight" | "bias") {
        return None;
    }
    let (_, theirs) = LAYER_MODULES.iter().find(|(ours, _)| *ours == module)?;
    Some(format!("model.layers.{layer}.{theirs}.{kind}"))
}

/// The GGUF name of a Hugging Face tensor, or `None` for a tensor that these families do not have.
pub(crate) fn from_hugging_face(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    let (ours, _) = LAYER_MODULES.iter().find(|(_, theirs)| *theirs == module)?;
    Some(format!("blk.{layer}.{ours}.{kind}"))
}

/// Whose rotary halves a llama-architecture file interleaves: query or key projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotary {
    Query,
    Key,
}

/// Whether the rows of this tensor (Hugging Face name) are rotated by RoPE.
pub(crate) fn rotary(name: &str) -> Option<Rotary> {
    if name.contains(".self_attn.q_proj.") {
        Some(Rotary::Query)
    } else if name.contains(".self_attn.k_proj.") {
        Some(Rotary::Key)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map() {
        for (ours, theirs) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            ("blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
            ("blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ] {
            assert_eq!(to_hugging_face(ours).as_deref(), Some(theirs));
            assert_eq!(from_hugging_face(theirs).as_deref(), Some(ours));
        }
        for unknown in
            ["blk.01.attn_q.weight", "blk.1.ffn_up_exps.weight", "blk.x.attn_q.weight", "v.weight"]
        {
            assert_eq!(to_hugging_face(unknown), None, "{unknown}");
        }
        for unknown in ["model.layers.1.mlp.experts.0.up_proj.weight", "lm_head.bias", "visual.x"] {
            assert_eq!(from_hugging_face(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_query_and_key_projections_are_rotary() {
        assert_eq!(rotary("model.layers.0.self_attn.q_proj.weight"), Some(Rotary::Query));
        assert_eq!(rotary("model.layers.0.self_attn.k_proj.bias"), Some(Rotary::Key));
        assert_eq!(rotary("model.layers.0.self_attn.q_norm.weight"), None);
        assert_eq!(rotary("model.layers.0.self_attn.v_proj.weight"), None);
    }
}
