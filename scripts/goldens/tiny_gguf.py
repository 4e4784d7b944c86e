"""The tiny models as GGUF files, laid out as llama.cpp's converter lays them out.

For the llama architecture the rows of q and k are permuted from transformers' half-split rotary
order to the interleaved one; qwen3 keeps them. A llama3 rope scaling becomes the tensor
`rope_freqs.weight` of frequency divisors. Matrices are F32 or Q8_0, vectors always F32.
"""

import math

import gguf
import numpy as np
import tiny_models
import torch
from gguf import GGMLQuantizationType as Quant
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROUND_TRIP_TOLERANCE = 1e-5
"""Largest difference, relative to the largest logit, between the F32 file's logits and the model's."""


def permute(weight, heads):
    """transformers' rows → GGUF's: within a head, (half, pair) becomes (pair, half)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight, heads):
    """GGUF's rows → transformers'."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def head_count(config, name):
    """Heads by which a tensor's rows are permuted, or None where they are not."""
    if config.model_type != "llama":
        return None
    if ".attn_q." in name:
        return config.num_attention_heads
    return config.num_key_value_heads if ".attn_k." in name else None


def rope_divisors(config):
    """llama3's frequency divisors, one per rotary pair, in the converter's own arithmetic."""
    p = config.rope_parameters
    freqs = 1.0 / (p["rope_theta"] ** (np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim))
    low_wavelength = p["original_max_position_embeddings"] / p["low_freq_factor"]
    high_wavelength = p["original_max_position_embeddings"] / p["high_freq_factor"]
    divisors = []
    for freq in freqs:
        wavelength = 2 * math.pi / freq
        if wavelength < high_wavelength:
            divisors.append(1.0)
        elif wavelength > low_wavelength:
            divisors.append(p["factor"])
        else:
            smooth = (p["original_max_position_embeddings"] / wavelength - p["low_freq_factor"]) / (
                p["high_freq_factor"] - p["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / p["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


def add_metadata(writer, config):
    """The keys a converter writes for a dense model; no tokenizer, since a random model has none."""
    writer.add_name("tiny")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def write_file(config, weights, path, quant):
    """One GGUF file of transformers-named weights."""
    arch = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    add_metadata(writer, config)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if quant == Quant.F32 else gguf.LlamaFileType.MOSTLY_Q8_0)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(config))
    for hf_name, tensor in weights.items():
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        value = tensor.numpy()
        if (heads := head_count(config, name)) is not None:
            value = permute(value, heads)
        if quant == Quant.F32 or value.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_back(config, weights, path):
    """The file's tensors under transformers' names, dequantized by the gguf package."""
    arch = gguf.MODEL_ARCH.LLAMA if config.model_type == "llama" else gguf.MODEL_ARCH.QWEN3
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    loaded = {}
    for hf_name in weights:
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        value = tensors[name]
        if (heads := head_count(config, name)) is not None:
            value = unpermute(value, heads)
        loaded[hf_name] = torch.from_numpy(np.array(value))
    return loaded


def logits_of(case, weights, sequences, score):
    """Logits [T, vocab] of the case's architecture on other weights."""
    model = tiny_models.build(case)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    allowed = {"lm_head.weight"} if case.config.tie_word_embeddings else set()
    if unexpected or set(missing) - allowed:
        raise SystemExit(f"{case.name}: the GGUF lacks {missing} and adds {unexpected}")
    with torch.no_grad():
        return score(model, sequences)[0]


def check_divisors(case, path):
    """The file's divisors must turn plain frequencies into those that transformers rotates by."""
    tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    if "rope_freqs.weight" not in tensors:
        return
    exponents = np.arange(0, case.config.head_dim, 2) / case.config.head_dim
    got = case.config.rope_parameters["rope_theta"] ** -exponents / tensors["rope_freqs.weight"]
    want = tiny_models.build(case).model.rotary_emb.inv_freq.numpy()
    if not np.allclose(got, want, rtol=1e-6, atol=0):
        raise SystemExit(f"{case.name}: rope_freqs.weight does not give transformers' frequencies")


def check_with_transformers(case, folder, sequences, logits, score):
    """Where transformers reads this GGUF in full, its reading must give the model's logits too:
    the permutation is then not only the inverse of our own. (It drops rope scalings, and qwen3's
    key length, so those cases cannot be asked.)"""
    if case.config.model_type != "llama" or case.config.rope_parameters["rope_type"] != "default":
        return
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="f32.gguf", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        compare(case, "transformers' reading of f32.gguf", score(model, sequences)[0], logits)


def compare(case, what, got, want):
    """Refuses a file whose logits are not the model's."""
    worst = float((got - want).abs().max() / want.abs().max())
    if worst > ROUND_TRIP_TOLERANCE:
        raise SystemExit(f"{case.name}: {what} gives logits that differ by {worst:.2e}")


def write(case, folder, sequences, logits, score):
    """gguf/{f32,q8_0}.gguf and gguf/golden.safetensors (the Q8_0 file's logits)."""
    target = folder / "gguf"
    target.mkdir()
    weights = load_file(folder / "model.safetensors")
    write_file(case.config, weights, target / "f32.gguf", Quant.F32)
    write_file(case.config, weights, target / "q8_0.gguf", Quant.Q8_0)
    round_trip = logits_of(case, read_back(case.config, weights, target / "f32.gguf"), sequences, score)
    compare(case, "f32.gguf", round_trip, logits)
    check_divisors(case, target / "f32.gguf")
    check_with_transformers(case, target, sequences, logits, score)
    quantized = logits_of(case, read_back(case.config, weights, target / "q8_0.gguf"), sequences, score)
    golden_path = target / "golden.safetensors"
    save_file({"q8_0.logits": quantized.contiguous()}, golden_path)
    golden_path.chmod(0o644)
