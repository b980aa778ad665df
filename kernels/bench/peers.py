#!/usr/bin/env python3
"""Other people's kernels on the shapes of bench-cuda, in the same rows and CSV.

    peers.py [--figures FILE] [--csv FILE] [--only TEXT] [--ranks N]

FILE of --figures is bench-cuda's CSV of the same run: its ceilings are the limits here, and its
times stand beside the peers'. Peers: torch's scaled-dot-product attention (flash and cuDNN),
cuBLASLt through torch.matmul and torch._scaled_mm, torch's grouped product, norms and sampling;
with --ranks above 1 NCCL's all-reduce through torch.distributed. Needs torch and a GPU. A peer that
refuses a shape is printed as such, with its words.
"""
import argparse
import csv
import math
import os
import statistics
import sys

PASSES = 15
VOCAB = 128256


class Bench:
    def __init__(self, torch, options):
        self.torch = torch
        self.only = options.only
        self.own = {}
        if options.figures:
            with open(options.figures, newline="") as f:
                self.own = {row["name"]: row for row in csv.DictReader(f)}
        self.read = self.ceiling("ceiling: read", "bytes")
        self.bf16 = self.ceiling("ceiling: bf16 product of side 8192", "flops")
        self.fp8 = self.ceiling("ceiling: fp8 product of side 8192", "flops")
        self.out = open(options.csv, "w") if options.csv else None
        if self.out:
            self.out.write("name,peer,us,bytes,flops,fraction,limit,own_us\n")

    def ceiling(self, name, field):
        """Of the same run, else no limit: then a row says how fast, and not how near to what."""
        row = self.own.get(name)
        return float(row[field]) / float(row["us"]) * 1e6 if row else math.inf

    def wants(self, name):
        return self.only is None or self.only in name

    def sets(self, size):
        """Sets of inputs that pass the L2 cache four times over."""
        return max(1, min(64, int(256e6 / size) + 1))

    def time(self, calls):
        """Median seconds of a call over passes of one graph that makes all of them."""
        torch = self.torch
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times = []
        for i in range(PASSES + 2):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= 2:
                times.append(start.elapsed_time(end) * 1e-3)
        return statistics.median(times) / len(calls)

    def run(self, name, peer, size, flops, rate, make):
        """make(i) gives the call on set i."""
        if not self.wants(name):
            return
        torch = self.torch
        n = self.sets(size)
        try:
            calls = [make(i) for i in range(n)]
            seconds = self.time(calls * (1 + 8 // n))
        except Exception as error:  # what a peer refuses has many types
            print(f"{name:<56} {peer:<14} refused: {str(error).splitlines()[0][:90]}")
            torch.cuda.empty_cache()
            return
        by_bytes, by_flops = size / self.read, flops / rate
        floor, limit = max((by_bytes, "read"), (by_flops, "arithmetic"))
        fraction, limit = (f"{floor / seconds:.4f}", limit) if floor > 0 else ("", "")
        share = f"{floor / seconds * 100:5.1f} % of the {limit} limit" if limit else ""
        own = self.own.get(name)
        beside = f"own {float(own['us']):9.2f} us" if own else ""
        print(
            f"{name:<56} {peer:<14} {seconds * 1e6:9.2f} us {size / seconds / 1e9:7.0f} GB/s "
            f"{flops / seconds / 1e12:7.1f} TF/s {share} {beside}",
            flush=True,
        )
        if self.out:
            own_us = own["us"] if own else ""
            self.out.write(
                f'"{name}",{peer},{seconds * 1e6:.3f},{size:.0f},{flops:.0f},'
                f"{fraction},{limit},{own_us}\n"
            )
        del calls
        torch.cuda.empty_cache()


def random(torch, *shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def attention(b):
    torch = b.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    shapes = [
        ("decode", 32, 8, 128, 64, 1, 8192),
        ("decode", 32, 8, 128, 1, 1, 1024),
        ("decode", 32, 8, 128, 1, 1, 131072),
        ("decode", 32, 8, 128, 16, 1, 1024),
        ("decode", 32, 8, 128, 64, 1, 1024),
        ("decode", 32, 8, 128, 256, 1, 1024),
        ("decode", 64, 8, 128, 64, 1, 8192),
        ("prefill", 32, 8, 128, 1, 8192, 8192),
        ("prefill", 32, 8, 128, 8, 1024, 1024),
        ("prefill", 32, 8, 64, 1, 8192, 8192),
    ]
    for kind, heads, kv, width, n, tokens, context in shapes:
        name = f"{kind} {heads}/{kv} x {width}, {n} x {tokens} tokens at {context}, bf16"
        size = 2.0 * n * context * kv * width * 2
        seen = context if tokens == 1 else context - (tokens - 1) / 2
        flops = 4.0 * n * tokens * seen * heads * width
        for peer, backend in backends.items():

            def make(_):
                q = random(torch, n, heads, tokens, width)
                k, v = random(torch, n, kv, context, width), random(torch, n, kv, context, width)

                def call():
                    with sdpa_kernel(backend):
                        torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, is_causal=tokens > 1, enable_gqa=True
                        )

                return call

            b.run(name, "sdpa " + peer, size, flops, b.bf16, make)


def products(b):
    torch = b.torch
    shapes = [("qkv", 6144, 4096), ("o", 4096, 4096), ("gate+up", 28672, 4096),
              ("down", 4096, 14336)]
    for shape, rows, columns in shapes:
        for m in (1, 4, 8, 16, 32, 64, 128, 256):
            name = f"product {shape} bf16 {m} x {rows} x {columns}, blas"
            size = 2.0 * rows * columns + 2.0 * m * (rows + columns)

            def make(_):
                w, x = random(torch, rows, columns), random(torch, m, columns)
                y = torch.empty(m, rows, device="cuda", dtype=torch.bfloat16)
                return lambda: torch.matmul(x, w.t(), out=y)

            b.run(name, "torch.matmul", size, 2.0 * rows * columns * m, b.bf16, make)
    for m in (16, 64, 1024):
        name = f"product gate+up fp8 {m} x 28672 x 4096, skinny"
        size = 28672.0 * 4096 + m * (4096 + 2.0 * 28672)

        def make(_):
            w = random(torch, 28672, 4096).to(torch.float8_e4m3fn)
            x = random(torch, m, 4096).to(torch.float8_e4m3fn)
            one = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)

        b.run(name, "_scaled_mm", size, 2.0 * 28672 * 4096 * m, b.fp8, make)


def experts(b):
    torch = b.torch
    n_experts, top_k, rows, columns = 128, 8, 1536, 2048
    for n in (16, 64, 256, 2048):
        name = f"experts bf16, {n} tokens, {top_k} of {n_experts}, {rows} x {columns}"
        scores = torch.rand(n, n_experts, device="cuda")
        counts = torch.bincount(scores.topk(top_k).indices.flatten(), minlength=n_experts)
        ends = counts.cumsum(0).to(torch.int32)
        distinct = int((counts > 0).sum())
        size = 2.0 * distinct * rows * columns + 2.0 * n * top_k * (rows + columns)

        def make(_):
            w = random(torch, n_experts, rows, columns)
            x = random(torch, n * top_k, columns)
            return lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)

        b.run(name, "_grouped_mm", size, 2.0 * n * top_k * rows * columns, b.bf16, make)


