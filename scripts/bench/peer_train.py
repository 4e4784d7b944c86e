"""The training peer: transformers + peft LoRA on all seven linears of SmolLM2-135M, AdamW.

    python3 scripts/bench/peer_train.py [--batch 4] [--seq 512] [--dtype float32|bfloat16]
        [--steps 5] [--threads 2] [--checkpointing] [--random | --gguf FILE] [--json]

Token ids are random and all supervised, so every step does the same work. A step is forward,
backward and the optimizer's update; the first is not timed. In bfloat16 the base is bfloat16 and
the adapter f32 (peft's default). Peak resident is of the whole process, loading included.
"""

import peer
import torch
from peft import LoraConfig, get_peft_model

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(model, rank):
    """The model under a LoRA of the given rank on all seven linears (alpha = 2 · rank)."""
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config).train()


def step(model, optimizer, ids):
    """Forward, backward and update; the loss in nats."""
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    parser = peer.parser(__doc__)
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--seq", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations layer by layer")
    args = parser.parse_args()
    base = peer.load(args)
    loaded_gib = peer.peak_resident_gib()
    if args.checkpointing:
        base.gradient_checkpointing_enable()
        base.enable_input_require_grads()
    model = adapted(base, args.rank)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr)
    generator = torch.Generator().manual_seed(args.seed)
    clock, loss = peer.Clock(args.threads), None
    for number in range(args.steps + 1):
        ids = torch.randint(0, base.config.vocab_size, (args.batch, args.seq), generator=generator)
        if number == 0:
            loss = step(model, optimizer, ids)
        else:
            loss = clock.time(lambda ids=ids: step(model, optimizer, ids))
    result = {
        "batch": args.batch,
        "seq": args.seq,
        "rank": args.rank,
        "checkpointing": args.checkpointing,
        "trainable_parameters": sum(p.numel() for p in trainable),
        "last_loss": loss,
        **peer.spread(args.batch * args.seq, clock.seconds),
        "cpu_share": clock.cpu_share(),
        "loaded_peak_gib": loaded_gib,
        "peak_resident_gib": peer.peak_resident_gib(),
    }
    peer.report(args, result)


if __name__ == "__main__":
    main()
