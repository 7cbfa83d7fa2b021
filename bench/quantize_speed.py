#!/usr/bin/env python3
"""How fast files are quantised, beside llama.cpp's llama-quantize: seconds per GB of the source, interleaved.

usage: bench/quantize_speed.py SOURCE.gguf --peer "llama-quantize" [--binary build/1bit] [--threads 2] [--reps 5] [--imatrix FILE]
                               [--types q4_0,q4_1,q8_0,q4_k_m,q5_k_m,q6_k] [--work DIR] [--csv FILE]
  SOURCE.gguf   f16 or bf16; read once before, so that it is in the page cache
  --imatrix     with this importance matrix (of `1bit imatrix`)

Each repetition runs every engine once, one after the other. Wall time of the whole process, until the file has its name; processor
time of all threads beside it. Prints a Markdown table of medians; the CSV (appended to) has one line for each run.
"""
import argparse
import csv
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time

FIELDS = ["type", "imatrix", "engine", "rep", "wall_s", "cpu_s", "source_gb"]


def timed(command):
    """Wall and processor seconds of a command that must succeed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(args, kind, imatrix):
    """Rows of one type."""
    out = os.path.join(args.work, "out.gguf")
    ours = [args.binary, "quantize", args.source, out, "--type", kind, "-t", str(args.threads)]
    peer = shlex.split(args.peer)
    if imatrix:
        ours += ["--imatrix", imatrix]
        peer += ["--imatrix", imatrix]
    peer += [args.source, out, kind.upper(), str(args.threads)]
    gigabytes = os.path.getsize(args.source) / 1e9
    for rep in range(args.reps):
        for engine, command in (("1bit", ours), ("llama.cpp", peer)):
            wall, cpu = timed(command)
            os.remove(out)
            yield {"type": kind, "imatrix": "yes" if imatrix else "no", "engine": engine, "rep": rep, "wall_s": round(wall, 4),
                   "cpu_s": round(cpu, 4), "source_gb": round(gigabytes, 4)}


def per_gigabyte(rows, engine, field):
    return statistics.median(row[field] / row["source_gb"] for row in rows if row["engine"] == engine)


def append(path, rows):
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--imatrix")
    parser.add_argument("--types", default="q4_0,q4_1,q8_0,q4_k_m,q5_k_m,q6_k")
    parser.add_argument("--work", default=".")
    parser.add_argument("--csv")
    args = parser.parse_args()
    with open(args.source, "rb") as file:
        while file.read(1 << 24):
            pass
    print("| type | imatrix | 1bit, s/GB | llama.cpp, s/GB | ratio | processor: 1bit | llama.cpp |")
    print("|---|---|---|---|---|---|---|")
    for kind in args.types.split(","):
        rows = list(measure(args, kind, args.imatrix))
        a, b = (per_gigabyte(rows, engine, "wall_s") for engine in ("1bit", "llama.cpp"))
        c, d = (per_gigabyte(rows, engine, "cpu_s") for engine in ("1bit", "llama.cpp"))
        print(f"| {kind} | {rows[0]['imatrix']} | {a:.2f} | {b:.2f} | {a / b:.2f} | {c:.2f} | {d:.2f} |", flush=True)
        if args.csv:
            append(args.csv, rows)


if __name__ == "__main__":
    main()
