#!/usr/bin/env python3
"""Encodes texts with transformers, for the tests of crates/text.

    python3 scripts/goldens/token_ids.py SMOLLM2.gguf TOKENIZERS_DIR

The arguments are those of chat_templates.py. Writes crates/text/tests/golden/tokenizers.json: the texts, and per
tokenizer their ids and what these decode to.

SmolLM2's reference is transformers' reading of the GGUF file with the pre-tokenizer of the model's own tokenizer.json
put back (every digit alone, then GPT-2's pattern; llama.cpp calls it `smollm`): transformers 5.24 ignores
`tokenizer.ggml.pre` for it and reads white space before digits otherwise than the model was trained. The ids of its
plain reading are stored beside where they differ.

Needs transformers 5.24.0, torch (for reading GGUF) and gguf.
"""

import json
import pathlib
import sys

import tokenizers
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/text/tests/golden/tokenizers.json"

TEXTS = {
    "prose": [
        "Hello, world!",
        "The quick brown fox jumps over the lazy dog. It's John's, isn't it? We'LL see; they'd've known.",
        "",
        " ",
        "a",
        "“Curly quotes” — and an em dash… naïve café, Straße, ĳ, ﬁ.",
    ],
    "unicode": [
        "Grüße aus 北京! Привет, мир. שלום עולם. नमस्ते दुनिया. こんにちは世界。 안녕하세요",
        "👩‍👩‍👧‍👦 🇨🇭 🏳️‍🌈 e\u0301 \u00e9 \u212b \ufb01 \u2460 ½ ² ٣ 五",
        "zero\u200bwidth\u00a0nbsp\u2003em\u3000wide\ufeffbom \u0000nul \u007f del \ud7ff \ue000 \U0010fffd",
    ],
    "digits": [
        "1234567890",
        "3.14159 + 2,718,281 = 2718284.14159",
        "a1b22c333d4444",
        "x  1   22\t333 \n 4",
        "2026-11-30T17:00:00Z v1.2.3 0x7fff 1e-5 ²³ ①② ٣٤",
    ],
    "white_space": [
        "  two   three    four\ttab\t\ttabs",
        "line\nline\n\nline\r\nline\r\r\n \n  \n",
        "trailing   ",
        "   ",
        "\n",
        "\n\n\n   x\n   y   \n",
    ],
    "code": [
        "def f(x: int) -> int:\n    return x ** 2  # squared\n\n\nif __name__ == \"__main__\":\n\tprint(f(12))\n",
        "for (let i = 0; i < 10; i++) { a[i] += `${b}\\n`; }",
        "SELECT * FROM t WHERE x >= 1.5e3 AND y != 'it''s' -- done",
        "<html><body class=\"x\">&nbsp;</body></html> {{ jinja }} {% if %} $\\frac{1}{2}$",
    ],
    "special": [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "a<|endoftext|>b <|im_end|> c<|im_end|><|im_end|>",
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n<eos>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        "<think>\nhm\n</think>\n\n<tool_call>{}</tool_call> <|im_start |> <|IM_END|> <0x41> <pad><unk>",
    ],
}


def smollm2(path):
    path = pathlib.Path(path)
    plain = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    own = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    own.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return own, plain


def entry(tokenizer, plain, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    decode = lambda skip: tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    golden = {"ids": ids, "with_special": tokenizer(text).input_ids, "decoded": decode(False), "skipped": decode(True)}
    # Most are alike; only what differs is stored.
    for name, like in [("with_special", ids), ("decoded", text), ("skipped", golden["decoded"])]:
        if golden[name] == like:
            del golden[name]
    if plain is not None and (other := plain(text, add_special_tokens=False).input_ids) != ids:
        golden["transformers_gguf_ids"] = other
    return golden


def main():
    gguf_path, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    readers = {"smollm2": smollm2(gguf_path)}
    readers |= {n: (AutoTokenizer.from_pretrained(folder / n), None) for n in ["qwen3", "gemma3", "llama3_1"]}
    golden = {
        "made_with": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "texts": TEXTS,
        "tokenizers": {
            name: {kind: [entry(own, plain, text) for text in texts] for kind, texts in TEXTS.items()}
            for name, (own, plain) in readers.items()
        },
    }
    # One tokenizer a line keeps the file small and its changes readable.
    OUT.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
