"""The draft -> verify -> accept loop, replayed on a greedy text.

Greedy verification is lossless: the text does not depend on the drafter. So the target writes the text once, its taps for all positions
come from one pass (they are causal), and every round drafts from the taps of committed tokens only, exactly as an engine does.
"""
import torch
import torch.nn.functional as F


@torch.no_grad()
def context_of(target, model, ids):
    _, taps = target.hidden(torch.tensor([ids], device=target.embedding.device), model.c.taps)
    return model.context([t.float() for t in taps])


@torch.no_grad()
def draft(target, model, context, ids, n, rows):
    """draft after n committed tokens with anchor ids[n]; `rows` drafted tokens at most. Returns (walk, argmax, candidates, scores, hidden, logits)"""
    dev = context.device
    e = model(F.embedding(torch.tensor([[ids[n]]], device=dev), target.embedding).float(), target.embedding[model.c.mask_id].float(), context[:, :n],
              torch.tensor([[n]], device=dev))[0, :, 1:rows + 1]
    logits = target.logits(e).float()
    walk, argmax, candidates, scores = model.propose(e, logits, torch.tensor([ids[n]], device=dev))
    return walk[0].tolist(), argmax[0].tolist(), candidates[0].tolist(), scores, e[0], logits[0]


def accepted(proposal, ids, n, end):
    a = 0
    while a < len(proposal) and n + 1 + a < end and proposal[a] == ids[n + 1 + a]:
        a += 1
    return a


def oracle(candidates, ids, n, end):
    a = 0
    while a < len(candidates) and n + 1 + a < end and ids[n + 1 + a] in candidates[a]:
        a += 1
    return a


def replay(target, model, ids, prompt_len, kinds=("argmax", "selector", "oracle"), context=None):
    """rounds over ids[prompt_len:]; per kind a list of (committed, draft, accepted)"""
    rows = model.c.block - 1
    context = context_of(target, model, ids) if context is None else context
    out = {}
    for kind in kinds:
        n, rounds = prompt_len, []
        while n < len(ids) - 1:
            walk, argmax, candidates, _, _, _ = draft(target, model, context, ids, n, rows)
            a = oracle(candidates, ids, n, len(ids)) if kind == "oracle" else accepted(walk if kind == "selector" else argmax, ids, n, len(ids))
            rounds.append((n, walk if kind == "selector" else argmax, a))
            n += a + 1
        out[kind] = rounds
    return out


def tokens_per_step(rounds):
    return round(sum(r[2] + 1 for r in rounds) / max(1, len(rounds)), 3)
