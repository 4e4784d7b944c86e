"""Tiny random models of every dense family, and the inputs they are scored on.

Shapes are odd on purpose: a vocabulary that is prime, head sizes that are not
hidden / heads, a head count that no power of two divides. Weights are scaled
so that every layer changes the residual stream by about its own size: a model
initialised the usual way (0.02) is so close to the identity that a wrong
rotary frequency would not show in its logits.
"""

from dataclasses import dataclass, field

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

IGNORE = -100
"""The label of a token that is not supervised (the convention of transformers)."""

ROPE_THETA = 10000.0
QWEN_ROPE_THETA = 1000000.0


@dataclass(frozen=True)
class Case:
    """One golden folder: a model and the lengths of the sequences it is scored on."""

    name: str
    config: object
    model_class: type
    lengths: tuple
    seed: int
    gguf: bool = False
    packs: bool = True
    """False where transformers itself scores a packed sequence differently (dynamic rope)."""
    notes: str = field(default="", compare=False)


def plain_rope(theta):
    """Rotary parameters without scaling."""
    return {"rope_type": "default", "rope_theta": theta}


def _common(vocab, hidden, layers, heads, kv_heads, head_dim, ffn, **more):
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "max_position_embeddings": 128,
        # Large, so that a loader that ignores the key shows in the logits.
        "rms_norm_eps": 1e-3,
        "rope_parameters": plain_rope(ROPE_THETA),
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "attn_implementation": "eager",
        "dtype": "float32",
        **more,
    }


def _rope_case(kind, seed, lengths, parameters, max_position=128, **case):
    """A one-layer llama; all the rope cases share shapes, each has its own weights."""
    config = LlamaConfig(
        **_common(
            67,
            32,
            1,
            2,
            1,
            16,
            64,
            max_position_embeddings=max_position,
            rope_parameters={"rope_type": kind, "rope_theta": ROPE_THETA, **parameters},
        )
    )
    return Case(f"llama_rope_{kind}", config, LlamaForCausalLM, lengths, seed, **case)


def cases():
    """Every golden case, in the order in which it is written."""
    three = (17, 5, 33)
    return [
        Case("llama", LlamaConfig(**_common(131, 64, 2, 4, 2, 16, 48)), LlamaForCausalLM, three, 1),
        Case(
            "llama_tied",
            LlamaConfig(**_common(67, 32, 2, 4, 2, 8, 64, tie_word_embeddings=True)),
            LlamaForCausalLM,
            three,
            2,
            gguf=True,
        ),
        Case(
            "llama_bias",
            LlamaConfig(**_common(67, 32, 2, 4, 2, 8, 48, attention_bias=True, mlp_bias=True)),
            LlamaForCausalLM,
            three,
            3,
        ),
        # Wavelengths at head size 16 run 6, 20, 63, 199, … positions, so an original length of 64
        # puts pairs on both sides of both of llama3's bounds (16 and 64) and of yarn's ramp.
        _rope_case("linear", 4, three, {"factor": 4.0}),
        _rope_case(
            "llama3",
            5,
            (17, 5, 66),
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            max_position=512,
            gguf=True,
        ),
        # 24 positions are trained for: 17 and 24 must not be scaled, 33 must be.
        _rope_case("dynamic", 6, (17, 24, 33), {"factor": 2.0}, max_position=24, packs=False),
        _rope_case(
            "yarn",
            7,
            (17, 5, 66),
            {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0},
            max_position=128,
        ),
        Case(
            "qwen2",
            Qwen2Config(**_common(67, 48, 2, 3, 1, 16, 72, rope_parameters=plain_rope(QWEN_ROPE_THETA))),
            Qwen2ForCausalLM,
            three,
            8,
        ),
        Case(
            "qwen3",
            Qwen3Config(**_common(67, 32, 2, 4, 2, 24, 64, rope_parameters=plain_rope(QWEN_ROPE_THETA))),
            Qwen3ForCausalLM,
            three,
            9,
            gguf=True,
        ),
    ]


def randomise(model, seed):
    """Fills every parameter: norms around 1, biases and matrices at unit gain, embeddings at 1
    (tied ones less, or every prediction would be certain)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape, mean, std):
        return mean + std * torch.randn(shape, generator=generator, dtype=torch.float32)

    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                value = normal(parameter.shape, 1.0, 0.2)
            elif name.endswith("bias"):
                value = normal(parameter.shape, 0.0, 0.3)
            elif "embed_tokens" in name:
                value = normal(parameter.shape, 0.0, 0.3 if model.config.tie_word_embeddings else 1.0)
            else:
                value = normal(parameter.shape, 0.0, parameter.shape[-1] ** -0.5)
            parameter.copy_(value)


def build(case):
    """The case's model, in f32, with eager attention and seeded weights."""
    model = case.model_class(case.config).eval()
    assert model.config._attn_implementation == "eager"
    randomise(model, case.seed)
    return model


def inputs(case):
    """Per sequence (ids, labels): the first third of the labels is a masked prompt, as is about
    a tenth of the rest; the shortest sequence keeps at least one supervised token."""
    generator = torch.Generator().manual_seed(1000 + case.seed)
    sequences = []
    for length in case.lengths:
        ids = torch.randint(0, case.config.vocab_size, (length,), generator=generator)
        labels = ids.clone()
        labels[: max(1, length // 3)] = IGNORE
        holes = torch.rand(length, generator=generator) < 0.1
        holes[-1] = False
        labels[holes] = IGNORE
        sequences.append((ids, labels))
    return sequences
