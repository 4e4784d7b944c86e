"""Trains the same shape with samebit and with HF + PEFT, in turn, and prints medians and ratios.

    python3 scripts/bench/compare.py MODEL.gguf [--rounds 3] [--steps 3] [--threads 2] [--only TEXT]

Each round runs every variant once, so a machine whose speed drifts drifts for all of them. Needs
`cargo build --release` and scripts/requirements.txt.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEER = "HF + PEFT f32, 4 x 512"
ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMEBIT = ROOT / "target" / "release" / "samebit"


def samebit(model, steps, threads, *extra):
    command = [SAMEBIT, "bench", "train", model, "--steps", steps, "--threads", threads, "--json", *extra]
    report = json.loads(subprocess.run([str(c) for c in command], check=True, capture_output=True).stdout)
    return report["train_tokens_per_s"], report["peak_resident_bytes"] / 2**30


def peer(model, steps, threads, batch, seq):
    command = [
        sys.executable, ROOT / "scripts/bench/peer_train.py", "--gguf", model, "--batch", batch, "--seq", seq,
        "--dtype", "float32", "--steps", steps, "--threads", threads, "--json",
    ]
    done = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    return report["tokens_per_s"], report["peak_resident_gib"]


def variants(model, steps, threads):
    def ours(*extra):
        return lambda: samebit(model, steps, threads, *extra)

    return {
        PEER: lambda: peer(model, steps, threads, 4, 512),
        "HF + PEFT f32, 1 x 2048": lambda: peer(model, steps, threads, 1, 2048),
        "samebit cpu-f32, 4 x 512": ours("--weights", "bf16"),
        "samebit cpu-f32, 4 x 512, 1 GiB lease": ours("--weights", "bf16", "--memory", "1GiB"),
        "samebit cpu-f32, 1 x 2048": ours("--weights", "bf16", "--batch", "1", "--sequence", "2048"),
        "samebit cpu-bf16, 4 x 512": ours("--weights", "bf16", "--profile", "cpu-bf16"),
        "samebit cpu-bf16-tiles, 4 x 512": ours("--weights", "bf16", "--profile", "cpu-bf16-tiles"),
        "samebit cpu-bf16-tiles, 1 x 2048": ours(
            "--weights", "bf16", "--profile", "cpu-bf16-tiles", "--batch", "1", "--sequence", "2048"
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="variants whose name holds this text, beside the first peer")
    args = parser.parse_args()
    runs = variants(args.model, args.steps, args.threads)
    runs = {name: run for name, run in runs.items() if args.only in name or name == PEER}
    figures = {name: [] for name in runs}
    for number in range(args.rounds):
        for name, run in runs.items():
            rate, peak = run()
            figures[name].append((rate, peak))
            print(f"round {number + 1}: {name}: {rate:.1f} tokens/s, peak {peak:.2f} GiB", file=sys.stderr)
    base = [rate for rate, _ in figures[PEER]]
    print("| variant | tokens/s (median) | peak resident GiB | ratio to HF + PEFT f32 4 x 512 (median of pairs) |")
    print("|---|---|---|---|")
    for name, values in figures.items():
        rates = [rate for rate, _ in values]
        ratio = statistics.median(rate / peer_rate for rate, peer_rate in zip(rates, base))
        peak = max(peak for _, peak in values)
        print(f"| {name} | {statistics.median(rates):.1f} | {peak:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
