#!/usr/bin/env python3
"""How often octet compare calls equal runs different, and how often it finds a difference that is there.

    tests/perf/compare-rates.py OCTET [RUNS [WORKLOAD...]]

Each workload is replayed with RUNS seeds (16), as it is and once more per change (the node's clock and
memory at a share of theirs, another policy). Pairs of runs that differ in nothing but their seed should
not be called different: all such pairs are compared. A changed run is compared with the unchanged one of
the same seed (the same requests: pairs) and with those of other seeds. "Equal, pairs" are runs of the
same requests whose arrivals are moved by up to JITTER_S each, in order, which is what two measurements
of one trace look like. A row is printed when it is known; "most often" names the tests that were called
different in most of the pairs.
"""

import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile

FIRST_SEED = 101  # the method's one constant was chosen on replays of seeds 1 to 24
JITTER_S = 0.5
JITTERED = 60  # pairs of them
JOBS = 3
OTHERS = 60  # pairs of other seeds that a change is looked for in, at most

K3 = ["--model", "kimi-k3", "--node", "b300-hgx8"]
LLAMA = ["--model", "llama-3.1-8b", "--node", "h200-hgx8", "-tp", "1"]
AFFINITY = "gen:turns=4,think=10,input=2000,output=200,followup=200"
# name: traffic, rate, duration, arguments, changes
WORKLOADS = {
    "k3-short": ("chat-150", "1", "10min", K3, ["clock 0.855", "policy stage-aware"]),
    "k3-long": ("chat-150", "1", "1h", K3, ["clock 0.855", "clock 0.72", "policy stage-aware"]),
    "k3-overloaded": ("chat-150", "3", "10min", K3, ["clock 0.72"]),
    "llama-few": ("chat-150", "3", "5min", LLAMA, ["clock 0.82"]),
    "llama-short": ("chat-150", "6", "10min", LLAMA, ["clock 0.82", "policy stage-aware"]),
    "llama-long": ("chat-150", "6", "30min", LLAMA, ["clock 0.95"]),
    "llama-busy": ("chat-150", "9", "30min", LLAMA, ["clock 0.95"]),
    "llama-overloaded": ("chat-150", "16", "5min", LLAMA, ["clock 0.82"]),
    "turns": (AFFINITY, "1.5", "20min", LLAMA, ["clock 0.82"]),
}


def command(args):
    got = subprocess.run(args, capture_output=True, text=True, timeout=600)
    if got.returncode != 0:
        sys.exit(f"{' '.join(args)}: {got.stderr}")


def scenario(folder, factor):
    path = os.path.join(folder, f"clock-{factor}.ini")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"[scenario]\ntitle = clock {factor}\nuntil = 3 h\n"
                  f"[event sm]\nkind = throttle\nfactor = {factor}\nat = 0 s\ngpus = all\n"
                  f"[event hbm]\nkind = link\nlink = hbm\nfactor = {factor}\nat = 0 s\ngpus = all\n")
    return path


def change_args(folder, change):
    if not change:
        return []
    kind, value = change.split()
    return ["--scenario", scenario(folder, value)] if kind == "clock" else ["--policy", value]


def replay(octet, folder, workload, change, seed):
    traffic, rate, duration, args, _ = WORKLOADS[workload]
    path = os.path.join(folder, f"{workload}-{change.replace(' ', '')}-{seed}.json")
    command([octet, "replay", traffic, "--rate", rate, "--duration", duration, *args,
             *change_args(folder, change), "--seed", str(seed), "--json", path])
    return path


