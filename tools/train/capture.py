"""Let the target write the drafter's training text: prompts in, rows out.

usage: capture.py --target DIR --prompts PROMPTS.jsonl --out ROWS.safetensors [--server URL | --device cuda] [options]
  --target   the target's Hugging Face directory (tokenizer and chat template; with --device also the weights)
  PROMPTS    one JSON object a line: {"prompt": "raw text"} or {"messages": [{"role": "user", "content": "..."}]}
  --server   write through a running server's /v1/completions, for instance `1bit serve -m model.gguf` at http://127.0.0.1:8080:
             the text is then that of the quantised model that will be served
  --device   write through transformers; models of full attention alone (llama, qwen3, ...) with --parallel slots that take the next
             prompt as soon as they are free, others in batches
Answers are kept in OUT.answers.jsonl: a stopped run goes on where it was. Rows are packed at the end.
"""
import argparse
import concurrent.futures
import json
import os
import random
import time
import urllib.error
import urllib.request

import torch

from dflash import rows, targets, writer


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", required=True)
    p.add_argument("--prompts", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--server")
    p.add_argument("--device")
    p.add_argument("--max-new", type=int, default=512)
    p.add_argument("--row", type=int, default=1024, help="tokens of a training row")
    p.add_argument("--greedy-share", type=float, default=0.6, help="the rest is sampled")
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--parallel", type=int, default=4, help="requests at a time, or the batch size")
    p.add_argument("--apart", action="store_true", help="one chat a row, as it will be served, instead of rows filled with several")
    p.add_argument("--longest", type=int, default=256, help="longer prompts (in tokens) are left out")
    p.add_argument("--seconds", type=float, default=1e9, help="stop writing after this time and use what is there (with --device)")
    p.add_argument("--thinking", action="store_true", help="render chats with enable_thinking")
    a = p.parse_args()
    if bool(a.server) == bool(a.device):
        raise SystemExit("give either --server or --device")
    return a


def read_prompts(path, tokenizer, thinking):
    out = []
    with open(path, encoding="utf8") as f:
        for n, line in enumerate(f, 1):
            if not line.strip():
                continue
            d = json.loads(line)
            if "prompt" in d:
                out.append(d["prompt"])
            elif "messages" in d:
                out.append(tokenizer.apply_chat_template(d["messages"], tools=d.get("tools"), add_generation_prompt=True, tokenize=False, enable_thinking=thinking))
            else:
                raise SystemExit(f"{path}:{n}: expected \"prompt\" or \"messages\", found {', '.join(d) or 'nothing'}")
    return out


def progress(done, total, began):
    seconds = time.time() - began
    bar = int(30 * done / max(1, total))
    print(f"\r[{'#' * bar}{'.' * (30 - bar)}] {done}/{total}  {seconds:.0f} s", end="", flush=True)


# ---------------------------------------------------------------- the two writers: (index, prompt, temperature) -> (text, ended)

def ask_server(url, prompt, temperature, max_new):
    body = json.dumps({"prompt": prompt, "max_tokens": max_new, "temperature": temperature, "stream": False}).encode()
    request = urllib.request.Request(url.rstrip("/") + "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as r:
            choice = json.load(r)["choices"][0]
    except urllib.error.HTTPError as e:
        raise SystemExit(f"{url}: {e.code} {e.read().decode('utf8', 'replace')[:300]}")
    return choice["text"], choice.get("finish_reason") == "stop"


def through_server(a, jobs):
    with concurrent.futures.ThreadPoolExecutor(a.parallel) as pool:
        futures = {pool.submit(ask_server, a.server, p, t, a.max_new): (i, t) for i, p, t in jobs}
        for f in concurrent.futures.as_completed(futures):
            i, t = futures[f]
            yield i, t, *f.result()


def full_attention(path):
    c = targets.read_config(path)
    c = c.get("text_config", c)
    return set(c.get("layer_types") or ["full_attention"]) == {"full_attention"} and not c.get("use_sliding_window")


def through_slots(a, jobs, tokenizer):
    ids = tokenizer([p for _, p, _ in jobs], add_special_tokens=False)["input_ids"]
    jobs, ids = zip(*((j, x) for j, x in zip(jobs, ids) if len(x) <= a.longest))
    began = time.time()
    w = writer.Writer(writer.load(a.target, a.device), ids, [t for _, _, t in jobs], a.max_new, min(a.parallel, len(jobs)), {tokenizer.eos_token_id})
    for k, answer, ended in w.run(a.seconds, lambda done, n: progress(done, n, began)):
        yield jobs[k][0], jobs[k][2], tokenizer.decode(answer), ended


def through_batches(a, jobs, tokenizer):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(a.target, dtype=torch.bfloat16 if a.device != "cpu" else torch.float32).to(a.device).eval()
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    began = time.time()
    for temperature in sorted({t for _, _, t in jobs}):
        mine = sorted((j for j in jobs if j[2] == temperature), key=lambda j: len(j[1]))
        for k in range(0, len(mine), a.parallel):
            if time.time() - began > a.seconds:
                return
            batch = mine[k:k + a.parallel]
            x = tokenizer([p for _, p, _ in batch], return_tensors="pt", padding=True, add_special_tokens=False).to(a.device)
            sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
            y = model.generate(**x, max_new_tokens=a.max_new, **sampling)[:, x["input_ids"].shape[1]:]
            for (i, _, t), ids in zip(batch, y.tolist()):
                ended = tokenizer.eos_token_id in ids
                ids = ids[:ids.index(tokenizer.eos_token_id)] if ended else ids
                yield i, t, tokenizer.decode(ids), ended


# ---------------------------------------------------------------- rows

def build_rows(a, prompts, answers, tokenizer):
    if not answers:
        raise SystemExit(f"{a.prompts}: no answer was finished; give more --seconds")
    eos = tokenizer.eos_token_id
    encode = lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]
    asked, said = encode([prompts[r["i"]] for r in answers]), encode([r["text"] for r in answers])
    packed = [(q, t + ([eos] if r["ended"] else []), 2 if r["temperature"] else 1) for r, q, t in zip(answers, asked, said)]
    random.Random(3).shuffle(packed)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos
    tokens, written = rows.pack(packed, a.row, pad, pad, a.apart)
    rows.save(a.out, tokens, written)
    print(f"{a.out}: {len(tokens)} rows of {a.row}, {(written > 0).float().mean():.2f} of the tokens written by the target")


def main():
    a = arguments()
    from transformers import AutoTokenizer
    targets.read_config(a.target)
    tokenizer = AutoTokenizer.from_pretrained(a.target)
    prompts = read_prompts(a.prompts, tokenizer, a.thinking)
    kept, answers = a.out + ".answers.jsonl", []
    if os.path.exists(kept):
        with open(kept, encoding="utf8") as f:
            answers = [json.loads(line) for line in f]
    known = {r["i"] for r in answers}
    rng = random.Random(7)
    jobs = [(i, p, 0.0 if rng.random() < a.greedy_share else a.temperature) for i, p in enumerate(prompts)]
    jobs = [j for j in jobs if j[0] not in known]
    began = time.time()
    with open(kept, "a", encoding="utf8") as f:
        write = through_server(a, jobs) if a.server else (through_slots if full_attention(a.target) else through_batches)(a, jobs, tokenizer)
        for i, t, text, ended in write:
            row = {"i": i, "temperature": t, "text": text, "ended": ended}
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
            answers.append(row)
            progress(len(answers), len(prompts), began)
    print()
    build_rows(a, prompts, answers, tokenizer)


if __name__ == "__main__":
    main()
