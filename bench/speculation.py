#!/usr/bin/env python3
"""What drafting gains: no drafter, lengths chosen by the engine, and every fixed length, in turns on two running servers.

usage: bench/speculation.py [--binary build/1bit] [-m models/demo-H32.gguf] [--dflash models/demo-dflash2.gguf]
                            [--prompts FILE.json,...] [--only NAME or KIND,...] [--temperatures 0,0.7,1]
                            [--fixed 1,2,3,5,7,11,15] [--gen 256] [--reps 5] [--csv FILE] [--port 8731] [-- FLAGS ...]
       bench/speculation.py --table FILE ... [--medians FILE]

Each repetition asks for every prompt at every temperature in every mode, one request at a time; which mode comes first changes from
prompt to prompt and with each repetition. "plain" is a server without a drafter, the other modes share one with it; prompts are never reused. --csv
goes on with a file's repetitions, so that a long measurement can be made in pieces, and prints the table of all of it. --medians
writes one line for all repetitions of a prompt, to be kept; "rep" is their number there. The table gives times of plain over times of the mode, prompt included: medians over repetitions, summed over prompts. Sampled
texts have one seed, so all repetitions and modes write the same.
"""
import argparse
import collections
import csv
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
import zlib

FIELDS = ["prompt", "kind", "temperature", "mode", "rep", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "rounds",
          "drafted", "accepted", "looked_up", "text_crc"]


WARM_UP = {"prompt": "Once upon a time", "n_predict": 48, "temperature": 0, "cache_prompt": False}


class Server:
    def __init__(self, binary, port, flags):
        self.command = [binary, "serve", "--port", str(port), "--parallel", "1", *flags]
        self.start(port)

    def start(self, port):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for _ in range(400):
            if self.process.poll() is not None:  # else another server on this port would be measured
                sys.exit(f"{' '.join(self.command)} ended with {self.process.returncode}")
            try:
                if self.request("GET", "/health", None).get("status") == "ok":
                    return
            except (OSError, http.client.HTTPException):
                self.connection.close()
            time.sleep(0.05)
        self.stop()
        sys.exit(f"{' '.join(self.command)} does not answer")

    def request(self, method, path, body):
        for attempt in (0, 1):
            try:
                self.connection.request(method, path, None if body is None else json.dumps(body),
                                        {"Content-Type": "application/json"})
                return json.loads(self.connection.getresponse().read())
            except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
                self.connection.close()  # it was idle for too long: once more on a new one
                if attempt == 1:
                    raise

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(server, prompt, temperature, mode, rep, n_gen):
    body = {"prompt": prompt["text"], "n_predict": n_gen, "temperature": temperature, "seed": 1, "cache_prompt": False}
    if mode.isdigit():
        body["speculative.n_max"] = int(mode)
    reply = server.request("POST", "/completion", body)
    if "timings" not in reply:
        sys.exit(f"{prompt['name']}: {reply}")
    timings, speculation = reply["timings"], reply.get("speculation", {})
    return {
        "prompt": prompt["name"], "kind": prompt["kind"], "temperature": temperature, "mode": mode, "rep": rep,
        "prompt_n": timings["prompt_n"], "prompt_ms": round(timings["prompt_ms"], 3), "predicted_n": timings["predicted_n"],
        "predicted_ms": round(timings["predicted_ms"], 3), "rounds": speculation.get("rounds", 0),
        "drafted": timings["draft_n"], "accepted": timings["draft_n_accepted"],
        "looked_up": speculation.get("looked_up", 0), "text_crc": zlib.crc32(reply["content"].encode()),
    }


def turned(modes, rep):
    first = rep % len(modes)
    return modes[first:] + modes[:first]


