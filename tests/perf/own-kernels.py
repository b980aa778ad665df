#!/usr/bin/env python3
"""[own_kernels] of node profiles from what kernels/bench/bench-cuda printed on an H200.

    bench-cuda --family delta > delta.csv; bench-cuda --family attention > latents.csv
    bench-cuda --family codes > codes.csv        # with experts of the shapes below
    bench-cuda --family hybrid > hybrid.csv
    own-kernels.py [--hbm 4.8e12] [--flops 989e12] CSV...

Fits `fixed + max(bytes / (b W), flops / (a F))` to decodes of delta and latent attention, to both
products of MXFP4 experts (whose flops are those of passes over the weights: sim/cost/own-experts.c),
and to the kernels of rows round them, with the least mean relative error, and prints the profile's
lines with that error and the worst point. Of several kernels for one shape the quickest counts.
Python's standard library only.
"""
import argparse
import csv
import math
import re


def read(paths):
    """Name -> (seconds, bytes, flops): the quickest of a shape's kernels."""
    rows = {}
    for path in paths:
        with open(path) as f:
            for name, us, size, flops, *_ in csv.reader(f):
                if not re.match("(delta|latents|experts|residual mix|route by|sort pairs|sum of) ?", name):
                    continue
                name = re.sub(", (codes|skinny|wide|stream|narrow|mma.sync|tile)$", "", name)
                row = (float(us) * 1e-6, float(size), float(flops))
                rows[name] = min(rows.get(name, row), row)
    return rows


def error(law, points):
    return [law(p) / p[0] - 1 for p in points]


def fit(make, points, start, steps=400):
    """Coordinates in turn by factors that shrink: the laws have two to four positive constants."""
    def mean(x):
        return sum(map(abs, error(make(x), points))) / len(points)

    best, least, factor = list(start), mean(start), 1.5
    while factor > 1.0005 and steps > 0:
        steps, moved = steps - 1, False
        for i in range(len(best)):
            for times in (factor, 1 / factor):
                x = list(best)
                x[i] *= times
                if mean(x) < least:
                    best, least, moved = x, mean(x), True
        factor = factor if moved else factor ** 0.7
    return best, least


def tell(key, values, points, law, note):
    errors = error(law, [p for p, _ in points])
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    mean = sum(map(abs, errors)) / len(errors)
    print(f"# {len(points)} points, mean error {mean * 100:.1f} %, worst {errors[worst] * 100:+.0f} %: {points[worst][1]}{note}")
    print(f"{key}={';'.join(f'{v:.3g}' for v in values)};")


def delta(rows, hbm, peak):
    points = [(row, name) for name, row in rows.items() if name.startswith("delta decode")]
    x, _ = fit(lambda x: lambda p: x[0] + p[1] / (x[1] * hbm), [p for p, _ in points], [5e-6, 0.8])
    # Of prompts: all heads at once are arithmetic, one long prompt on 12 heads is its chunks in turn.
    fixed = 2e-5
    busy = [rows[f"delta prompt {name}"] for name in
            ("96 heads, 1 x 8192 tokens", "96 heads, 8 x 1024 tokens", "12 heads, 8 x 1024 tokens")]
    a = sum(p[2] / (p[0] - fixed) / peak for p in busy) / len(busy)
    token = (rows["delta prompt 12 heads, 1 x 8192 tokens"][0] - fixed) / 8192
    tell("kda", [*x, fixed, a, token], points, lambda p: x[0] + p[1] / (x[1] * hbm), "; prompts by 4 points")


def latents(rows, hbm, peak):
    """Of more than 16 heads over contexts up to 2048 another kernel decodes."""
    points = []
    for name, row in rows.items():
        m = re.match(r"latents 512 \+ 64, (\d+) heads, \d+ x 1 at (\d+), (\w+)$", name)
        if m:
            points.append(((*row, m[3] == "fp8", int(m[1]) > 16 and int(m[2]) <= 2048), name))

    def make(x):
        return lambda p: x[0] + max(p[1] / ((x[1] if p[3] else x[2]) * hbm), p[2] / ((x[4] if p[4] else x[3]) * peak))
    x, _ = fit(make, [p for p, _ in points], [3e-5, 0.6, 0.8, 0.3, 0.1])
    tell("mla", x, points, make(x), "")


