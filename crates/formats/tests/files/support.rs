//! Builders of files for tests, right by default and wrong where a test wants them wrong.

use std::path::PathBuf;

/// A file beside the tests.
pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A folder of the families' tests: a tiny model that transformers made.
pub(crate) fn tiny_model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../families/tests/golden").join(name)
}

/// The bytes of a safetensors file with this header and this many bytes of data.
pub(crate) fn safetensors(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data_bytes).map(|i| i as u8));
    bytes
}

/// A GGUF file in the making.
#[derive(Clone, Default)]
pub(crate) struct Gguf {
    entries: Vec<Vec<u8>>,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
    alignment: usize,
    /// Overrides the count of entries or tensors in the header.
    pub(crate) entry_count: Option<u64>,
    pub(crate) tensor_count: Option<u64>,
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

impl Gguf {
    pub(crate) fn new() -> Self {
        Self { alignment: 32, ..Self::default() }
    }

    /// An entry with its type number and the bytes of its value.
    pub(crate) fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = string(key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend_from_slice(value);
        self.entries.push(bytes);
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn string(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &string(value))
    }

    /// A tensor, placed after those before it; `shape` in the file's order.
    pub(crate) fn tensor(self, name: &str, shape: &[u64], kind: u32, data: &[u8]) -> Self {
        let offset = self
            .tensors
            .iter()
            .map(|(_, data)| data.len().next_multiple_of(self.alignment))
            .sum::<usize>() as u64;
        self.tensor_at(name, shape, kind, offset, data)
    }

    pub(crate) fn tensor_at(
        mut self,
        name: &str,
        shape: &[u64],
        kind: u32,
        offset: u64,
        data: &[u8],
    ) -> Self {
        let mut info = string(name);
        info.extend((shape.len() as u32).to_le_bytes());
        info.extend(shape.iter().flat_map(|axis| axis.to_le_bytes()));
        info.extend(kind.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push((info, data.to_vec()));
        self
    }

    /// A tensor of f32 numbers.
    pub(crate) fn tensor_f32(self, name: &str, shape: &[u64], numbers: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<u64>(), numbers.len() as u64);
        self.tensor(name, shape, 0, bytemuck::cast_slice(numbers))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        let tensors = self.tensor_count.unwrap_or(self.tensors.len() as u64);
        bytes.extend(tensors.to_le_bytes());
        let entries = self.entry_count.unwrap_or(self.entries.len() as u64);
        bytes.extend(entries.to_le_bytes());
        bytes.extend(self.entries.concat());
        for (info, _) in &self.tensors {
            bytes.extend_from_slice(info);
        }
        for (_, data) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend_from_slice(data);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes
    }
}

/// Sizes of the tiny model below.
pub(crate) const HIDDEN: u64 = 8;
pub(crate) const FEED_FORWARD: u64 = 12;
pub(crate) const VOCAB: u64 = 10;
pub(crate) const HEADS: u64 = 2;
pub(crate) const HEAD_DIM: u64 = 4;

/// A GGUF of one layer of an architecture; the numbers of a tensor count up from its first.
pub(crate) fn tiny_gguf(architecture: &str) -> Gguf {
    let key = |name: &str| format!("{architecture}.{name}");
    let mut file = Gguf::new()
        .string("general.architecture", architecture)
        .u32(&key("block_count"), 1)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), HIDDEN as u32)
        .u32(&key("feed_forward_length"), FEED_FORWARD as u32)
        .u32(&key("attention.head_count"), HEADS as u32)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 1e4)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2);
    for (name, shape) in [
        ("token_embd.weight", vec![HIDDEN, VOCAB]),
        ("output_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_q.weight", vec![HIDDEN, HEADS * HEAD_DIM]),
        ("blk.0.attn_k.weight", vec![HIDDEN, HEAD_DIM]),
        ("blk.0.attn_v.weight", vec![HIDDEN, HEAD_DIM]),
        ("blk.0.attn_output.weight", vec![HEADS * HEAD_DIM, HIDDEN]),
        ("blk.0.ffn_norm.weight", vec![HIDDEN]),
        ("blk.0.ffn_gate.weight", vec![HIDDEN, FEED_FORWARD]),
        ("blk.0.ffn_up.weight", vec![HIDDEN, FEED_FORWARD]),
        ("blk.0.ffn_down.weight", vec![FEED_FORWARD, HIDDEN]),
    ] {
        let count = shape.iter().product::<u64>();
        let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
        file = file.tensor_f32(name, &shape, &numbers);
    }
    file
}

/// A small `config.json` of a family.
pub(crate) fn tiny_config(model_type: &str) -> serde_json::Value {
    let class = match model_type {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        other => other,
    };
    serde_json::json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "tie_word_embeddings": true,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    })
}
