"""Additions as prompts with answers, for `samebit rl`: a few worked examples, then one to do.

    python scripts/tasks/additions.py OUT_DIR [--digits 2] [--shots 2] [--train 2000] [--held-out 100] [--seed 0]

writes OUT_DIR/train.jsonl and OUT_DIR/held-out.jsonl, with no problem in both. Give them with `raw = true`, stop at a
line's end and grade by `reward = "numeric"`.
"""

import argparse
import json
import pathlib
import random


def problems(rng, digits, count):
    """`count` different problems (a, b)."""
    low, high = 10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1
    found = {}
    while len(found) < count:
        found[(rng.randint(low, high), rng.randint(low, high))] = None
    return list(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--digits", type=int, default=2)
    parser.add_argument("--shots", type=int, default=2)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    shots = problems(rng, args.digits, args.shots)
    given = "".join(f"{a}+{b}={a + b}\n" for a, b in shots)
    drawn = problems(rng, args.digits, args.train + args.held_out + len(shots))
    todo = [p for p in drawn if p not in shots][: args.train + args.held_out]
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"held-out": todo[: args.held_out], "train": todo[args.held_out :]}
    for name, part in parts.items():
        with open(args.out / f"{name}.jsonl", "w") as file:
            for a, b in part:
                line = {"prompt": f"{given}{a}+{b}=", "answer": a + b}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
