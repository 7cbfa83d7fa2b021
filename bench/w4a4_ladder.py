#!/usr/bin/env python3
"""Accuracy of 4-bit activations, rung by rung: divergence of each way to quantise a model from the model itself.

usage: bench/w4a4_ladder.py SOURCE.gguf --calibration TEXT --text code=FILE --text prose=FILE [--binary build/1bit]
                            [--chunks 40] [--calibration-chunks 128] [--work DIR] [--csv FILE] [--only WORDS ...] [--skip WORDS ...]
  SOURCE.gguf   q8_0, f16, bf16 or f32; its own predictions with 8-bit activations are the reference
  TEXT          what the second moments and the lists are taken from; must not overlap with the evaluated texts

Makes every file with `1bit quantize` and evaluates it with `1bit eval --against`. Files, saved predictions and results stay in DIR
and are used again, so that an interrupted ladder goes on. Prints a Markdown table; ratios are to q4_0 with scale search and exact
activations, whose other tensors (embedding, ssm_out) have the types that they have in rotated files, so that only the blocks'
matrices differ.
"""
import argparse
import csv
import json
import os
import re
import subprocess
import sys

FIELDS = ["rung", "text", "exact_share", "kld", "kld_err", "kld_p99", "same_top", "ppl", "ppl_err", "ratio"]
LIKE_ROTATED = ["--tensor-type", "ssm_out=q5_k", "--tensor-type", "token_embd=q8_0"]  # of a tied model
BASE = "q4_0 search, int8"

H32, GPTQ = ["--hadamard", "32"], ["--gptq", "--hessian", "{hessians}"]
# file name -> flags of quantize
FILES = {
    "q4_0": LIKE_ROTATED,
    "q4_0-plain": [],
    "q4_0-no-search": ["--no-search", *LIKE_ROTATED],
    "q4_0-imatrix": ["--imatrix", "{imatrix}", *LIKE_ROTATED],
    "q4_0-gptq": [*GPTQ, "--balance", "0", *LIKE_ROTATED],
    "h32": H32,
    "h32-no-search": [*H32, "--no-search"],
    "h32-imatrix": [*H32, "--imatrix", "{imatrix}"],
    "h32-gptq": [*H32, *GPTQ, "--balance", "0"],
    "h32-ours": [*H32, *GPTQ],
    "h32-balance-50": [*H32, *GPTQ, "--balance", "0.5"],
    "h32-balance-75": [*H32, *GPTQ, "--balance", "0.75"],
}
# file name -> the file that it is a copy of, the share of its list
LISTS = {
    "h32-list-10": ("h32", "10%"),
    "h32-gptq-list-10": ("h32-gptq", "10%"),
    "h32-ours-5": ("h32-ours", "5%"),
    "h32-ours-6": ("h32-ours", "6%"),
    "h32-ours-10": ("h32-ours", "10%"),
    "h32-ours-20": ("h32-ours", "20%"),
    "h32-ours-30": ("h32-ours", "30%"),
}
# rung, file, --w4a4, --int4-rule
RUNGS = [
    (BASE, "q4_0", "none", "search"),
    ("q4_0 search, int8, plain mixture (ssm_out q4_0)", "q4_0-plain", "none", "search"),
    ("q4_0 without search, int8", "q4_0-no-search", "none", "search"),
    ("q4_0 imatrix, int8", "q4_0-imatrix", "none", "search"),
    ("q4_0 GPTQ, int8", "q4_0-gptq", "none", "search"),
    ("q4_0 search, W4A4, amax/7, not rotated", "q4_0", "all", "amax"),
    ("q4_0 search, W4A4, not rotated", "q4_0", "all", "search"),
    ("q4_0 GPTQ, W4A4, not rotated", "q4_0-gptq", "all", "search"),
    ("H32 search, int8", "h32", "none", "search"),
    ("H32 imatrix (block means), int8", "h32-imatrix", "none", "search"),
    ("H32 without search, W4A4, amax/7", "h32-no-search", "all", "amax"),
    ("H32 search, W4A4, amax/7", "h32", "all", "amax"),
    ("H32 imatrix (block means), W4A4, amax/7", "h32-imatrix", "all", "amax"),
    ("H32 search, W4A4, extreme to -8", "h32", "all", "extreme"),
    ("H32 search, W4A4", "h32", "all", "search"),
    ("H32 search, W4A4, 10 % int8", "h32-list-10", "auto", "search"),
    ("H32 GPTQ, int8", "h32-gptq", "none", "search"),
    ("H32 GPTQ, W4A4, amax/7", "h32-gptq", "all", "amax"),
    ("H32 GPTQ, W4A4, extreme to -8", "h32-gptq", "all", "extreme"),
    ("H32 GPTQ, W4A4", "h32-gptq", "all", "search"),
    ("H32 GPTQ, W4A4, 10 % int8", "h32-gptq-list-10", "auto", "search"),
    ("H32 GPTQ balanced, int8", "h32-ours", "none", "search"),
    ("H32 GPTQ balanced, W4A4", "h32-ours", "all", "search"),
    ("H32 GPTQ balanced by 0.5, W4A4", "h32-balance-50", "all", "search"),
    ("H32 GPTQ balanced by 0.75, W4A4", "h32-balance-75", "all", "search"),
    ("H32 GPTQ balanced, W4A4, 5 % int8", "h32-ours-5", "auto", "search"),
    ("H32 GPTQ balanced, W4A4, 6 % int8", "h32-ours-6", "auto", "search"),
    ("H32 GPTQ balanced, W4A4, 10 % int8", "h32-ours-10", "auto", "search"),
    ("H32 GPTQ balanced, W4A4, 20 % int8", "h32-ours-20", "auto", "search"),
    ("H32 GPTQ balanced, W4A4, 30 % int8", "h32-ours-30", "auto", "search"),
]


