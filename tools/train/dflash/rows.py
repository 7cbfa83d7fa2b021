"""Training rows: tokens int32 [N, L] and written uint8 [N, L] (0: prompt or padding, 1: by the target greedily, 2: by the target, sampled)."""
import torch
from safetensors.torch import load_file, save_file


def save(path, tokens, written):
    save_file({"tokens": tokens.to(torch.int32).contiguous(), "written": written.to(torch.uint8).contiguous()}, path)


def load(paths):
    parts = [load_file(p) for p in paths]
    lengths = {p["tokens"].shape[1] for p in parts}
    if len(lengths) != 1:
        raise SystemExit(f"row files differ in length: {sorted(lengths)}")
    return torch.cat([p["tokens"] for p in parts]), torch.cat([p["written"] for p in parts])


def pack(answers, length, separator, pad, apart=False):
    """answers: (prompt ids, answer ids, 1 greedy or 2 sampled). Fills rows one after the other (`apart`: one each); an answer longer than a row is cut"""
    rows, marks, row, mark = [], [], [], []
    for prompt, answer, how in answers:
        ids = (list(prompt) + list(answer) + ([separator] if separator is not None else []))[:length]
        m = ([0] * len(prompt) + [how] * len(answer) + ([0] if separator is not None else []))[:length]
        if row and (apart or len(row) + len(ids) > length):
            rows.append(row + [pad] * (length - len(row)))
            marks.append(mark + [0] * (length - len(mark)))
            row, mark = [], []
        row, mark = row + ids, mark + m
    if row:
        rows.append(row + [pad] * (length - len(row)))
        marks.append(mark + [0] * (length - len(mark)))
    return torch.tensor(rows, dtype=torch.int32), torch.tensor(marks, dtype=torch.uint8)
