"""The weighted mean of two trainings of the same target; often better than either.

usage: average.py DIR_A DIR_B OUT_DIR [--share 0.5]        share: weight of B
"""
import argparse
import os
import shutil

import torch
from safetensors.torch import load_file, save_file


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("a")
    p.add_argument("b")
    p.add_argument("out")
    p.add_argument("--share", type=float, default=0.5)
    args = p.parse_args()
    a, b = (load_file(os.path.join(d, "model.safetensors")) for d in (args.a, args.b))
    if a.keys() != b.keys():
        raise SystemExit(f"{args.a} and {args.b} do not hold the same tensors: {sorted(a.keys() ^ b.keys())[:3]}")
    os.makedirs(args.out, exist_ok=True)
    shutil.copy(os.path.join(args.b, "config.json"), args.out)
    mean = {k: ((1 - args.share) * a[k].float() + args.share * b[k].float()).to(torch.bfloat16) for k in a}
    save_file(mean, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