class Ladder:
    def __init__(self, args):
        self.args = args
        self.texts = dict(text.split("=", 1) for text in args.text)
        self.shares = {}
        os.makedirs(args.work, exist_ok=True)

    def path(self, name):
        return os.path.join(self.args.work, name)

    def run(self, *command):
        done = subprocess.run([self.args.binary, *command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def statistics(self, name, *flags):
        """What `1bit imatrix` measures of the source on the calibration text."""
        path = self.path(name)
        if not os.path.exists(path):
            self.run("imatrix", "-m", self.args.source, "-f", self.args.calibration, "-o", path,
                     "--chunks", str(self.args.calibration_chunks), *flags)
        return path

    def with_list(self, name, path):
        """A copy with a list: the first of a file measures, the others use what it measured."""
        file, budget = LISTS[name]
        measured = [self.path(other + ".gguf") for other, (of, _) in LISTS.items() if of == file]
        known = next((other for other in measured if os.path.exists(other)), None)
        text = self.run("quantize", known or self.quantised(file), path, "--w4a4-budget", budget,
                        *([] if known else ["-f", self.args.calibration]))
        with open(path + ".share", "w") as file:
            file.write(re.search(r"([\d.]+) % of the multiplications", text).group(1) + "\n")

    def quantised(self, name):
        """The file of this name, made when it is not there."""
        path = self.path(name + ".gguf")
        if os.path.exists(path):
            return path
        if name in LISTS:
            self.with_list(name, path)
            return path
        flags = FILES[name]
        words = {"imatrix": self.statistics("imatrix.gguf") if "{imatrix}" in flags else "",
                 "hessians": self.statistics("hessians.gguf", "--hessian") if "{hessians}" in flags else ""}
        self.run("quantize", self.args.source, path, *(flag.format(**words) for flag in flags))
        return path

    def reference(self, text):
        path = self.path(f"reference-{text}.gguf")
        if not os.path.exists(path):
            self.run("eval", "-m", self.args.source, "-f", self.texts[text], "--chunks", str(self.args.chunks),
                     "--w4a4", "none", "--save-logits", path)
        return path

    def evaluate(self, rung):
        """The rows of one rung, one for each text."""
        label, name, w4a4, rule = rung
        path = self.quantised(name)
        share = float(open(path + ".share").read()) if os.path.exists(path + ".share") else ""
        for text, file in self.texts.items():
            kept = self.path(f"{name}-{w4a4}-{rule}-{text}.json")
            if not os.path.exists(kept):
                result = self.run("eval", "-m", path, "-f", file, "--chunks", str(self.args.chunks), "--w4a4", w4a4,
                                  "--int4-rule", rule, "--against", self.reference(text), "--json")
                with open(kept, "w") as out:
                    out.write(result)
            with open(kept) as result_file:
                result = json.load(result_file)
            yield {"rung": label, "text": text, "exact_share": share, "kld": result["kld_mean"], "kld_err": result["kld_err"],
                   "kld_p99": result["kld_p99"], "same_top": result["same_top"], "ppl": result["ppl"], "ppl_err": result["ppl_err"]}


def print_table(rows, texts):
    print("| " + " | ".join(["", *(f"divergence, {t}" for t in texts), *(f"ratio, {t}" for t in texts),
                             *(f"same top, {t}" for t in texts)]) + " |")
    print("|" + "---|" * (1 + 3 * len(texts)))
    for label in dict.fromkeys(row["rung"] for row in rows):
        of = {row["text"]: row for row in rows if row["rung"] == label}
        cells = [f"{of[t]['kld']:.4f} ± {of[t]['kld_err']:.4f}" for t in texts]
        cells += [f"{of[t]['ratio']:.2f}" if of[t]["ratio"] else "" for t in texts]
        cells += [f"{100 * of[t]['same_top']:.1f} %" for t in texts]
        print("| " + " | ".join([label, *cells]) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--text", action="append", required=True)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--calibration-chunks", type=int, default=128)
    parser.add_argument("--work", default="w4a4-ladder")
    parser.add_argument("--csv")
    parser.add_argument("--only", nargs="*", default=[], help="rungs whose names contain one of these")
    parser.add_argument("--skip", nargs="*", default=[], help="but none of these")
    ladder = Ladder(parser.parse_args())
    rows, base = [], {}
    for rung in RUNGS:
        wanted = not ladder.args.only or any(words in rung[0] for words in ladder.args.only)
        if rung[0] != BASE and (not wanted or any(words in rung[0] for words in ladder.args.skip)):
            continue
        for row in ladder.evaluate(rung):
            if rung[0] == BASE:
                base[row["text"]] = row["kld"]
            row["ratio"] = row["kld"] / base[row["text"]]
            rows.append(row)
            print(f"{row['rung']:<52} {row['text']:<6} {row['kld']:.5f}  {row['ratio']:.3f}", file=sys.stderr, flush=True)
    print_table(rows, list(ladder.texts))
    if ladder.args.csv:
        with open(ladder.args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
