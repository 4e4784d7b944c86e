"""Golden values of every dense family, from transformers and peft on tiny random models.

    python3 scripts/goldens/families.py [--out FOLDER] [--only NAME …]

One folder per model, described in the README.md beside them. Everything is f32 on one thread.
Run it after a change of a case or of a pinned version (scripts/requirements.txt), never to make
a failing test pass.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import tiny_gguf
import tiny_models
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import IGNORE
from transformers.utils import logging

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/families/tests/golden"

LORA_RANK = 4
LORA_ALPHA = 8
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

PACK_TOLERANCE = 2e-5
"""Largest difference allowed between a logit computed alone and packed, relative to the largest logit."""


def shifted(labels):
    """`targets[t]` is the label that the logits of position t predict; the last has none."""
    targets = torch.full_like(labels, IGNORE)
    targets[:-1] = labels[1:]
    return targets


def score(model, sequences):
    """Logits [T, vocab], log-probs [T] of each next token (0 at a sequence's last position) and
    the loss: minus the mean log-prob of the supervised tokens of all sequences together."""
    logits, logprobs, total, count = [], [], 0.0, 0
    for ids, labels in sequences:
        out = model(input_ids=ids[None], use_cache=False).logits[0]
        picked = torch.log_softmax(out[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
        active = shifted(labels)[:-1] != IGNORE
        total = total - picked[active].sum()
        count += int(active.sum())
        logits.append(out)
        logprobs.append(torch.cat([picked, torch.zeros(1)]))
    return torch.cat(logits), torch.cat(logprobs), total / count


def score_packed(model, sequences):
    """Logits [T, vocab] of all sequences in one row: positions restart, attention is causal inside
    each segment and nothing else."""
    lengths = [len(ids) for ids, _ in sequences]
    total = sum(lengths)
    positions = torch.cat([torch.arange(n) for n in lengths])
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    index = torch.arange(total)
    visible = (segment[:, None] == segment[None]) & (index[:, None] >= index[None])
    mask = torch.zeros(total, total).masked_fill(~visible, torch.finfo(torch.float32).min)
    ids = torch.cat([ids for ids, _ in sequences])
    out = model(
        input_ids=ids[None], position_ids=positions[None], attention_mask=mask[None, None], use_cache=False
    )
    return out.logits[0]


def check_packed(name, model, sequences, logits):
    """Packed and alone must agree, or the golden values would not define either."""
    with torch.no_grad():
        packed = score_packed(model, sequences)
    worst = float((packed - logits.detach()).abs().max() / packed.abs().max())
    if worst > PACK_TOLERANCE:
        raise SystemExit(f"{name}: packed logits differ from those of the sequences alone by {worst:.2e}")
    return worst


def gradients(model, loss):
    """Every trainable parameter's gradient of the loss, by name; each must exist and not be zero."""
    model.zero_grad()
    loss.backward()
    grads = {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    for name, grad in grads.items():
        if not torch.isfinite(grad).all() or float(grad.abs().max()) == 0.0:
            raise SystemExit(f"gradient of {name} is zero or not finite")
    return grads


def with_adapter(model, seed):
    """The model under a LoRA whose A and B are both random, so that both have gradients."""
    config = LoraConfig(
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        lora_dropout=0.0,
        bias="none",
        target_modules=LORA_TARGETS,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(2000 + seed)
    with torch.no_grad():
        for name, parameter in sorted(adapted.named_parameters()):
            if "lora_" in name:
                std = parameter.shape[-1] ** -0.5 * (0.5 if "lora_B" in name else 1.0)
                parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return adapted


def copy(source, target):
    """A copy with ordinary permissions: safetensors writes files that only their owner can read."""
    target.write_bytes(source.read_bytes())


def save_model(model, folder):
    """config.json and model.safetensors as transformers writes them, and nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for name in ("config.json", "model.safetensors"):
            copy(Path(scratch) / name, folder / name)


def save_adapter(adapted, folder):
    """adapter_config.json and adapter_model.safetensors as peft writes them."""
    folder.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        adapted.save_pretrained(scratch)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            copy(Path(scratch) / name, folder / name)
    # peft writes a set, so in another order every time.
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort(key=LORA_TARGETS.index)
    path.write_text(json.dumps(config, indent=2) + "\n")


def peft_key(name):
    """The adapter file's key of a parameter of the wrapped model."""
    return name.replace(".default.", ".")


def generate(case, out):
    """Writes one golden folder; returns a line for the terminal."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sequences = tiny_models.inputs(case)
    labels = torch.cat([labels for _, labels in sequences])
    golden = {
        "lengths": torch.tensor(case.lengths),
        "ids": torch.cat([ids for ids, _ in sequences]),
        "labels": labels,
        "targets": torch.cat([shifted(labels) for _, labels in sequences]),
    }

    model = tiny_models.build(case)
    save_model(model, folder)
    logits, logprobs, loss = score(model, sequences)
    worst = check_packed(case.name, model, sequences, logits) if case.packs else None
    golden |= {"logits": logits, "logprobs": logprobs, "loss": loss[None]}
    golden |= {f"grad.{n}": g for n, g in gradients(model, loss).items()}

    adapted = with_adapter(model, case.seed)
    save_adapter(adapted, folder / "adapter")
    lora_logits, lora_logprobs, lora_loss = score(adapted, sequences)
    golden |= {"lora.logits": lora_logits, "lora.logprobs": lora_logprobs, "lora.loss": lora_loss[None]}
    golden |= {f"lora.grad.{peft_key(n)}": g for n, g in gradients(adapted, lora_loss).items()}
    adapter_keys = set(load_file(folder / "adapter/adapter_model.safetensors"))
    grad_keys = {k.removeprefix("lora.grad.") for k in golden if k.startswith("lora.grad.")}
    if adapter_keys != grad_keys:
        raise SystemExit(
            f"{case.name}: adapter keys and LoRA gradient keys differ: {adapter_keys ^ grad_keys}"
        )

    golden_path = folder / "golden.safetensors"
    save_file({k: v.detach().contiguous() for k, v in golden.items()}, golden_path)
    golden_path.chmod(0o644)
    if case.gguf:
        tiny_gguf.write(case, folder, sequences, logits.detach(), score)
    packed = "not packed" if worst is None else f"packed differs by {worst:.1e}"
    return f"{case.name:20} loss {loss.item():.4f}, LoRA {lora_loss.item():.4f}, {packed}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--only", nargs="*", default=None, metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    chosen = [c for c in tiny_models.cases() if args.only is None or c.name in args.only]
    if not chosen:
        raise SystemExit(
            "--only names no case; the cases are " + ", ".join(c.name for c in tiny_models.cases())
        )
    for case in chosen:
        print(generate(case, args.out), flush=True)


if __name__ == "__main__":
    main()
