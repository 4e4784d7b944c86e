"""The generation peer: transformers' `generate` on SmolLM2-135M, batch 1, greedy, with its cache.

    python3 scripts/bench/peer_generate.py [--prompt 512] [--new 64] [--dtype float32|bfloat16]
        [--repeats 5] [--threads 2] [--random | --gguf FILE] [--json]

Prefill is one forward pass over the prompt that keeps the cache and the last position's logits
only. Decode is `generate` from a prompt of 16 tokens for `--new` tokens, end markers ignored; its
own prefill of 16 is timed apart and taken off.
"""

import statistics

import peer
import torch

SHORT_PROMPT = 16


def timed(call, threads, repeats):
    """A clock with the seconds of each of `repeats` calls, after one that is not timed."""
    call()
    clock = peer.Clock(threads)
    for _ in range(repeats):
        clock.time(call)
    return clock


def main():
    parser = peer.parser(__doc__)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prefill")
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model = peer.load(args)
    generator = torch.Generator().manual_seed(args.seed)
    ids = torch.randint(0, model.config.vocab_size, (1, max(args.prompt, SHORT_PROMPT)), generator=generator)
    short = ids[:, :SHORT_PROMPT]

    def generate(new):
        out = model.generate(
            short,
            attention_mask=torch.ones_like(short),
            do_sample=False,
            max_new_tokens=new,
            eos_token_id=None,
            pad_token_id=0,
        )
        if out.shape[1] != SHORT_PROMPT + new:
            raise SystemExit(f"generate stopped after {out.shape[1] - SHORT_PROMPT} of {new} tokens")

    def prefill():
        model(ids[:, : args.prompt], use_cache=True, logits_to_keep=1)

    with torch.no_grad():
        prefills = timed(prefill, args.threads, args.repeats)
        first = statistics.median(timed(lambda: generate(1), args.threads, args.repeats).seconds)
        decodes = timed(lambda: generate(1 + args.new), args.threads, args.repeats)
    decode_seconds = [seconds - first for seconds in decodes.seconds]
    result = {
        "prompt": args.prompt,
        "new": args.new,
        **{f"prefill_{k}": v for k, v in peer.spread(args.prompt, prefills.seconds).items()},
        **{f"decode_{k}": v for k, v in peer.spread(args.new, decode_seconds).items()},
        "prefill_cpu_share": prefills.cpu_share(),
        "decode_cpu_share": decodes.cpu_share(),
        "peak_resident_gib": peer.peak_resident_gib(),
    }
    peer.report(args, result)


if __name__ == "__main__":
    main()
