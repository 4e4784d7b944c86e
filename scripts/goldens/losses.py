"""Coefficients of policy losses and of DPO, by torch's automatic differentiation of trl's formulas.

trl 0.24, `GRPOTrainer._compute_loss` (loss types `grpo`, `bnpo`, `dr_grpo`; `epsilon`, `epsilon_high`, `beta`), `_generate_and_score_completions`
(advantages) and `DPOTrainer.dpo_loss` (`sigmoid`). The estimators k1 and k2 of the divergence, which trl has not, are those
of Schulman, "Approximating KL divergence" (2020). Everything in f64, from numbers that f32 holds.

    python scripts/goldens/losses.py crates/rl/tests/golden/losses.json
"""

import itertools
import json
import sys

import torch

torch.manual_seed(7)
LENGTHS = [5, 1, 8, 3, 7, 2]
MAX_TOKENS = 9
NORMALISE = {"sequence": "grpo", "token": "bnpo", "constant": "dr_grpo"}


def f32(tensor):
    """The nearest numbers that f32 holds, as f64."""
    return tensor.to(torch.float32).to(torch.float64)


def numbers(scale):
    return [f32(-scale * torch.rand(n, dtype=torch.float64)) for n in LENGTHS]


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def divergence(name, logp, reference):
    x = reference - logp
    return {"k1": -x, "k2": x * x / 2, "k3": torch.exp(x) - x - 1}[name]


def policy_loss(case, logp, old, reference, advantages, mask):
    """trl's `_compute_loss` on padded rows."""
    ratio = torch.exp(logp - old)
    clipped = torch.clamp(ratio, 1 - case["clip_low"], 1 + case["clip_high"])
    advantages = advantages.unsqueeze(1)
    token = -torch.min(ratio * advantages, clipped * advantages)
    if case["kl"] is not None:
        token = token + case["kl_coef"] * divergence(case["kl"], logp, reference)
    kind = NORMALISE[case["normalise"]]
    if kind == "grpo":
        return ((token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if kind == "bnpo":
        return (token * mask).sum() / mask.sum().clamp(min=1.0)
    return (token * mask).sum() / (token.size(0) * MAX_TOKENS)


def policy_cases():
    logp = numbers(3.0)
    # Some ratios are inside the clips, some outside on either side.
    old = [f32(row + 0.8 * (torch.rand_like(row) - 0.5)) for row in logp]
    reference = [f32(row + 0.6 * (torch.rand_like(row) - 0.5)) for row in logp]
    rewards = f32(torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 0.5], dtype=torch.float64))
    mask = padded([torch.ones(n, dtype=torch.float64) for n in LENGTHS])
    for normalise, kl, by_std in itertools.product(NORMALISE, [None, "k1", "k2", "k3"], [True, False]):
        advantages = rewards - rewards.mean()
        if by_std:
            advantages = advantages / (rewards.std() + 1e-4)
        case = {"normalise": normalise, "max_tokens": MAX_TOKENS, "clip_low": 0.2, "clip_high": 0.28}
        case |= {"kl": kl, "kl_coef": 0.05, "by_std": by_std}
        leaf = padded(logp).requires_grad_()
        loss = policy_loss(case, leaf, padded(old), padded(reference), advantages, mask)
        loss.backward()
        lists = {"logp": logp, "old": old, "reference": reference}
        case |= {name: [row.tolist() for row in rows] for name, rows in lists.items()}
        case |= {"rewards": rewards.tolist(), "advantages": advantages.tolist(), "loss": loss.item()}
        case["coefs"] = [leaf.grad[i, :n].tolist() for i, n in enumerate(LENGTHS)]
        yield case


def dpo_cases():
    for beta in [0.1, 0.5]:
        logp, reference = numbers(2.0), numbers(2.0)
        leaves = [row.clone().requires_grad_() for row in logp]
        sums = [row.sum() for row in leaves]
        chosen, rejected = torch.stack(sums[::2]), torch.stack(sums[1::2])
        base = torch.stack([row.sum() for row in reference])
        logits = (chosen - rejected) - (base[::2] - base[1::2])
        loss = -torch.nn.functional.logsigmoid(beta * logits).mean()
        loss.backward()
        yield {
            "beta": beta,
            "logp": [row.tolist() for row in logp],
            "reference": [row.tolist() for row in reference],
            "loss": loss.item(),
            "coefs": [row.grad.tolist() for row in leaves],
        }


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump({"policy": list(policy_cases()), "dpo": list(dpo_cases())}, out, indent=1)
        out.write("\n")