WIDTHS = (4, 8, 16, 32, 48, 64, 96, 128, 160)


def passes(mean, width):
    """Of an expert that so many tokens choose in the mean: Poisson's."""
    chance, below, n, sum_ = math.exp(-mean), 0, 0, 0
    while n <= mean + 10 * math.sqrt(mean) + 10:
        below += chance
        sum_ += 1 - below if n % width == 0 else 0
        n += 1
        chance *= mean / n
    return sum_


def columns(mean, turned):
    """Of a pass over an expert's weights for all passes of it, what turning them costs included."""
    tokens = mean + 1.5 * math.sqrt(mean)
    width = min(WIDTHS, key=lambda w: math.ceil(tokens / w) * (w + turned))
    return passes(mean, width) * (width + turned)


def experts(rows, hbm, peak):
    """Both products of as many tokens together: the first has more rows than columns or twice a width."""
    pairs = (("6144 x 3584", "3584 x 3072"), ("768 x 3584", "3584 x 384"))
    points = []
    for name, row in rows.items():
        for one, two in pairs:
            if name.startswith("experts mxfp4") and name.endswith(one):
                other = rows[name[:-len(one)] + two]
                n, k, all_ = map(int, re.search(r"(\d+) tokens, (\d+) of (\d+)", name).groups())
                inner, outer = int(two.split()[2]), int(two.split()[0])
                points.append(((row[0] + other[0], row[1] + other[1], all_ * 6 * outer * inner, n * k / all_), name))

    def make(x):
        return lambda p: x[0] + max(p[1] / (x[1] * hbm), p[2] * columns(p[3], x[3]) / (x[2] * peak))
    # Both floors are near where weights bind: the memory's share is the least that costs nothing.
    tried = []
    for hbm_share in (0.65 + i / 200 for i in range(51)):
        y, least = fit(lambda y: make([y[0], hbm_share, *y[1:]]), [p for p, _ in points], [2e-5, 0.65, 45])
        tried.append((least, [y[0], hbm_share, *y[1:]]))
    x = next(x for least, x in tried if least < min(tried)[0] + 0.001)
    tell("mxfp4_experts", x, points, make(x), "")


def small(rows, hbm, peak):
    """What is bound by bytes alone: attention residuals; choosing, sorting and adding up together."""
    def law(x):
        return lambda p: x[0] + p[1] / (x[1] * hbm)
    mixes = [(row, name) for name, row in rows.items() if name.startswith("residual mix")]
    sums = []
    for name, row in rows.items():
        n = re.match(r"route by sigmoid and bias, (\d+) to 16 of 896", name)
        if n:
            parts = [row, rows[f"sort pairs, {n[1]} tokens of 16 of 896"],
                     rows[f"sum of 16 + norm, {n[1]} x 3584 float32"]]
            sums.append((tuple(map(sum, zip(*parts))), f"{n[1]} tokens"))
    for key, points, start in (("pairs", sums, [1.3e-5, 0.8]), ("mix", mixes, [3e-6, 0.6])):
        x, _ = fit(law, [p for p, _ in points], start)
        tell(key, x, points, law(x), "")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("csv", nargs="+")
    p.add_argument("--hbm", type=float, default=4.8e12)
    p.add_argument("--flops", type=float, default=989e12)
    args = p.parse_args()
    rows = read(args.csv)
    for family, law in (("delta", delta), ("latents", latents), ("experts", experts), ("residual", small)):
        if any(name.startswith(family) for name in rows):
            law(rows, args.hbm, args.flops)


main()
