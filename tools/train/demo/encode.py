"""Corpus text -> token stream, one uint16 a token, <|endoftext|> after every document.

usage: encode.py tokenizer.json out.bin PART [PART ...]
A PART is a text file whose documents are separated by <|endoftext|>, plain, .xz or .bz2.
The parts are encoded in parallel, one a core.
"""
import bz2
import lzma
import multiprocessing as mp
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np                              # noqa: E402
from tokenizers import Tokenizer                # noqa: E402

EOT = "<|endoftext|>"


def start(path):
    global tok, eot
    tok = Tokenizer.from_file(path)
    eot = tok.token_to_id(EOT)


def encode(path):
    """one part, whole"""
    with {"xz": lzma.open, "bz2": bz2.open}.get(path.rsplit(".", 1)[-1], open)(path, "rb") as f:
        docs = [d for d in f.read().decode("utf8").split(EOT) if d.strip()]
    out = []
    for i in range(0, len(docs), 512):
        for e in tok.encode_batch_fast(docs[i:i + 512], add_special_tokens=False):
            out += [np.array(e.ids, np.uint16), np.array([eot], np.uint16)]
    return np.concatenate(out).tobytes()


def main():
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    tokenizer, out, *parts = sys.argv[1:]
    t, total = time.time(), 0
    with mp.Pool(os.cpu_count(), start, (tokenizer,)) as pool, open(out, "wb") as f:
        for b in pool.imap(encode, parts):
            f.write(b)
            total += len(b) // 2
    print(f"{out}: {total} tokens in {time.time() - t:.1f} s", flush=True)


if __name__ == "__main__":
    main()
