"""Compare the demo target with the stock transformers class, float32 on the CPU.

usage: check_transformers.py TARGET_DIR TEXT.txt
Loads TARGET_DIR by AutoModelForCausalLM and by our own model, evaluates the first 300 tokens of TEXT and random ids, prints the largest
difference of a logit and the standard deviation of the logits.
"""
import os
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from dflash.qwen35 import Config, Qwen35        # noqa: E402


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    path, text = sys.argv[1:]
    torch.set_grad_enabled(False)
    ours = Qwen35(Config.from_hf(path))
    ours.load_state_dict({k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()})
    stock = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with open(text, encoding="utf8") as f:
        ids = Tokenizer.from_file(os.path.join(path, "tokenizer.json")).encode(f.read(4000), add_special_tokens=False).ids[:300]
    for name, x in (("text", torch.tensor([ids])), ("random", torch.randint(0, 16376, (1, 300), generator=torch.Generator().manual_seed(1)))):
        a, b = ours.logits(ours.hidden(x)[0]), stock(x).logits
        print(f"{name}: {type(stock).__name__}, largest difference {(a - b).abs().max().item():.2e}, logit deviation {b.std().item():.3f}, same argmax {(a.argmax(-1) == b.argmax(-1)).float().mean():.4f}")


if __name__ == "__main__":
    main()
