#!/usr/bin/env python3
"""Golden values for the GGUF reader: crates/formats/tests/golden/dequant.gguf.

One GGUF file, written by the reference package (gguf 0.19), that holds for every supported storage format a tensor
NAME of random blocks and a tensor NAME.expected with what the package dequantizes them to; and a metadata entry of
every value type. Deterministic: running it again gives the same bytes.

Needs: pip install gguf==0.19.0 numpy. Usage: python3 scripts/goldens/gguf_dequant.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

OUT = Path(__file__).resolve().parents[2] / "crates/formats/tests/golden/dequant.gguf"
ROWS = 3
# Where each format keeps its f16 scales within a block: random bytes there must not be NaN or infinite.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}


def finite_halves(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random f16 bit patterns without NaN and infinity: subnormals, zeros of both signs and large values too."""
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
    return bits


def random_blocks(rng: np.random.Generator, kind: Type) -> np.ndarray:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks_a_row = 2 if block == 256 else 4
    blocks = rng.integers(0, 256, (ROWS * blocks_a_row, size), dtype=np.uint8)
    for at in SCALES[kind]:
        blocks[:, at : at + 2] = finite_halves(rng, len(blocks)).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, blocks_a_row * size)


def add_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("golden.u8", 200)
    writer.add_int8("golden.i8", -100)
    writer.add_uint16("golden.u16", 60000)
    writer.add_int16("golden.i16", -30000)
    writer.add_uint32("golden.u32", 4_000_000_000)
    writer.add_int32("golden.i32", -2_000_000_000)
    writer.add_uint64("golden.u64", 1 << 63)
    writer.add_int64("golden.i64", -(1 << 62))
    writer.add_float32("golden.f32", 1e-5)
    writer.add_float64("golden.f64", 1e-300)
    writer.add_bool("golden.bool", True)
    writer.add_string("golden.string", "naïve ☃ 語")
    writer.add_array("golden.strings", ["", "a", "Ġthe"])
    writer.add_array("golden.i32s", [3, -1, 0])
    writer.add_array("golden.f32s", [0.5, -2.0])
    writer.add_array("golden.bools", [True, False])


def main() -> None:
    rng = np.random.default_rng(20261130)
    writer = gguf.GGUFWriter(OUT, "golden")
    add_metadata(writer)
    for kind in SCALES:
        raw = random_blocks(rng, kind)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.expected", gguf.dequantize(raw, kind))
    for kind, bits in ((Type.F16, finite_halves(rng, ROWS * 64)), (Type.BF16, finite_halves(rng, ROWS * 64))):
        raw = bits.reshape(ROWS, 64)
        stored = raw.view(np.float16) if kind == Type.F16 else raw.view(np.uint8)
        expected = stored.astype(np.float32) if kind == Type.F16 else gguf.dequantize(stored, kind)
        writer.add_tensor(kind.name, stored, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.expected", expected)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