def jittered(octet, folder, workload, seed, which):
    """A run of the workload's requests of that seed, their arrivals moved a little."""
    traffic, rate, duration, args, _ = WORKLOADS[workload]
    base = os.path.join(folder, f"{workload}-{seed}-{which}")
    minutes = float(duration.removesuffix("min")) if duration.endswith("min") else 60
    command([octet, "trace", "gen", traffic, "--rate", rate, "--duration", str(int(75 * minutes)),
             "--seed", str(seed), "-o", base + ".trace"])
    rng = random.Random(f"{seed} {which}")
    with open(base + ".trace", encoding="utf-8") as rows:
        header, *rows = rows.read().splitlines()
    at_us = 0
    with open(base + ".jsonl", "w", encoding="utf-8") as out:
        out.write(header + "\n")
        for row in map(json.loads, rows):
            moved_us = row["arrival_us"] + 1e6 * JITTER_S * rng.uniform(-1, 1)
            at_us = row["arrival_us"] = round(max(moved_us, at_us + 1), 3)
            out.write(json.dumps(row) + "\n")
    command([octet, "replay", base + ".jsonl", "--duration", duration, *args, "--json",
             base + ".json"])
    return base + ".json"


def compare(octet, a, b):
    """What is called different, the report's figures, and whether requests are in pairs."""
    got = subprocess.run([octet, "compare", a, b, "--json", "-"], capture_output=True, text=True,
                         timeout=600)
    if got.returncode != 0:
        sys.exit(f"octet compare {a} {b}: {got.stderr}")
    found = json.loads(got.stdout)
    tests = {t["name"]: t for t in found["tests"]}
    return {"named": [n for n, t in tests.items() if t["differs"]], "paired": found["paired"],
            "e2e": tests["E2E mean"]["relative"], "blocks": found["blocks"],
            "requests": found["requests_a"], "no_chance": any(
                t["differs"] and t["p"] == 0 and not found["paired"] for t in tests.values())}


def row(pool, octet, workload, what, pairs):
    found = list(pool.map(lambda p: compare(octet, *p), pairs))
    n = len(found)
    counts = {}
    for f in found:
        for name in f["named"]:
            counts[name] = counts.get(name, 0) + 1
    most = sorted(counts.items(), key=lambda c: -c[1])[:3]
    share = 100 * sum(bool(f["named"]) for f in found) / n
    moved = 100 * sum(f["e2e"] for f in found) / n
    requests = sorted(f["requests"] for f in found)[n // 2]
    print(f"{workload:17} {what:27} {requests:5} {found[0]['blocks']:6} {n:5} {moved:+8.1f} "
          f"{share:9.1f}   {', '.join(f'{a} {100 * c / n:.0f}' for a, c in most)}", flush=True)
    if any(f["no_chance"] for f in found):
        print("  p = 0 between runs of other requests", flush=True)


def measure(pool, octet, folder, workload, runs):
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    equal = list(pool.map(lambda s: replay(octet, folder, workload, "", s), seeds))
    row(pool, octet, workload, "equal, other requests",
        [(equal[i], equal[k]) for i in range(runs) for k in range(i)])
    if workload in ("k3-short", "llama-short"):
        both = [list(pool.map(lambda s: jittered(octet, folder, workload, s, w),
                              range(FIRST_SEED, FIRST_SEED + JITTERED))) for w in "ab"]
        row(pool, octet, workload, "equal, pairs", list(zip(*both)))
    for change in WORKLOADS[workload][4]:
        changed = list(pool.map(lambda s: replay(octet, folder, workload, change, s), seeds))
        others = [(equal[i], changed[k]) for i in range(runs) for k in range(runs) if i != k]
        row(pool, octet, workload, f"{change}, pairs", list(zip(equal, changed)))
        row(pool, octet, workload, f"{change}, others", others[::-(-len(others) // OTHERS)])


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    names = sys.argv[3:] or list(WORKLOADS)
    print(f"{'':17} {'':27} {'reqs':>5} {'blocks':>6} {'pairs':>5} {'E2E %':>8} {'called %':>9}   "
          "most often, %")
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for workload in names:
            measure(pool, sys.argv[1], folder, workload, runs)
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))


if __name__ == "__main__":
    main()
