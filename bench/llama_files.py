#!/usr/bin/env python3
"""Files of `1bit quantize` beside llama.cpp's tools: whether llama-quantize gives every tensor the same type, and what both programs
make of the same file's perplexity.

usage: bench/llama_files.py SOURCE.gguf --text FILE --quantize "llama-quantize" --perplexity "llama-perplexity --no-repack"
                            [--binary build/1bit] [--types q4_0,q4_1,q8_0,q4_k_m,q5_k_m,q6_k] [--chunks 20] [--work DIR] [--csv FILE]
  SOURCE.gguf   f16, bf16, f32 or q8_0

Chunks of 512 tokens, exact activations (--w4a4 none). Files stay in DIR and are used again. Prints a Markdown table.
"""
import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys

FIELDS = ["source", "type", "tensors", "other_types", "ppl", "ppl_llama", "percent"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed with {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout + done.stderr


def types_of(binary, path):
    listed = json.loads(subprocess.run([binary, "inspect", path, "--tensors", "--json"], capture_output=True, check=True).stdout)
    return {tensor["name"]: tensor["type"] for tensor in listed["tensors"]}


def compare(args, kind):
    """The row of one type."""
    stem = os.path.join(args.work, f"{os.path.basename(args.source)}-{kind}")
    ours, theirs = stem + "-ours.gguf", stem + "-llama.gguf"
    if not os.path.exists(ours):
        run([args.binary, "quantize", args.source, ours, "--type", kind])
    if not os.path.exists(theirs):
        run([*shlex.split(args.quantize), "--allow-requantize", args.source, theirs, kind.upper()])
    ours_types, their_types = types_of(args.binary, ours), types_of(args.binary, theirs)
    other = [name for name in {**ours_types, **their_types} if ours_types.get(name) != their_types.get(name)]
    ppl = json.loads(subprocess.run([args.binary, "eval", "-m", ours, "-f", args.text, "--chunks", str(args.chunks), "--w4a4", "none",
                                     "--json"], capture_output=True, check=True).stdout)["ppl"]
    said = run([*shlex.split(args.perplexity), "-m", ours, "-f", args.text, "-c", "512", "--chunks", str(args.chunks)])
    ppl_llama = float(re.search(r"Final estimate: PPL = ([0-9.]+)", said).group(1))
    return {"source": os.path.basename(args.source), "type": kind, "tensors": len(ours_types), "other_types": len(other),
            "ppl": round(ppl, 4), "ppl_llama": ppl_llama, "percent": round(100 * (ppl / ppl_llama - 1), 3)}


def append(path, row):
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--text", required=True)
    parser.add_argument("--quantize", required=True)
    parser.add_argument("--perplexity", required=True)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("--types", default="q4_0,q4_1,q8_0,q4_k_m,q5_k_m,q6_k")
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--work", default=".")
    parser.add_argument("--csv")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    print("| type | tensors | of another type | perplexity, 1bit | llama.cpp | difference |")
    print("|---|---|---|---|---|---|")
    for kind in args.types.split(","):
        row = compare(args, kind)
        print(f"| {kind} | {row['tensors']} | {row['other_types']} | {row['ppl']:.4f} | {row['ppl_llama']:.4f} | {row['percent']:+.3f} % |",
              flush=True)
        if args.csv:
            append(args.csv, row)


if __name__ == "__main__":
    main()
