#!/usr/bin/env python3
"""Time to the first token of every turn of a chat, and how much of the prompt was read before.

usage: bench/turns.py [--binary build/1bit] [-m models/demo-H32.gguf] [--dflash models/demo-dflash2.gguf] [--turns 20]
                      [--answer 40] [--reps 3] [--csv FILE] [-- FLAGS ...]

Each repetition is a conversation of its own with one system prompt. A turn is asked for three times: as the conversation goes
on, with its message edited, and from nothing (cache_prompt false). Prints a Markdown table of medians; the CSV has one line a
request. Flags after -- go to the server.
"""
import argparse
import csv
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time

FIELDS = ["rep", "turn", "kind", "prompt_tokens", "cached_tokens", "earlier_prompt", "first_token_ms", "prompt_ms", "answer_tokens"]
KINDS = ["goes on", "edited", "from nothing"]
SYSTEM = "You answer in one short sentence. " + " ".join("Rule %d: be kind and be brief." % i for i in range(12))
WORDS = "river sea lake hill wood road town farm ship moon star rain snow wind fire bread cheese apple garden piano".split()


def start(binary, flags):
    process = subprocess.Popen([binary, "serve", *flags, "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"listening on http://([\d.]+):(\d+)", line)
        if found:
            break
    else:
        sys.exit("the server did not start")
    address = found.group(1), int(found.group(2))
    while True:
        connection = http.client.HTTPConnection(*address)
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return process, address
        time.sleep(0.05)


def ask(address, messages, n, fresh):
    """One streamed answer: its text, the time to its first token, and its last chunks' numbers."""
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "stream": True, "cache_prompt": not fresh,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(*address)
    begin = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    first, text, usage, timings = None, "", None, None
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage, timings = chunk.get("usage") or usage, chunk.get("timings") or timings
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if first is None and (delta.get("content") or delta.get("reasoning_content")):
                first = (time.monotonic() - begin) * 1e3
            text += delta.get("content") or ""
    return text, first, usage, timings


def row_of(rep, turn, kind, earlier, answer):
    _, first, usage, timings = answer
    return {"rep": rep, "turn": turn, "kind": kind, "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "earlier_prompt": earlier,
            "first_token_ms": round(first, 2) if first else "", "prompt_ms": round(timings["prompt_ms"], 2),
            "answer_tokens": usage["completion_tokens"]}


def converse(address, rep, args, rows):
    messages = [{"role": "system", "content": SYSTEM}]
    earlier = 0
    for turn in range(1, args.turns + 1):
        message = "In conversation %d, tell me about the %s." % (rep, WORDS[turn % len(WORDS)])
        edited = messages + [{"role": "user", "content": "Say something else about the %s." % WORDS[turn % len(WORDS)]}]
        messages.append({"role": "user", "content": message})
        answer = ask(address, messages, args.answer, False)
        rows.append(row_of(rep, turn, KINDS[0], earlier, answer))
        rows.append(row_of(rep, turn, KINDS[1], earlier, ask(address, edited, 4, False)))
        rows.append(row_of(rep, turn, KINDS[2], earlier, ask(address, messages, 4, True)))
        earlier = rows[-1]["prompt_tokens"]
        messages.append({"role": "assistant", "content": answer[0]})


def table(rows):
    print("| turn | prompt tokens | of the earlier prompt cached | after an edit | first token ms: " + " | ".join(KINDS) + " |")
    print("|---|---|---|---|---|---|---|")
    for turn in dict.fromkeys(r["turn"] for r in rows):
        mine = {kind: [r for r in rows if r["turn"] == turn and r["kind"] == kind] for kind in KINDS}
        share = {kind: min(min(r["cached_tokens"] / r["earlier_prompt"], 1) for r in mine[kind]) if turn > 1 else 0 for kind in KINDS}
        ms = {kind: statistics.median(r["first_token_ms"] or r["prompt_ms"] for r in mine[kind]) for kind in KINDS}
        print(f"| {turn} | {statistics.median(r['prompt_tokens'] for r in mine[KINDS[0]]):.0f} | {share[KINDS[0]]:.1%} | {share[KINDS[1]]:.1%} | "
              + " | ".join(f"{ms[kind]:.1f}" for kind in KINDS) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/1bit")
    parser.add_argument("-m", "--model", default="models/demo-H32.gguf")
    parser.add_argument("--dflash", default="models/demo-dflash2.gguf")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--answer", type=int, default=40)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--csv")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    drafter = ["--dflash", args.dflash] if args.dflash and os.path.exists(args.dflash) else []
    process, address = start(args.binary, ["-m", args.model, *drafter, *args.flags])
    rows = []
    try:
        for rep in range(1, args.reps + 1):
            converse(address, rep, args, rows)
    finally:
        process.terminate()
        process.wait(10)
    table(rows)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
