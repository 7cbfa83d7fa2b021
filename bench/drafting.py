#!/usr/bin/env python3
"""Decode speed with and without the drafter, interleaved, on a folder of prompts.

usage: bench/drafting.py [--binary build/1bit] [-m models/demo-H32.gguf] [--dflash models/demo-dflash2.gguf]
                         [--prompts models/bench/prompts.json] [--gen 256] [--reps 5] [--csv FILE] [-- FLAGS ...]

Each repetition runs every prompt plain and drafted, one after the other, as fresh processes, greedy. Prints a Markdown table with
the median (min-max) of tokens per second and the ratio of the medians; the CSV has one line a run. Flags after -- go to both.
"""
import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import zlib

FIELDS = ["prompt", "kind", "rep", "drafter", "prompt_tokens", "generated", "prompt_per_second", "predicted_per_second",
          "tokens_per_step", "draft_n", "draft_n_accepted", "text_crc"]


def run(binary, flags, text, n_gen):
    """One `1bit run --json` on `text`; its parsed document."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write(text)
        prompt.flush()
        command = [binary, "run", *flags, "-f", prompt.name, "-n", str(n_gen), "--temp", "0", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def row_of(prompt, rep, drafter, reply):
    timings, speculation = reply["timings"], reply["speculation"]
    return {
        "prompt": prompt["name"], "kind": prompt["kind"], "rep": rep, "drafter": drafter,
        "prompt_tokens": reply["prompt_tokens"], "generated": reply["generated_tokens"],
        "prompt_per_second": round(timings["prompt_per_second"], 2),
        "predicted_per_second": round(timings["predicted_per_second"], 2),
        "tokens_per_step": round(speculation["tokens_per_step"], 3), "draft_n": timings["draft_n"],
        "draft_n_accepted": timings["draft_n_accepted"], "text_crc": zlib.crc32(reply["text"].encode()),
    }


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def table(rows):
    print("| prompt | kind | tokens/step | plain t/s | drafted t/s | ratio | same text |\n|---|---|---|---|---|---|---|")
    ratios = []
    for name in dict.fromkeys(r["prompt"] for r in rows):
        mine = [r for r in rows if r["prompt"] == name]
        plain = [r["predicted_per_second"] for r in mine if not r["drafter"]]
        drafted = [r["predicted_per_second"] for r in mine if r["drafter"]]
        steps = next(r["tokens_per_step"] for r in mine if r["drafter"])
        ratio = statistics.median(drafted) / statistics.median(plain)
        ratios.append(ratio)
        same = len({r["text_crc"] for r in mine}) == 1
        print(f"| {name} | {mine[0]['kind']} | {steps:.2f} | {spread(plain)} | {spread(drafted)} | {ratio:.2f} | {'yes' if same else 'no'} |")
    print(f"| geometric mean | | | | | {statistics.geometric_mean(ratios):.2f} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("-m", "--model", default="models/demo-H32.gguf")
    parser.add_argument("--dflash", default="models/demo-dflash2.gguf")
    parser.add_argument("--prompts", default="models/bench/prompts.json", help='JSON list of {"name", "kind", "text"}')
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--csv")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with open(args.prompts) as file:
        prompts = json.load(file)
    rows = []
    for rep in range(args.reps):
        for prompt in prompts:
            for drafter in (False, True):
                flags = ["-m", args.model, *(["--dflash", args.dflash] if drafter else []), *args.flags]
                rows.append(row_of(prompt, rep, drafter, run(args.binary, flags, prompt["text"], args.gen)))
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
