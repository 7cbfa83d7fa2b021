"""Finish the demo target's Hugging Face directory and write it as GGUF.

usage: export_target.py TARGET_DIR TOKENIZER.json OUT.gguf [--type bf16|q8_0]
Adds tokenizer.json, tokenizer_config.json and chat_template.jinja to TARGET_DIR.
"""
import argparse
import json
import os
import shutil
import sys

from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from dflash import gguf_file, qwen35        # noqa: E402

EOT, IM_END = 16376, 16378


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target")
    p.add_argument("tokenizer")
    p.add_argument("out")
    p.add_argument("--type", default="bf16", choices=("bf16", "q8_0"))
    a = p.parse_args()
    with open(os.path.join(HERE, "chat_template.jinja"), encoding="utf8") as f:
        template = f.read().rstrip("\n")
    c = qwen35.Config.from_hf(a.target)
    own = os.path.join(a.target, "tokenizer.json")
    if not (os.path.exists(own) and os.path.samefile(a.tokenizer, own)):
        shutil.copy(a.tokenizer, own)
    with open(os.path.join(a.target, "chat_template.jinja"), "w", encoding="utf8") as f:
        f.write(template)
    with open(os.path.join(a.target, "tokenizer_config.json"), "w", encoding="utf8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_prefix_space": False,
                   "model_max_length": c.max_pos, "chat_template": template}, f, indent=1)
    gguf_file.write_qwen35(a.out, a.type, "1bit demo", c, load_file(os.path.join(a.target, "model.safetensors")), a.tokenizer, IM_END, EOT, template, "mit")


if __name__ == "__main__":
    main()
