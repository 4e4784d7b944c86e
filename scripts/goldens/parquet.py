#!/usr/bin/env python3
"""Writes the Parquet files of crates/data's tests, as pyarrow writes them, each beside the same samples in JSON Lines.

    python3 scripts/goldens/parquet.py

Writes crates/data/tests/golden/parquet/*.parquet and *.jsonl, a few kB each. Needs pyarrow 26.
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/data/tests/golden/parquet"

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds — Σ.", "parameters": {"type": "object"}}}
CHATS = [
    {"id": "a", "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]},
    {
        "id": "b",
        "messages": [
            {"role": "system", "content": "Kürze."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello! 👋", "train": False},
            {"role": "user", "content": "Bye"},
            {"role": "assistant", "content": "Bye."},
        ],
    },
]
CALLS = [
    {
        "messages": [
            {"role": "user", "content": "1 + 2?"},
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}],
            },
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": "3"},
        ],
        "tools": [TOOL],
    }
]
PAIRS = [{"id": i, "prompt": f"{i} + 1 =", "completion": f" {i + 1}"} for i in range(3)]
TEXTS = [{"text": "Once."}, {"text": "Twice, and more."}]


def write(name, rows, table, **options):
    pq.write_table(table, OUT / f"{name}.parquet", **options)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (OUT / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    as_json = [{k: v if k == "id" else json.dumps(v) for k, v in row.items()} for row in CHATS]
    write("chats", CHATS, pa.Table.from_pylist(CHATS), compression="snappy")
    write("chats_as_json", CHATS, pa.Table.from_pylist(as_json), compression="zstd")
    write("calls", CALLS, pa.Table.from_pylist(CALLS), compression="gzip")
    large = pa.schema([("id", pa.int64()), ("prompt", pa.large_string()), ("completion", pa.string())])
    write("pairs", PAIRS, pa.Table.from_pylist(PAIRS, schema=large), compression="lz4", row_group_size=2)
    write("texts", TEXTS, pa.Table.from_pylist(TEXTS), compression="none")
    # What is refused: other columns, another type, text that is bytes, and JSON that is none.
    refused = {
        "other_columns": pa.table({"question": ["a"], "answer": ["b"]}),
        "half": pa.table({"prompt": ["a"], "answer": ["b"]}),
        "numbers": pa.table({"text": [1, 2]}),
        "bytes": pa.table({"text": [b"a"]}),
        "dates": pa.table({"messages": [[{"role": "user", "content": "a", "at": __import__("datetime").time(1)}]]}),
        "broken_json": pa.table({"messages": ["[]", "[{"]}),
        "empty": pa.table({"text": pa.array([], pa.string())}),
    }
    for name, table in refused.items():
        pq.write_table(table, OUT / f"refused_{name}.parquet")


if __name__ == "__main__":
    main()
