#!/usr/bin/env python3
"""Draws a CSV of bench/peers.py: for every shape and row our median speed against each peer's, as a ratio.

usage: bench/plot.py RESULTS.csv OUT.svg [--title TEXT]

Bars are ratios of medians (1 is the same speed); whiskers go from the worst to the best repetition of ours over the other's median.
Needs matplotlib.
"""
import argparse
import csv
import statistics

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"font.size": 8, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False})
from matplotlib import pyplot  # noqa: E402  (after the choice of the back end)


def read_speeds(path):
    """{(shape, row): {engine: [tokens a second]}} in the order of the file."""
    speeds = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            threads = f", {line['threads']} threads" if line.get("threads") else ""
            of_row = speeds.setdefault((line["shape"], line["row"] + threads), {})
            of_row.setdefault(line["engine"], []).append(float(line["tokens_per_second"]))
    return speeds


def ratios(ours, theirs):
    """Median, and how far the worst and the best repetition lie below and above it."""
    base = statistics.median(theirs)
    middle = statistics.median(ours) / base
    return middle, middle - min(ours) / base, max(ours) / base - middle


def draw(speeds, own, out, title):
    rows = [key for key, engines in speeds.items() if own in engines and len(engines) > 1]
    others = list(dict.fromkeys(engine for key in rows for engine in speeds[key] if not engine.startswith("1bit")))
    figure, axes = pyplot.subplots(figsize=(7, 0.9 + 0.16 * len(rows) * (1 + len(others))), constrained_layout=True)
    for i, engine in enumerate(others):
        at = [j + 0.8 * (i + 0.5) / len(others) for j, key in enumerate(rows) if engine in speeds[key]]
        bars = [ratios(speeds[key][own], speeds[key][engine]) for key in rows if engine in speeds[key]]
        middles, below, above = zip(*bars)
        axes.barh(at, middles, 0.75 / len(others), xerr=[below, above], error_kw={"linewidth": 0.6}, label=engine)
    axes.set_yticks([j + 0.4 for j in range(len(rows))], [f"{shape}  {row}" for shape, row in rows])
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.6)
    axes.set_xlabel("times as fast as")
    axes.set_title(title)
    axes.legend(frameon=False)
    figure.savefig(out)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("results")
    parser.add_argument("out")
    parser.add_argument("--title", default="")
    parser.add_argument("--own", default="1bit", help="the engine that is compared with the others")
    args = parser.parse_args()
    draw(read_speeds(args.results), args.own, args.out, args.title)


if __name__ == "__main__":
    main()