def run(args):
    prompts = []
    for path in args.prompts.split(","):
        with open(path) as file:
            prompts += json.load(file)
    if args.only:
        prompts = [p for p in prompts if {p["name"], p["kind"]} & set(args.only.split(","))]
    modes = ["plain", "adaptive", *(args.fixed.split(",") if args.fixed else [])]
    plain = Server(args.binary, args.port, ["-m", args.model, *args.flags])
    drafting = Server(args.binary, args.port + 1, ["-m", args.model, "--dflash", args.dflash, *args.flags])
    rows = read(args.csv) if args.csv and os.path.exists(args.csv) else []
    done, server = max((int(r["rep"]) for r in rows), default=-1) + 1, None
    try:
        for rep in [-1, *range(done, done + args.reps)]:
            first = len(rows)
            for i, prompt in enumerate(prompts):
                for temperature in map(float, args.temperatures.split(",")):
                    for mode in turned(modes, rep + i) if rep >= 0 else modes[:2]:
                        if server is not (server := plain if mode == "plain" else drafting):
                            server.request("POST", "/completion", WARM_UP)  # the other process has the caches
                        row = measure(server, prompt, temperature, mode, rep, args.gen)
                        if rep >= 0:
                            rows.append(row)
                if rep < 0:
                    break  # one round to warm up
            if args.csv and rep >= 0:
                write(args.csv, rows[first:])
    finally:
        plain.stop()
        drafting.stop()
    return rows


def write(path, rows):
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def medians(rows):
    """One row for all repetitions of a prompt in a mode; `text_crc` is empty where texts differed."""
    same = collections.defaultdict(list)
    for r in rows:
        same[r["prompt"], r["kind"], r["temperature"], r["mode"]].append(r)
    for key, reps in same.items():
        texts = {str(r["text_crc"]) for r in reps}
        numbers = {f: round(statistics.median(float(r[f]) for r in reps), 3) for f in FIELDS[5:-1]}
        yield {**dict(zip(FIELDS, key)), "rep": len(reps), **{f: f"{x:g}" for f, x in numbers.items()},
               "text_crc": texts.pop() if len(texts) == 1 else ""}


def table(rows):
    """Rows: kind and temperature. Times are medians over repetitions of each prompt, then summed over prompts."""
    groups = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for r in rows:
        groups[r["kind"], float(r["temperature"])][r["mode"]][r["prompt"]].append(r)
    print("| prompts | T | plain t/s | adaptive t/s | adaptive | best fixed | decode only: adaptive | best fixed | tokens/step | same text |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (kind, temperature), modes in sorted(groups.items(), key=lambda x: (x[0][1], x[0][0])):
        total = {m: summed(runs, ["prompt_ms", "predicted_ms"]) for m, runs in modes.items()}
        decode = {m: summed(runs, ["predicted_ms"]) for m, runs in modes.items()}
        n, rounds, accepted = (summed(modes["adaptive"], [field]) for field in ("predicted_n", "rounds", "accepted"))
        texts = collections.defaultdict(set)
        for runs in modes.values():
            for prompt, same in runs.items():
                texts[prompt].update((str(r["text_crc"]), str(r["predicted_n"])) for r in same)
        print(f"| {kind} | {temperature} | {1e3 * n / decode['plain']:.0f} | {1e3 * n / decode['adaptive']:.0f} | "
              f"{total['plain'] / total['adaptive']:.2f} | {best_fixed(total)} | {decode['plain'] / decode['adaptive']:.2f} | "
              f"{best_fixed(decode)} | {1 + accepted / max(rounds, 1):.2f} | {'yes' if all(len(t) == 1 for t in texts.values()) else 'no'} |")


def summed(runs, fields):
    return sum(statistics.median(sum(float(r[f]) for f in fields) for r in same) for same in runs.values())


def best_fixed(times):
    fixed = [m for m in times if m.isdigit()]
    best = min(fixed, key=times.get, default=None)
    return "-" if best is None else f"{times['plain'] / times[best]:.2f} ({best})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("-m", "--model", default="models/demo-H32.gguf")
    parser.add_argument("--dflash", default="models/demo-dflash2.gguf")
    parser.add_argument("--prompts", default="models/bench/prompts.json,models/bench/held-out.json",
                        help='JSON lists of {"name", "kind", "text"}, separated by commas')
    parser.add_argument("--only", help="names or kinds of prompts, separated by commas")
    parser.add_argument("--temperatures", default="0,0.7,1")
    parser.add_argument("--fixed", default="1,2,3,5,7,11,15")
    parser.add_argument("--gen", type=int, default=256)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--csv")
    parser.add_argument("--port", type=int, default=8731)
    parser.add_argument("--table", nargs="+", help="only print the table of these CSV files")
    parser.add_argument("--medians", help="file to write medians by prompt to")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    rows = [row for path in args.table for row in read(path)] if args.table else run(args)
    if args.medians:
        write(args.medians, medians(rows))
    table(rows)


if __name__ == "__main__":
    main()
