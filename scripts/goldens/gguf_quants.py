#!/usr/bin/env python3
"""Golden values for the GGUF writer: crates/formats/tests/golden/quants.gguf.

One GGUF file, written by the reference package (gguf 0.19), that holds `input`, rows of f32 numbers of many sizes, and
for every storage format that is written a tensor of its name with the bytes to which the package brings them.
Deterministic: running it again gives the same bytes.

Needs: pip install gguf==0.19.0 numpy. Usage: python3 scripts/goldens/gguf_quants.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

OUT = Path(__file__).resolve().parents[2] / "crates/formats/tests/golden/quants.gguf"
WIDTH = 64


def rows() -> np.ndarray:
    rng = np.random.default_rng(20261130)
    normal = [rng.standard_normal(WIDTH) * 10.0**power for power in range(-8, 4) for _ in range(4)]
    # Ties: numbers halfway between two steps of a block's scale, of both signs; the largest of both signs at once.
    steps = np.arange(WIDTH) / 2 - 16
    tied = [steps * 127 / 16, steps * 8 / 16, np.where(np.arange(WIDTH) % 2, 127.0, -127.0)]
    special = [np.zeros(WIDTH), -np.zeros(WIDTH), np.full(WIDTH, -3.5), np.eye(1, WIDTH, 40)[0] * 1e-3]
    # Uniform f32 bit patterns within what f16 holds.
    bits = rng.integers(0, 1 << 32, (16, WIDTH), dtype=np.uint32)
    exponents = rng.integers(127 - 20, 127 + 15, (16, WIDTH), dtype=np.uint32)
    patterns = ((bits & 0x807FFFFF) | (exponents << 23)).view(np.float32)
    return np.concatenate([np.array(normal + tied + special, dtype=np.float32), patterns])


def main() -> None:
    numbers = rows()
    writer = gguf.GGUFWriter(OUT, "golden")
    writer.add_tensor("input", numbers)
    for kind in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0):
        stored = numbers.astype(np.float16) if kind == Type.F16 else gguf.quantize(numbers, kind)
        writer.add_tensor(kind.name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
