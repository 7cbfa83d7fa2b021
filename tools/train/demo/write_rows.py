"""The demo target writes the drafter's training rows: it continues corpus prefixes and answers chat prompts, batched on the GPU.

usage: [torchrun --nproc-per-node N] write_rows.py TARGET_DIR TOKENS OUT.safetensors --minutes 1 [--batch 2048] [--len 1024]
A row holds several pieces one after the other: a prefix (the start of a document, a chat up to an assistant turn, or any place in the
corpus), then the target's own text, greedy or sampled, until it ends the document; then the next prefix follows.
Output, the format of ../capture.py: tokens int32 [N, len], written uint8 [N, len] (1: by the target greedily, 2: sampled, 0: prefix).
With several processes each writes OUT.RANK.safetensors.
"""
import argparse
import os
import sys
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from dflash.optim import start_processes        # noqa: E402
from dflash.qwen35 import Config, Qwen35         # noqa: E402

EOT, IM_START, IM_END, MASK = 16376, 16377, 16378, 16383
LONGEST = 320                                     # tokens of the longest prefix


def load(path, device):
    model = Qwen35(Config.from_hf(path))
    model.load_state_dict({k: v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()})
    model = model.to(device).bfloat16().eval()
    for layer in model.model.layers:
        if not layer.full:
            layer.linear_attn.A_log.data = layer.linear_attn.A_log.data.float()
            layer.linear_attn.dt_bias.data = layer.linear_attn.dt_bias.data.float()
    return model


def prefixes(data, rng, n, chat_share):
    """n prefixes as an int32 matrix [n, LONGEST] and their lengths"""
    ends = np.flatnonzero(data[:-LONGEST - 2] == EOT)
    starts = ends + 1
    chats = starts[data[starts] == IM_START]
    others = starts[data[starts] != IM_START]
    marks = np.flatnonzero(data == IM_START)
    assistant = assistant_ids(data, marks)
    out, lengths = np.zeros((n, LONGEST), np.int32), np.zeros(n, np.int64)
    for i in range(n):
        u = rng.random()
        if u < chat_share:
            s = int(rng.choice(chats))
            here = marks[np.searchsorted(marks, s):np.searchsorted(marks, s + LONGEST - 4)]
            turns = [m for m in here if tuple(data[m + 1:m + 1 + len(assistant)]) == assistant and not (data[s:m] == EOT).any()]
            if not turns:
                length = 24
            else:
                length = int(rng.choice(turns)) + 1 + len(assistant) - s
        elif u < chat_share + 0.75 * (1 - chat_share):
            s, length = int(rng.choice(others)), int(rng.integers(16, 160))
        else:
            s, length = int(rng.integers(0, len(data) - LONGEST)), int(rng.integers(24, 192))
        out[i], lengths[i] = data[s:s + LONGEST], min(length, LONGEST)
    return out, lengths


def assistant_ids(data, marks):
    """the tokens of "assistant" + newline: the most frequent continuation of <|im_start|> that is not the first of its document"""
    later = [m for m in marks[:4000] if m > 0 and data[m - 1] != EOT]
    seen = {}
    for m in later:
        key = tuple(data[m + 1:m + 3])
        seen[key] = seen.get(key, 0) + 1
    return max(seen, key=seen.get)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target")
    p.add_argument("tokens")
    p.add_argument("out")
    p.add_argument("--minutes", type=float, default=1)
    p.add_argument("--batch", type=int, default=2048)
    p.add_argument("--len", type=int, default=1024)
    p.add_argument("--chat-share", type=float, default=0.5)
    p.add_argument("--greedy-share", type=float, default=0.6)
    a = p.parse_args()
    rank, world, device = start_processes()
    torch.manual_seed(1 + rank)
    rng = np.random.default_rng(7 + rank)
    B, L = a.batch, a.len
    model = load(a.target, device)
    data = np.fromfile(a.tokens, np.uint16)
    bank_tokens, bank_len = prefixes(data, rng, 6 * B, a.chat_share)
    bank = torch.from_numpy(bank_tokens).to(device)
    bank_len = torch.from_numpy(bank_len).to(device)
    ids, pos = torch.zeros(B, dtype=torch.long, device=device), torch.zeros(1, dtype=torch.long, device=device)
    which, at, temperature = torch.zeros_like(ids), torch.zeros_like(ids), torch.zeros(B, device=device)
    with torch.no_grad():
        cache = model.new_cache(B, L, device, torch.bfloat16)

        def choose():
            """one step of all rows: evaluate, take the forced token or the target's, start the next piece after <|endoftext|>"""
            h, _ = model.extend(ids[:, None], pos, cache)
            lg = model.logits(h[:, 0]).float()
            lg[:, MASK] = -1e9
            noise = -torch.log(-torch.log(torch.rand_like(lg).clamp_(1e-9, 1 - 1e-7)))
            own = (lg + temperature[:, None] * noise).argmax(-1)
            at.add_(1)
            forced = at < bank_len[which]
            token = torch.where(forced, bank[which, at.clamp(max=LONGEST - 1)].long(), own)
            mark = torch.where(forced, 0, torch.where(temperature == 0, 1, 2))
            over = ~forced & (ids == EOT)                   # the piece has ended with the token just evaluated
            restart(over)
            token = torch.where(over, bank[which, at.clamp(max=LONGEST - 1)].long(), token)
            mark = torch.where(over, 0, mark)
            ids.copy_(token)
            pos.add_(1)
            return token, mark

        def restart(rows):
            fresh = torch.randint(0, bank.shape[0], (B,), device=device)
            warm = torch.where(torch.rand(B, device=device) < a.greedy_share, 0.0, 0.4 + 0.5 * torch.rand(B, device=device))
            which.copy_(torch.where(rows, fresh, which))
            at.copy_(torch.where(rows, 0, at))
            temperature.copy_(torch.where(rows, warm, temperature))

        step, graph = choose, None
        if device.type == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    choose()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            pos.zero_()
            with torch.cuda.graph(graph):
                result = choose()
        t0, rows, per = time.time(), [], None
        while per is None or time.time() - t0 + per < 60 * a.minutes:
            t1 = time.time()
            for st in cache:
                for t in st:
                    t.zero_()
            tokens, marks = torch.zeros(B, L, dtype=torch.int32, device=device), torch.zeros(B, L, dtype=torch.uint8, device=device)
            pos.zero_()
            restart(torch.ones(B, dtype=torch.bool, device=device))
            ids.copy_(bank[which, at].long())
            tokens[:, 0] = ids
            for i in range(1, L):
                if graph:
                    graph.replay()
                else:
                    result = step()
                tokens[:, i], marks[:, i] = result
            rows.append((tokens.cpu(), marks.cpu()))
            per = time.time() - t1
    tokens, marks = (torch.cat(x) for x in zip(*rows))
    path = a.out if world == 1 else a.out.replace(".safetensors", f".{rank}.safetensors")
    save_file({"tokens": tokens, "written": marks}, path)
    print(f"{path}: {len(tokens)} rows of {L}, {(marks > 0).float().mean():.2f} of the tokens written by the target, {time.time() - t0:.1f} s, {per / L * 1e3:.2f} ms a step", flush=True)


if __name__ == "__main__":
    main()
