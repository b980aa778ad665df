#!/usr/bin/env python3
"""Requests simulated per second and peak memory: octet replay beside another simulator.

The same requests (arrivals, prompt and output lengths) go through both, one process each, one after the
other, the best of RUNS. The peer is the replay of ai-dynamo (`python -m dynamo.replay`, offline, its
own times of steps), which runs without a GPU. It is installed with

    python3 -m venv peer && peer/bin/pip install --only-binary :all: --no-deps \\
        ai-dynamo==1.3.1 ai-dynamo-runtime==1.3.1 &&
    peer/bin/pip install msgspec numpy "pydantic<2.13" transformers

    tests/perf/peer-simulators.py OCTET peer/bin/python [REQUESTS]

Times of steps differ (each has its own model of a GPU), so the work per request does too: steps are not
compared, requests are.
"""

import json
import os
import random
import sys
import tempfile
import time

RUNS = 3
BLOCK = 64  # tokens of a KV block of the peer; the trace's blocks are of 512


def make_trace(path, n, rate, seed):
    """Poisson arrivals, log-normal lengths, no prefix shared: every block has an id of its own."""
    rng = random.Random(seed)
    now, block = 0.0, 0
    tokens = 0
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(n):
            now += rng.expovariate(rate)
            inputs = min(8000, max(16, int(rng.lognormvariate(6.6, 0.8))))
            outputs = min(2000, max(2, int(rng.lognormvariate(5.3, 0.7))))
            blocks = (inputs + 511) // 512
            row = {"timestamp": round(now * 1000), "input_length": inputs, "output_length": outputs,
                   "hash_ids": list(range(block, block + blocks))}
            block += blocks
            tokens += outputs
            out.write(json.dumps(row) + "\n")
    return tokens


def run(command):
    """Seconds of wall time and of CPU, peak memory in MB, of the best of RUNS."""
    best = None
    for _ in range(RUNS):
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.execvp(command[0], command)
        _, status, usage = os.wait4(pid, 0)
        wall = time.monotonic() - began
        if status != 0:
            sys.exit(f"{command[0]}: failed with status {status}: {' '.join(command)}")
        found = (usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)
        best = min(best, found) if best else found
    return best


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    octet, python = sys.argv[1:3]
    n = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'':34} {'requests/s':>11} {'of CPU':>8} {'start s':>8} {'peak MB':>8}")
        for rate in (5, 20):
            trace, one = os.path.join(folder, f"trace-{rate}.jsonl"), os.path.join(folder, "one.jsonl")
            make_trace(trace, n, rate, 1)
            make_trace(one, 100, rate, 1)
            arguments = {"block_size": BLOCK, "num_gpu_blocks": 16384, "max_num_seqs": 256,
                         "max_num_batched_tokens": 8192, "enable_prefix_caching": False}
            commands = {
                "octet replay": lambda t: [octet, "replay", t, "--format", "mooncake", "--model",
                                           "llama-3.1-8b", "--node", "h200x1", "--max-num-seqs", "256",
                                           "--max-num-batched-tokens", "8192", "--exact-lengths",
                                           "--no-enable-prefix-caching"],
                "dynamo.replay, offline": lambda t: [python, "-m", "dynamo.replay", "--trace-format",
                                                     "mooncake", "--replay-mode", "offline",
                                                     "--trace-block-size", "512",
                                                     "--report-json", os.path.join(folder, "peer.json"),
                                                     "--extra-engine-args", json.dumps(arguments), t],
            }
            for name, command in commands.items():
                start = run(command(one))
                cpu, wall, memory = run(command(trace))
                work, working = max(1e-9, wall - start[1]), max(1e-9, cpu - start[0])
                print(f"{name + f', {rate} requests/s':34} {(n - 100) / work:11,.0f} "
                      f"{(n - 100) / working:8,.0f} {start[1]:8.2f} {memory:8.0f}")


if __name__ == "__main__":
    main()
