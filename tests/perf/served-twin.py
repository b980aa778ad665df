#!/usr/bin/env python3
"""A server under load, and the same load on its twin (doc/simulation.md, 4).

    served-twin.py measure DIR [--octet octet] [--tensor N] [--model M]     on the machine with GPUs
    served-twin.py compare DIR --node PROFILE [--octet octet]               anywhere, with SimGrid

`measure` serves the model with made-up weights and sends closed loops of 1, 16, 64 and 256, whose last one is the
capacity; then open loops at 30, 60 and 85 % of it, each --repeats times with the same arrivals, and once at 110 %.
Into DIR: the reports of octet bench, the log of all steps, and loads.json, which says what was sent.
`compare` replays each load, holds it against its repeats (octet validate --served), prices the logged steps
(octet validate --steps) and prints the tables.
"""
import argparse
import glob
import json
import os
import signal
import subprocess
import sys

INPUT, OUTPUT, SLOTS = 1024, 256, 256
CLOSED = [(1, 20), (16, 64), (64, 128), (256, 400)]  # slots, requests
OPEN = [(30, 60), (60, 120), (85, 160)]  # percent of the capacity, requests
OVER = (110, 400)


def bench(o, port, load, name):
    flags = ["--seed", str(load["seed"]), "--num-prompts", str(load["requests"])]
    if "rate" in load:
        flags += ["--rate", str(load["rate"])]
    else:
        flags += ["--max-concurrency", str(load["slots"]), "--num-warmups", "2" if load["slots"] == 1 else "0"]
    subprocess.run(
        [o.octet, "bench", f"http://127.0.0.1:{port}", "--random-input-len", str(INPUT),
         "--random-output-len", str(OUTPUT), "--ignore-eos", "--warmup", "0s", "--extra-body",
         '{"return_token_ids":true}', "--ready-check-timeout", "60s", "--json",
         os.path.join(o.dir, name + ".json"), "--requests", os.path.join(o.dir, name + ".requests"), *flags],
        check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(o.dir, name + ".json")) as file:
        report = json.load(file)
    t = report["latency_s"]
    print(f"{name:10} {report['throughput']['whole_run']['output_tokens_per_s']:8.0f} tokens/s  "
          f"TTFT {1e3 * t['ttft']['p50']:.1f}, {1e3 * t['ttft']['p99']:.1f} ms  "
          f"ITL {1e3 * t['itl']['p50']:.2f}, {1e3 * t['itl']['p99']:.1f} ms  (p50, p99)", flush=True)
    return report["throughput"]["whole_run"]["requests_per_s"]


def share_of(o, n):
    return max(2, round(n * o.share))


def measure(o):
    os.makedirs(o.dir, exist_ok=True)
    server = subprocess.Popen(
        [o.octet, "serve", o.model, "--load-format", "dummy", "--backend", o.backend, "-tp", str(o.tensor),
         "--skip-tokenizer-init", "--max-num-seqs", str(SLOTS), "--no-enable-prefix-caching", "--port",
         str(o.port), "--disable-access-log", "--record-steps", os.path.join(o.dir, "steps.jsonl")],
        stdout=open(os.path.join(o.dir, "serve.log"), "w"), stderr=subprocess.STDOUT)
    loads, capacity = {}, 0
    try:
        for k, (slots, n) in enumerate(CLOSED):
            load = {"slots": slots, "requests": share_of(o, n), "seed": k + 1}
            loads[f"closed-{slots}"] = load
            capacity = bench(o, o.port, load, f"closed-{slots}")
        for percent, n in OPEN + [OVER]:
            load = {"rate": round(capacity * percent / 100, 3), "requests": share_of(o, n),
                    "seed": percent}
            loads[f"open-{percent}"] = load
            for repeat in range(o.repeats if percent < 100 else 1):
                bench(o, o.port, load, f"open-{percent}-{repeat + 1}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        with open(os.path.join(o.dir, "loads.json"), "w") as file:
            json.dump({"model": o.model, "tensor": o.tensor, "capacity": capacity, "loads": loads}, file, indent=1)


def compare(o):
    with open(os.path.join(o.dir, "loads.json")) as file:
        plan = json.load(file)
    for name, load in plan["loads"].items():
        reports = sorted(glob.glob(os.path.join(o.dir, name + "-[0-9].json"))) or \
            [os.path.join(o.dir, name + ".json")]
        if not os.path.exists(reports[0]):
            continue
        trace = f"gen:seed={load['seed']},input={INPUT},output={OUTPUT},requests={load['requests']},"
        trace += f"rate={load['rate']}" if "rate" in load else f"arrivals=closed,concurrency={load['slots']}"
        twin = os.path.join(o.dir, f"twin-{name}.json")
        # The server was told how long answers are, and to ignore their ends.
        subprocess.run([o.octet, "replay", trace, "--model", plan["model"], "--node", o.node, "-tp",
                        str(plan["tensor"]), "--max-num-seqs", str(SLOTS), "--no-enable-prefix-caching", "--warmup",
                        "0s", "--exact-lengths", "--json", twin], check=True, stdout=subprocess.DEVNULL)
        print(f"== {name}: {trace}", flush=True)
        measured = [flag for report in reports for flag in ("--measured", report)]
        subprocess.run([o.octet, "validate", "--served", twin, *measured], check=False)
    steps = os.path.join(o.dir, "steps.jsonl")
    if os.path.exists(steps):
        subprocess.run([o.octet, "validate", "--steps", steps, "--model", plan["model"], "--node", o.node], check=False)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["measure", "compare"])
    p.add_argument("dir")
    p.add_argument("--octet", default="octet")
    p.add_argument("--model", default="llama-3.1-8b")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--tensor", type=int, default=1)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--share", type=float, default=1, help="of the requests, for a shorter run")
    p.add_argument("--port", type=int, default=8100)
    p.add_argument("--node")
    o = p.parse_args()
    if o.what == "compare" and o.node is None:
        p.error("compare: --node is needed: the profile that octet calibrate wrote there")
    measure(o) if o.what == "measure" else compare(o)


if __name__ == "__main__":
    sys.exit(main())
