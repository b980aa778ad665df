#!/usr/bin/env python3
"""[own_kernels] of node profiles from what kernels/bench/bench-cuda printed on an H200.

    bench-cuda --family delta > delta.csv; bench-cuda --family attention > latents.csv
    bench-cuda --family codes > codes.csv        # with experts of the shapes below
    own-kernels.py [--hbm 4.8e12] [--flops 989e12] CSV...

Fits `fixed + max(bytes / (b W), flops / (a F))` to decodes of delta and latent attention and to both
products of MXFP4 experts, with the least mean relative error, and prints the profile's lines with
that error and the worst point. Of several kernels for one shape the quickest counts. Python's
standard library only.
"""
import argparse
import csv
import re


def read(paths):
    """Name -> (seconds, bytes, flops): the quickest of a shape's kernels."""
    rows = {}
    for path in paths:
        with open(path) as f:
            for name, us, size, flops, *_ in csv.reader(f):
                if not re.match("(delta|latents|experts) ", name):
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
    prompt = rows["delta prompt 12 heads, 1 x 8192 tokens"]
    fixed = 2e-5
    a = prompt[2] / (prompt[0] - fixed) / peak
    tell("kda", [*x, fixed, a], points, lambda p: x[0] + p[1] / (x[1] * hbm), "; prompts by 1 x 8192 on 12 heads")


def latents(rows, hbm, peak):
    points = [((*row, name.endswith("fp8")), name) for name, row in rows.items() if re.match(r"latents 512.* x 1 at", name)]

    def make(x):
        return lambda p: x[0] + max(p[1] / ((x[1] if p[3] else x[2]) * hbm), p[2] / (x[3] * peak))
    x, _ = fit(make, [p for p, _ in points], [3e-5, 0.6, 0.8, 0.3])
    tell("mla", x, points, make(x), "")


def experts(rows, hbm, peak):
    """Both products of as many tokens together: the first has more rows than columns or twice a width."""
    pairs = (("6144 x 3584", "3584 x 3072"), ("768 x 3584", "3584 x 384"))
    points = []
    for name, row in rows.items():
        for one, two in pairs:
            if name.startswith("experts mxfp4") and name.endswith(one):
                other = rows[name[:-len(one)] + two]
                points.append((tuple(a + b for a, b in zip(row, other)), name))

    def make(x):
        return lambda p: x[0] + max(p[1] / (x[1] * hbm), p[2] / (x[2] * peak))
    x, _ = fit(make, [p for p, _ in points], [2e-5, 0.7, 0.25])
    tell("mxfp4_experts", x, points, make(x), "")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("csv", nargs="+")
    p.add_argument("--hbm", type=float, default=4.8e12)
    p.add_argument("--flops", type=float, default=989e12)
    args = p.parse_args()
    rows = read(args.csv)
    for family, law in (("delta", delta), ("latents", latents), ("experts", experts)):
        if any(name.startswith(family) for name in rows):
            law(rows, args.hbm, args.flops)


main()
