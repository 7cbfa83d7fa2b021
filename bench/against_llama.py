#!/usr/bin/env python3
"""This engine and llama.cpp's server on the same files, plain and with the same DFlash2 drafter, in turns.

usage: bench/against_llama.py --llama "COMMAND" [--binary build/1bit] -m MODEL.gguf --dflash DRAFTER.gguf
                              [--prompts models/bench/prompts.json] [--only code,prose,...] [--lengths 7,15] [--gen 256] [--reps 3]
                              [--threads 2] [--csv FILE]

COMMAND starts llama-server ("llama-server", or a wrapper of it), of a version that knows --spec-type draft-dflash. Greedy. Tokens a
step are n / (n - accepted drafts), the same formula for both; they are comparable where the texts agree.
"""
import argparse
import csv
import json
import shlex
import statistics
import zlib

from speculation import WARM_UP, Server

FIELDS = ["engine", "mode", "prompt", "rep", "predicted_n", "predicted_per_second", "tokens_per_step", "draft_n", "draft_n_accepted",
          "text_crc"]


class Llama(Server):
    def __init__(self, command, port, flags):
        self.command = [*shlex.split(command), "--port", str(port), "-np", "1", *flags]
        self.start(port)


def measure(engine, mode, server, prompt, rep, n_gen, n_max):
    body = {"prompt": prompt["text"], "n_predict": n_gen, "temperature": 0, "cache_prompt": False}
    if n_max is not None:
        body["speculative.n_max"] = n_max
    reply = server.request("POST", "/completion", body)
    timings = reply["timings"]
    n, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
    return {"engine": engine, "mode": mode, "prompt": prompt["name"], "rep": rep, "predicted_n": n,
            "predicted_per_second": round(timings["predicted_per_second"], 1),
            "tokens_per_step": round(n / max(n - accepted, 1), 3), "draft_n": timings.get("draft_n", 0),
            "draft_n_accepted": accepted, "text_crc": zlib.crc32(reply["content"].encode())}


def run(args, prompts):
    lengths = args.lengths.split(",")
    common = ["-m", args.model, "-t", str(args.threads), "-c", "4096"]
    ours_plain = Server(args.binary, args.port, common)
    ours = Server(args.binary, args.port + 1, [*common, "--dflash", args.dflash])
    llamas = {"plain": Llama(args.llama, args.port + 2, common)}
    for i, n in enumerate(lengths):
        llamas[n] = Llama(args.llama, args.port + 3 + i,
                          [*common, "--spec-type", "draft-dflash", "-md", args.dflash, "--spec-draft-n-max", n])
    rows, last = [], None
    try:
        for rep in range(-1, args.reps):
            for prompt in prompts if rep >= 0 else prompts[:1]:
                jobs = [("1bit", "plain", ours_plain, None), ("1bit", "adaptive", ours, None)]
                jobs += [("1bit", n, ours, int(n)) for n in lengths]
                jobs += [("llama.cpp", mode, server, None) for mode, server in llamas.items()]
                for engine, mode, server, n_max in jobs:
                    if server is not last:
                        server.request("POST", "/completion", WARM_UP)  # another process has the caches
                    last = server
                    row = measure(engine, mode, server, prompt, rep, args.gen, n_max)
                    if rep >= 0:
                        rows.append(row)
    finally:
        for server in (ours_plain, ours, *llamas.values()):
            server.stop()
    return rows


def table(rows):
    keys = list(dict.fromkeys((r["engine"], r["mode"]) for r in rows))
    print("| prompt | " + " | ".join(f"{e} {m}" for e, m in keys) + " | texts |\n" + "|---" * (len(keys) + 2) + "|")
    for name in dict.fromkeys(r["prompt"] for r in rows):
        cells = []
        for key in keys:
            mine = [r for r in rows if r["prompt"] == name and (r["engine"], r["mode"]) == key]
            speed = statistics.median(r["predicted_per_second"] for r in mine)
            cells.append(f"{speed:.0f} t/s, {mine[0]['tokens_per_step']:.2f}")
        same = len({r["text_crc"] for r in rows if r["prompt"] == name}) == 1
        print(f"| {name} | " + " | ".join(cells) + f" | {'equal' if same else 'differ'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--dflash", required=True)
    parser.add_argument("--prompts", default="models/bench/prompts.json")
    parser.add_argument("--only", default="code,python-class,cpp,shell,prose,chat-code,thinking")
    parser.add_argument("--lengths", default="7,15")
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv")
    parser.add_argument("--port", type=int, default=8751)
    args = parser.parse_args()
    with open(args.prompts) as file:
        prompts = [p for p in json.load(file) if p["name"] in args.only.split(",")]
    rows = run(args, prompts)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
