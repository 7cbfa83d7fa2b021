"""Write a trained drafter as GGUF; the Hugging Face directory is already what train.py wrote.

usage: export.py DRAFTER_DIR --target-gguf FILE --out FILE.gguf [--type bf16|q8_0|mix] [--name NAME]
  FILE   the GGUF of the target that the drafter will be served with: its tokenizer is copied, since both must agree
  mix    feed-forward matrices Q4_0, everything else Q8_0
"""
import argparse
import json
import os

from safetensors.torch import load_file

from dflash import drafter, gguf_file


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("drafter")
    p.add_argument("--target-gguf", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--type", default="q8_0", choices=tuple(gguf_file.KINDS))
    p.add_argument("--name", default="DFlash drafter")
    p.add_argument("--licence")
    a = p.parse_args()
    with open(os.path.join(a.drafter, "config.json"), encoding="utf8") as f:
        c = drafter.Config.from_hf(json.load(f))
    gguf_file.write_drafter(a.out, a.type, a.name, c, load_file(os.path.join(a.drafter, "model.safetensors")), a.target_gguf, a.licence)


if __name__ == "__main__":
    main()
