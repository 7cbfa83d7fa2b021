#!/usr/bin/env python3
"""Starting a server, and what it adds to the engine's own times; beside other servers, interleaved.

usage: bench/start.py -m FILE [--binary build/1bit] [--peer "llama-server -fa on"] [--threads 2] [--reps 5] [--requests 10] [--gen 64]
                      [--cold] [--csv FILE]

FILE needs a tokenizer. Each repetition starts every server once. Measured: seconds until /health answers 200; memory then (private, and
mapped from the file); of short prompts the milliseconds until the first token's event beyond the prompt time that the server itself
reports; tokens a second of a streamed answer, counted from the first to the last event, and the share lost against what the server
reports for the decoding alone. --cold drops the file from the page cache before each start, and reads it once, timed, to compare.
"""
import argparse
import csv
import http.client
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time

PROMPT = "The river runs down to the sea, and"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def forget(path):
    """Drops the file's pages from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_to_read(path):
    begin = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(8 << 20)
        while file.readinto(buffer):
            pass
    return time.monotonic() - begin


def wait_ready(process, port, begin):
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return time.monotonic() - begin
        except OSError:
            pass
        time.sleep(0.002)
    sys.exit(f"a server ended with {process.returncode} before it was ready")


def resident(pid):
    """(private, of files) MiB."""
    sizes = {}
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("Rss"):
                name, size = line.split()[:2]
                sizes[name] = int(size) / 1024
    return sizes["RssAnon:"] + sizes["RssShmem:"], sizes["RssFile:"]


def ask(port, n):
    """Times of all tokens' events, from the request on, and the server's own figures."""
    body = json.dumps({"prompt": PROMPT, "n_predict": n, "temperature": 0, "stream": True, "cache_prompt": False, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begin = time.monotonic()
    connection.request("POST", "/completion", body)
    lines = []  # read first and parsed later: this process shares the cores with the server
    for line in connection.getresponse():
        lines.append((time.monotonic() - begin, line))
    events, timings = [], None
    for at, line in lines:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            timings = chunk.get("timings") or timings
            if not chunk.get("stop"):
                events.append(at)
    return events, timings


def measure(command, args):
    port = free_port()
    begin = time.monotonic()
    process = subprocess.Popen([*command, "-m", args.model, "-t", str(args.threads), "-c", "4096", "--port", str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    row = {"ready_s": wait_ready(process, port, begin)}
    row["private_mib"], row["file_mib"] = resident(process.pid)
    ask(port, 4)
    extra = []
    for _ in range(args.requests):
        events, timings = ask(port, 2)
        extra.append(events[0] * 1e3 - timings["prompt_ms"])
    row["first_token_extra_ms"] = statistics.median(extra)
    events, timings = ask(port, args.gen)
    # Tokens, not events: one that ends inside a character comes with the next.
    row["streamed_tps"] = (timings["predicted_n"] - 1) / (events[-1] - events[0])
    row["loss_percent"] = 100 * (1 - row["streamed_tps"] / timings["predicted_per_second"])
    process.send_signal(signal.SIGTERM)
    process.wait()
    return row


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--csv")
    args = parser.parse_args()
    servers = {"1bit": [args.binary, "serve", "--parallel", "1"]} | {peer: shlex.split(peer) for peer in args.peer}
    rows = []
    for rep in range(args.reps):
        for name, command in servers.items():
            row = {"server": name, "rep": rep}
            if args.cold:
                forget(args.model)
                row["read_file_s"] = seconds_to_read(args.model)
                forget(args.model)
            rows.append({key: round(value, 3) if isinstance(value, float) else value
                         for key, value in (row | measure(command, args)).items()})
    fields = [field for field in rows[0] if field not in ("server", "rep")]
    print("| server | " + " | ".join(fields) + " |\n|" + "---|" * (len(fields) + 1))
    for name in servers:
        medians = [statistics.median(row[field] for row in rows if row["server"] == name) for field in fields]
        print(f"| {name} | " + " | ".join(f"{m:.3g}" if m < 100 else f"{m:.0f}" for m in medians) + " |")
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, ["server", "rep", *fields], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
