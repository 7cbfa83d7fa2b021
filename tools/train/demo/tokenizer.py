"""Train the demo tokenizer: byte-level BPE, 16,384 entries, NFC, the Qwen3.5 pre-tokenizer expression.

usage: tokenizer.py corpus-0.txt [corpus-1.txt ...] --out tokenizer.json [--sample-mb 48]
Ids: 0-255 bytes in the order of the GPT-2 alphabet, then merges, then the eight special tokens below as the last ids.
"""
import argparse
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 16384
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|MASK|>"]
TEXTUAL = {"<think>", "</think>", "<tool_call>", "</tool_call>"}          # user-defined, not control
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's printable stand-ins for bytes: the printable bytes themselves first, then U+0100 upwards"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(rest))]


def pipeline(tok):
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tok


def sample(paths, limit):
    """documents spread evenly over the files, about `limit` bytes in all"""
    for path in paths:
        with open(path, encoding="utf8") as f:
            docs = f.read().split("<|endoftext|>")
        total = sum(map(len, docs))
        step = max(1, round(total * len(paths) / limit))
        for d in docs[::step]:
            for s in SPECIALS:
                d = d.replace(s, "\n")
            yield d


def train(paths, limit):
    tok = pipeline(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, min_frequency=2, initial_alphabet=byte_alphabet(), show_progress=False, max_token_length=24)
    tok.train_from_iterator(sample(paths, limit), trainer)
    return json.loads(tok.to_str())["model"]["merges"]


def assemble(merges):
    """the same merges with ids in the order that the file format promises"""
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    kept = []
    for a, b in (m if isinstance(m, list) else m.split(" ") for m in merges):
        if len(vocab) == VOCAB - len(SPECIALS):
            break
        vocab.setdefault(a + b, len(vocab))
        kept.append((a, b))
    if len(vocab) != VOCAB - len(SPECIALS):
        raise SystemExit(f"only {len(vocab)} entries; the sample is too small for {VOCAB}")
    tok = pipeline(Tokenizer(models.BPE(vocab=vocab, merges=kept)))
    for s in SPECIALS:                                              # one by one: ids follow the list
        token = AddedToken(s, normalized=False, special=s not in TEXTUAL)
        (tok.add_tokens if s in TEXTUAL else tok.add_special_tokens)([token])
    return tok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("corpus", nargs="+")
    p.add_argument("--out", required=True)
    p.add_argument("--sample-mb", type=float, default=48)
    a = p.parse_args()
    tok = assemble(train(a.corpus, a.sample_mb * 1e6))
    assert tok.token_to_id("<|MASK|>") == VOCAB - 1 and tok.get_vocab_size() == VOCAB
    text = "def f(x):\n    return x  # caf\u00e9 \U0001F680 12345\n<|im_start|>user\nHi<|im_end|>\n"
    assert tok.decode(tok.encode(text).ids, skip_special_tokens=False) == text
    tok.save(a.out)
    print(f"{a.out}: {tok.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
