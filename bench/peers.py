#!/usr/bin/env python3
"""Our speed beside another engine's on the same random weights, interleaved.

usage: bench/peers.py --peer llama.cpp="llama-bench" [--peer ik="other/llama-bench -rtr 1"] [--binary build/1bit] [--isa amx,avx512]
                      [--threads 2] [--reps 5] [--prompt 8,16,128,512] [--gen 64] [--depth 0] [--keep DIR] [--csv FILE]
                      [--verify 8,16 --batched llama.cpp="llama-batched-bench"] [--dflash DRAFTER --draft-accept 6.7]
                      SHAPE ...

SHAPE is what `1bit bench -m shape:SHAPE` takes, e.g. qwen3-0.6b or qwen3.8-27b@4,vocab=151936. Each shape is written to a file that
all engines read, or is such a file itself. --peer is a name and a command that understands llama-bench's flags (-m -t -p -n -d -r
-o json); --batched is one that understands llama-batched-bench's, whose step of N sequences, a token and a row of logits each, stands
beside our pass over N drafted tokens with all rows of logits. --dflash adds decode with a drafter whose tokens are kept by chance
(see `1bit bench`), beside the peers' without one. --isa runs ours once with each of these instruction sets. Each repetition runs every engine once, one after the other, as fresh
processes. Prints a Markdown table of medians (best) and ratios to the fastest peer of each
row; the CSV has one line for each engine, row and repetition, and is continued where it exists: a busy machine may be measured in
several short runs.
"""
import argparse
import collections
import csv
import functools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def run_ours(args, path, isa):
    """Tokens a second by row name (pp512, tg64@2048 ...)."""
    command = [args.binary, "bench", "-m", path, "-t", str(args.threads), "--prompt", args.prompt, "--gen", args.gen, "--verify", args.verify,
               "--depth", args.depth, "--reps", "1", "--json"] + (["--isa", isa] if isa else [])
    command += ["--dflash", args.dflash, "--draft-accept", args.draft_accept] if args.dflash else []
    return {row["test"]: row["tokens_per_second"]["median"] for row in json.loads(output_of(command))["rows"]}


def rows_of_peer(text):
    rows = {}
    for row in json.loads(text[text.index("["):]):
        depth = row.get("n_depth") or (row["n_prompt"] if row["n_gen"] else 0)
        name = f"tg{row['n_gen']}" if row["n_gen"] else f"pp{row['n_prompt']}"
        rows[name + (f"@{depth}" if depth else "")] = row["avg_ts"]
    return rows


@functools.cache
def takes_depth(peer):
    """Whether this llama-bench knows -d; one that does not measures decode at a depth as -gp DEPTH,N, and no prompts there."""
    return "--n-depth" in subprocess.run([*shlex.split(peer), "--help"], capture_output=True, text=True).stdout


def run_peer(args, peer, path):
    command = [*shlex.split(peer), "-m", path, "-t", str(args.threads), "-r", "1", "-o", "json"]
    if takes_depth(peer):
        return rows_of_peer(output_of([*command, "-p", args.prompt, "-n", args.gen, "-d", args.depth]))
    at_start = "0" in args.depth.split(",")
    pairs = [f"{depth},{n}" for depth in args.depth.split(",") if depth != "0" for n in args.gen.split(",") if n != "0"]
    return rows_of_peer(output_of([*command, "-p", args.prompt if at_start else "0", "-n", args.gen if at_start else "0",
                                   *(part for pair in pairs for part in ("-gp", pair))]))


def run_batched(args, command, path):
    command = [*shlex.split(command), "-m", path, "-t", str(args.threads), "-c", "2048", "-npp", "16", "-ntg", "16", "-npl", args.verify,
               "--output-format", "jsonl"]
    rows = [json.loads(line) for line in output_of(command).splitlines() if line.startswith("{")]
    return {f"verify{row['pl']}": row["speed_tg"] for row in rows}


def measure(args, shape, path):
    """{engine: {row: [tokens a second of each repetition]}}"""
    engines = {own: lambda isa=isa: run_ours(args, path, isa) for own, isa in args.own.items()}
    for peer in args.peer:
        name, command = peer.split("=", 1)
        engines[name] = lambda command=command: run_peer(args, command, path)
    for peer in args.batched:
        name, command = peer.split("=", 1)
        engines[f"{name} batched"] = lambda command=command: run_batched(args, command, path)
    results = {name: {} for name in engines}
    for _ in range(args.reps):
        for name, run in engines.items():
            for row, speed in run().items():
                results[name].setdefault(row, []).append(speed)
    return results


def write_csv(path, lines):
    """Repetitions go on counting after those of the same shape, engine, threads and row that the file has."""
    before = collections.Counter()
    is_new = not os.path.exists(path)
    if not is_new:
        with open(path, newline="") as file:
            before.update((r["shape"], r["engine"], int(r["threads"]), r["row"]) for r in csv.DictReader(file))
    with open(path, "a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(["shape", "engine", "threads", "row", "rep", "tokens_per_second"])
        writer.writerows([*key, before[tuple(key)] + rep, speed] for *key, rep, speed in lines)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--batched", action="append", default=[])
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--prompt", default="8,16,128,512")
    parser.add_argument("--gen", default="64")
    parser.add_argument("--depth", default="0")
    parser.add_argument("--verify", default="0", help="rows of the verify tests; 0: leave them out")
    parser.add_argument("--dflash", help="a drafter's file or shape")
    parser.add_argument("--draft-accept", default="6.7", help="tokens a step")
    parser.add_argument("--keep", help="folder for the files of the shapes; those that are there are used")
    parser.add_argument("--csv")
    parser.add_argument("--isa", help="instruction sets of ours, between commas; without: the best")
    args = parser.parse_args()
    args.own = {f"1bit {isa}": isa for isa in args.isa.split(",")} if args.isa else {"1bit": ""}
    lines = []
    print("| shape | engine | row | t/s, median (best) | fastest peer | ratio |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for shape in args.shapes:
            is_file = os.path.exists(shape)
            path = shape if is_file else os.path.join(args.keep or scratch, re.sub(r"[^\w.-]+", "-", shape) + ".gguf")
            shape = os.path.splitext(os.path.basename(shape))[0] if is_file else shape
            if not os.path.exists(path):
                output_of([args.binary, "convert", f"shape:{shape}", path])
            results = measure(args, shape, path)
            for engine, rows in results.items():
                lines += [[shape, engine, args.threads, row, rep, round(speed, 2)]
                          for row, speeds in rows.items() for rep, speed in enumerate(speeds)]
            for own, row in ((own, row) for own in args.own for row in results[own]):
                theirs = row.replace("draft", "tg")
                peers = [rows[theirs] for engine, rows in results.items() if engine not in args.own and theirs in rows]
                if not peers:
                    continue
                ours, theirs = results[own][row], max(peers, key=statistics.median)
                ratio = statistics.median(ours) / statistics.median(theirs)
                print(f"| {shape} | {own} | {row} | {statistics.median(ours):.1f} ({max(ours):.1f}) | "
                      f"{statistics.median(theirs):.1f} ({max(theirs):.1f}) | {ratio:.2f} |", flush=True)
            if not args.keep and not is_file:
                os.remove(path)
    if args.csv:
        write_csv(args.csv, lines)


if __name__ == "__main__":
    main()
