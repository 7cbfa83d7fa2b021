"""The demo target's GGUF as a Hugging Face directory with tokenizer: what the (rotated, 4-bit) file computes, as weights for training its drafter.

usage: gguf_target.py TARGET.gguf OUT_DIR [--dtype bf16|f32]
"""
import argparse
import json
import os
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "goldens"))
import demo        # noqa: E402
import tokenizer   # noqa: E402

EOT, IM_END = 16376, 16378


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target")
    p.add_argument("out")
    p.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    a = p.parse_args()
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    source = demo.Gguf(a.target)
    model = demo.load_target(source)
    os.makedirs(a.out, exist_ok=True)
    save_file({k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf8") as f:
        json.dump(model.c.to_hf(IM_END, EOT), f, indent=1)
    tokenizer.assemble(source.value("tokenizer.ggml.merges")).save(os.path.join(a.out, "tokenizer.json"))


if __name__ == "__main__":
    main()
