"""Log-probs of given token ids, shared by the scripts that check what samebit wrote."""

import argparse
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def parser(description):
    """The arguments that every check takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--ids", required=True, type=parse_ids, help="token ids, separated by commas; at least two"
    )
    made.add_argument("--logits", action="store_true", help="print the logits of every position too")
    return made


def parse_ids(text):
    """`1,2,3` → [1, 2, 3]."""
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a comma-separated list of token ids") from None
    if len(ids) < 2:
        raise argparse.ArgumentTypeError("a log-prob needs at least two ids")
    return ids


def fail(message):
    """Says why the check failed, on stderr, and exits 1."""
    print(message, file=sys.stderr)
    raise SystemExit(1)


def load_base(path):
    """A Hugging Face folder or a .gguf file, in f32."""
    path = Path(path)
    if not path.exists():
        fail(f"{path}: no such file or folder")
    common = {"dtype": torch.float32, "attn_implementation": "eager"}
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **common).eval()
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **common)
    problems = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if problems:
        fail(f"{path} does not load cleanly: {json.dumps(problems)}")
    return model.eval()


def report(model, args):
    """Prints {"logprobs": [...]}: log p(ids[t + 1] | ids[..=t]) in nats, one fewer than ids."""
    if max(args.ids) >= model.config.vocab_size or min(args.ids) < 0:
        fail(f"an id is outside the vocabulary of {model.config.vocab_size}")
    ids = torch.tensor(args.ids)
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    logprobs = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
    result = {"logprobs": logprobs.tolist()}
    if args.logits:
        result["logits"] = logits.tolist()
    print(json.dumps(result))
