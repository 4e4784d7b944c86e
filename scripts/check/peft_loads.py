"""Loads a LoRA adapter with peft onto a base and prints the log-probs of given ids as JSON.

    python3 scripts/check/peft_loads.py ADAPTER BASE --ids 1,2,3 [--logits]

BASE is a Hugging Face folder or a .gguf file. Exits 1 where a tensor of the adapter's file did not
reach the model with its bits, or the model has an adapter tensor that the file lacks.
"""

from pathlib import Path

import scoring
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file


def check_complete(model, path):
    """peft ignores what it does not know, so what it loaded is compared with the file."""
    want = load_file(path)
    got = get_peft_model_state_dict(model)
    if missing := sorted(set(got) - set(want)):
        scoring.fail(f"{path} lacks {missing}, which the adapter's config asks for")
    if unknown := sorted(set(want) - set(got)):
        scoring.fail(f"{path} holds {unknown}, which peft does not load")
    if not want:
        scoring.fail(f"{path} holds no tensors")
    for name, tensor in want.items():
        if not torch.equal(got[name].cpu(), tensor.to(got[name].dtype)):
            scoring.fail(f"{path}: {name} was not loaded as written")


def main():
    parser = scoring.parser(__doc__)
    parser.add_argument("adapter", help="a folder with adapter_config.json and adapter_model.safetensors")
    parser.add_argument("base", help="the model it was trained on: a folder or a .gguf file")
    args = parser.parse_args()
    base = scoring.load_base(args.base)
    adapter = Path(args.adapter)
    if not (adapter / "adapter_config.json").exists():
        scoring.fail(f"{adapter}: no adapter_config.json there")
    model = PeftModel.from_pretrained(base, adapter).eval()
    check_complete(model, adapter / "adapter_model.safetensors")
    scoring.report(model, args)


if __name__ == "__main__":
    main()
