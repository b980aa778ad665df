#!/usr/bin/env python3
"""Hugging Face transformers' own continuous batching in a closed loop: a peer for `octet serve`.

    peer-transformers.py CONFIG.json [--concurrency 1,16,64,256] [--input 1024] [--output 256]
                         [--requests-per-slot 2] [--attention paged|sdpa] [--json FILE]

The model is made from a config of the zoo with random bfloat16 weights on the GPU; prompts are
random ids, as many tokens are asked for as stated. No HTTP and no text: what is measured is the
engine. Output tokens per second are of the whole run, TTFT and ITL are of streamed outputs where
the library streams.
"""
import argparse
import json
import random
import statistics
import sys
import time


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--concurrency", default="1,16,64,256")
    p.add_argument("--input", type=int, default=1024)
    p.add_argument("--output", type=int, default=256)
    p.add_argument("--requests-per-slot", type=int, default=2)
    p.add_argument("--attention", default="paged|sdpa")
    p.add_argument("--limit-s", type=float, default=60)
    p.add_argument("--json")
    return p.parse_args()


def make_model(args):
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    with open(args.config) as f:
        values = json.load(f)
    config = LlamaConfig(**{k: v for k, v in values.items() if k != "model_type"})
    torch.manual_seed(1)
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=args.attention)
    torch.set_default_device("cpu")
    torch.set_default_dtype(torch.float32)
    return model.eval()


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def closed_loop(model, generation, args, n, deadline):
    """n requests at a time, a new one for each that ends."""
    vocab, total = model.config.vocab_size, n * args.requests_per_slot
    rng = random.Random(n)

    def prompt():
        return [rng.randrange(100, vocab - 1000) for _ in range(args.input)]

    manager = model.init_continuous_batching(generation_config=generation)
    manager.start()
    sent, first, tokens, last, gaps = {}, {}, {}, {}, []
    begun = time.perf_counter()

    def add():
        request = manager.add_request(prompt(), max_new_tokens=args.output, streaming=True)
        sent[request] = time.perf_counter()

    for _ in range(n):
        add()
    ended, ttft, e2e, out = 0, [], [], 0
    try:
        while ended < total and time.perf_counter() < deadline:
            result = manager.get_result(timeout=1)
            if result is None:
                continue
            now, request = time.perf_counter(), result.request_id
            count = len(result.generated_tokens)
            if count > tokens.get(request, 0):
                if request not in first:
                    first[request] = now
                    ttft.append(now - sent[request])
                else:
                    gaps.append(now - last[request])
                out += count - tokens.get(request, 0)
                tokens[request], last[request] = count, now
            if result.is_finished():
                ended += 1
                e2e.append(now - sent[request])
                if len(sent) < total:
                    add()
    finally:
        took = time.perf_counter() - begun
        manager.stop(block=True, timeout=5)
    return {
        "concurrency": n,
        "requests": ended,
        "seconds": took,
        "output_tokens_per_s": out / took,
        "ttft_p50_ms": statistics.median(ttft) * 1e3 if ttft else None,
        "itl_mean_ms": statistics.fmean(gaps) * 1e3 if gaps else None,
        "itl_p99_ms": percentile(gaps, 0.99) * 1e3 if gaps else None,
        "e2e_p50_s": statistics.median(e2e) if e2e else None,
    }


def main():
    args = parse()
    try:
        import torch
        import transformers
        from transformers import GenerationConfig
    except ImportError as e:
        print(f"peer-transformers: skipped: {e}")
        return 0
    if not torch.cuda.is_available():
        print("peer-transformers: skipped: no GPU")
        return 0
    begun = time.perf_counter()
    model = make_model(args)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, "
          f"{torch.cuda.get_device_name()}, {args.attention}, model made in "
          f"{time.perf_counter() - begun:.1f} s", flush=True)
    generation = GenerationConfig(max_new_tokens=args.output, min_new_tokens=args.output,
                                  do_sample=False, eos_token_id=-1, pad_token_id=0)
    rows, deadline = [], begun + args.limit_s
    for n in (int(c) for c in args.concurrency.split(",")):
        if time.perf_counter() > deadline:
            break
        try:
            row = closed_loop(model, generation, args, n, deadline)
        except Exception as e:  # the library's interface differs by version: say so, go on
            print(f"concurrency {n}: {type(e).__name__}: {e}", flush=True)
            continue
        rows.append(row)
        print(" ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}"
                       for k, v in row.items()), flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"transformers": transformers.__version__, "torch": torch.__version__,
                       "attention": args.attention, "runs": rows}, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
