"""The demo target's GGUF as a Hugging Face directory: what the (rotated, 4-bit) file computes, as weights for training its drafter.

usage: gguf_target.py TARGET.gguf OUT_DIR
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "goldens"))
import demo        # noqa: E402

EOT, IM_END = 16376, 16378


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    path, out = sys.argv[1:]
    model = demo.load_target(demo.Gguf(path))
    os.makedirs(out, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w", encoding="utf8") as f:
        json.dump(model.c.to_hf(IM_END, EOT), f, indent=1)


if __name__ == "__main__":
    main()
