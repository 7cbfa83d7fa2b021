"""Tokens per step of a drafter on held-out prompts: the real draft + verify loop; argmax against selector against oracle.

usage: evaluate.py --target DIR --drafter DIR --prompts PROMPTS.json [--new 256] [--block N] [--out RESULT.json] [--device cpu|cuda]
  PROMPTS.json   a list of {"name", "kind"} with "ids", "text" (tokenised with the target's tokenizer.json) or "messages" (in the target's chat template)
argmax: the most likely token of every row; selector: the walk through the candidates; oracle: a row counts as right when the true token is
among the candidates. Use the selector in an engine only where it beats argmax here.
"""
import argparse
import json
import os
import time

import torch
from safetensors.torch import load_file

from dflash import drafter, targets, verify


def load_drafter(path, device):
    with open(os.path.join(path, "config.json"), encoding="utf8") as f:
        model = drafter.Drafter(drafter.Config.from_hf(json.load(f)))
    model.load_state_dict({k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()})
    return model.to(device).eval().requires_grad_(False)


def read_prompts(path, target_dir):
    with open(path, encoding="utf8") as f:
        prompts = json.load(f)
    if any("messages" in p for p in prompts):
        from transformers import AutoTokenizer
        chat = AutoTokenizer.from_pretrained(target_dir)
        for p in prompts:
            if "messages" in p:
                p.setdefault("text", chat.apply_chat_template(p["messages"], add_generation_prompt=True, tokenize=False))
    if any("ids" not in p for p in prompts):
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(os.path.join(target_dir, "tokenizer.json"))
        for p in prompts:
            p.setdefault("ids", tok.encode(p["text"], add_special_tokens=False).ids)
    return prompts


def stop_ids(target_dir):
    c = targets.read_config(target_dir)
    eos = c.get("text_config", c).get("eos_token_id", c.get("eos_token_id"))
    pad = c.get("text_config", c).get("pad_token_id", c.get("pad_token_id"))
    return {x for x in (eos if isinstance(eos, list) else [eos]) + [pad] if x is not None}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", required=True)
    p.add_argument("--drafter", required=True)
    p.add_argument("--prompts", required=True)
    p.add_argument("--new", type=int, default=256)
    p.add_argument("--block", type=int, help="rows per round, anchor included; default: as trained")
    p.add_argument("--out")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = p.parse_args()
    torch.set_flush_denormal(True)                        # decayed states are full of them
    target = targets.load(a.target, a.device, torch.float32 if a.device == "cpu" else None)
    model = load_drafter(a.drafter, a.device)
    if a.block:
        model.use_block(a.block)
    stop, results = stop_ids(a.target), []
    print(f"{'prompt':16s} {'kind':9s} {'tokens':>6s} {'argmax':>7s} {'selector':>8s} {'oracle':>7s}")
    for q in read_prompts(a.prompts, a.target):
        t = time.time()
        text, gaps = target.greedy(q["ids"], a.new, stop)
        rounds = verify.replay(target, model, q["ids"] + text, len(q["ids"]))
        r = {k: verify.tokens_per_step(v) for k, v in rounds.items()}
        results.append({"name": q["name"], "kind": q.get("kind", ""), "tokens": len(text), **r})
        print(f"{q['name']:16s} {q.get('kind', ''):9s} {len(text):6d} {r['argmax']:7.2f} {r['selector']:8.2f} {r['oracle']:7.2f}   {time.time() - t:.1f} s", flush=True)
    mean = {k: round(sum(r[k] for r in results) / len(results), 3) for k in ("argmax", "selector", "oracle")}
    print(f"{'mean':33s} {mean['argmax']:7.2f} {mean['selector']:8.2f} {mean['oracle']:7.2f}")
    if a.out:
        with open(a.out, "w", encoding="utf8") as f:
            json.dump({"mean": mean, "prompts": results}, f, indent=1)


if __name__ == "__main__":
    main()
