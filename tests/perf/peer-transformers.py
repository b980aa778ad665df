#!/usr/bin/env python3
"""Hugging Face transformers' own continuous batching in a closed loop: a peer for `octet serve`.

    peer-transformers.py CONFIG.json [--concurrency 1,16,64,256] [--input 1024] [--output 256]
                         [--requests-per-slot 2] [--window-s 20] [--attention sdpa] [--graphs]
                         [--json FILE]

The model is made from a config of the zoo with random bfloat16 weights on the GPU; prompts are
random ids, as many tokens are asked for as stated. No HTTP and no text: what is measured is the
engine. A run at one concurrency ends with its last request, or after the window: then tokens of
requests that are under way count too. Output tokens per second are of the whole run; TTFT and ITL
are from the times of tokens that the library records. Made for transformers 5.
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
    p.add_argument("--attention", default="sdpa")
    p.add_argument("--graphs", action="store_true", help="ask for CUDA graphs")
    p.add_argument("--window-s", type=float, default=20, help="at one concurrency")
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


def stamps(result):
    """Times of a request's tokens, where the library records them."""
    for name in ("timestamps", "token_timestamps"):
        values = getattr(result, name, None)
        if values:
            return list(values)
    return []


def under_way(manager):
    """What the library knows of requests that have not ended."""
    scheduler = getattr(getattr(manager, "batch_processor", None), "scheduler", None)
    return list(getattr(scheduler, "active_requests", {}).values())


def closed_loop(model, generation, batching, args, n):
    """n requests at a time, a new one for each that ends."""
    vocab, total = model.config.vocab_size, n * args.requests_per_slot
    rng = random.Random(n)

    def prompt():
        return [rng.randrange(100, vocab - 1000) for _ in range(args.input)]

    sent, ttft, gaps, e2e = {}, [], [], []
    ended = out = 0
    with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching, block=True,
            timeout=5) as manager:

        def add():
            request = manager.add_request(prompt(), max_new_tokens=args.output,
                                          record_timestamps=True)
            sent[request] = time.perf_counter()

        def take(result, now):
            times = stamps(result)
            gaps.extend(b - a for a, b in zip(times, times[1:]))
            if times and abs(times[-1] - now) < 60:  # of the same clock
                ttft.append(times[0] - sent[result.request_id])
            return len(result.generated_tokens)

        begun = time.perf_counter()
        for _ in range(n):
            add()
        while ended < total and time.perf_counter() < begun + args.window_s:
            result = manager.get_result(timeout=1)
            if result is None or not result.is_finished():
                if result is None and not manager.is_running():
                    raise RuntimeError("its thread ended")
                continue
            now = time.perf_counter()
            ended += 1
            out += take(result, now)
            e2e.append(now - sent[result.request_id])
            if len(sent) < total:
                add()
        took = time.perf_counter() - begun
        for state in under_way(manager):
            if state.request_id in sent:
                out += take(state, begun + took)
        for request in sent:
            manager.cancel_request(request)
    return {
        "concurrency": n,
        "requests_ended": ended,
        "output_tokens": out,
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
        from transformers.generation import ContinuousBatchingConfig
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
    batching = ContinuousBatchingConfig(allow_block_sharing=False,
                                        use_cuda_graph=True if args.graphs else None)
    rows = []
    for n in (int(c) for c in args.concurrency.split(",")):
        try:
            row = closed_loop(model, generation, batching, args, n)
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