def small(b):
    torch = b.torch
    for n in (1, 64):
        name = f"sample greedy, {n} rows of {VOCAB}"

        def greedy(_):
            logits = torch.randn(n, VOCAB, device="cuda")
            return lambda: torch.argmax(logits, dim=-1)

        b.run(name, "argmax", 4.0 * n * VOCAB, 0, b.bf16, greedy)
        name = f"sample temperature, {n} rows of {VOCAB}"

        def temperature(_):
            logits = torch.randn(n, VOCAB, device="cuda")
            noise = torch.empty(n, VOCAB, device="cuda")

            def call():
                noise.exponential_(1)
                torch.argmax(torch.softmax(logits / 0.7, dim=-1) / noise, dim=-1)

            return call

        b.run(name, "softmax, argmax", 4.0 * n * VOCAB, 0, b.bf16, temperature)
    for n in (1, 64, 256):
        name = f"residual + norm, {n} x 4096 bf16"

        def make(_):
            x, y, w = random(torch, n, 4096), random(torch, n, 4096), random(torch, 4096)

            def call():
                y.add_(x)
                torch.nn.functional.rms_norm(y, (4096,), w)

            return call

        b.run(name, "add, rms_norm", 2.0 * n * 4096 * 4, 0, b.bf16, make)


def all_reduce(rank, ranks, options):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))
    b = Bench(torch, options)
    for size in (8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
        x = torch.zeros(size // 2, device="cuda", dtype=torch.bfloat16)
        seconds = b.time([lambda: dist.all_reduce(x)] * 20)
        if rank == 0:
            print(f"all-reduce of {size} bytes, {ranks} ranks {'nccl':<14} {seconds * 1e6:9.2f} us",
                  flush=True)
            if b.out:
                b.out.write(f'"all-reduce of {size} bytes, {ranks} ranks",nccl,'
                            f"{seconds * 1e6:.3f},{size},0,,,\n")
                b.out.flush()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--figures")
    parser.add_argument("--csv")
    parser.add_argument("--only")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("peers.py: torch is not installed")
        return 0
    if torch.cuda.device_count() < options.ranks:
        print(f"peers.py: {torch.cuda.device_count()} GPUs, {options.ranks} wanted")
        return 0
    if options.ranks > 1:
        import torch.multiprocessing as mp

        mp.spawn(all_reduce, args=(options.ranks, options), nprocs=options.ranks)
        return 0
    b = Bench(torch, options)
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name(0)}")
    for family in (attention, products, experts, small):
        family(b)
    return 0


if __name__ == "__main__":
    sys.exit(main())
