"""Checks of the training code that need no model and no GPU.

usage: selftest.py        prints one line a check; exit code 1 when one fails
"""
import os
import random
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "demo")]
from dflash import drafter, grid, qwen35, rows        # noqa: E402


def tiny_drafter(version=2, **more):
    torch.manual_seed(3)
    c = drafter.Config(vocab=96, hidden=32, taps=(0, 2), target_layers=6, mask_id=95, layers=2, ffn=48, heads=2, kv_heads=1, head_dim=16, block=4, window=8, version=version,
                       conv_group=8, rank=4, top_k=5, **more)
    return drafter.Drafter(c).initialise().double().eval()


def inputs(anchors, S=20, H=32):
    g = torch.Generator().manual_seed(5)
    emb, mask, context = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((1, S, H), (H,), (1, S, H)))
    a = torch.tensor([anchors])
    return emb[:, anchors], mask, context, a


def delta_rule_in_chunks():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 128, 2, 16), torch.randn(2, 128, 2, 16), torch.randn(2, 128, 4, 16)
    g, beta = -torch.rand(2, 128, 4), torch.rand(2, 128, 4)
    M, N, *rest = qwen35.chunk_prepare(q, k, v, g, beta)
    o = qwen35.chunk_output(qwen35.ChunkScan.apply(M, N), *rest, 2)
    return (o - qwen35.delta_rule(q, k, v, g, beta)[0]).abs().max().item() < 1e-5


def decoding_equals_the_pass():
    torch.manual_seed(1)
    c = qwen35.Config(vocab=64, hidden=32, layers=4, ffn=48, heads=2, kv_heads=1, head_dim=16, rot=4, key_heads=2, value_heads=4, key_dim=8, value_dim=8)
    m = qwen35.Qwen35(c).initialise().eval()
    ids = torch.randint(0, 64, (1, 70))
    with torch.no_grad():
        h, taps = m.hidden(ids, (1, 2))
        cache = m.new_cache(1, 70, "cpu", torch.float32)
        a, _ = m.extend(ids[:, :30], torch.arange(30), cache)
        b, t = m.extend(ids[:, 30:], torch.arange(30, 70), cache, (1, 2))
    return (torch.cat((a, b), 1) - h).abs().max().item() < 1e-4 and (t[1] - taps[1][:, 30:]).abs().max().item() < 1e-4


def conv_starts_as_identity():
    v2, v1 = tiny_drafter(2), tiny_drafter(1)
    v1.load_state_dict({k: v for k, v in v2.state_dict().items() if k in v1.state_dict()})
    x = inputs([6, 11])
    return torch.equal(v2(*x), v1(*x))


def conv_vectors():
    c = drafter.Config(vocab=8, hidden=4, taps=(0,), target_layers=2, mask_id=7, conv_group=2)
    conv = drafter.GroupedConv(c)
    conv.base_kernel.data[0] = torch.tensor([[1, .9, 1.1, 1], [.1, 0, -.1, .2]])
    x = torch.tensor([[[1., 2, 3, 4], [5, 6, 7, 8], [-1, 0, 1, 2]]])
    d = torch.tensor([[[[.5, -.5], [9, 9]], [[0, .25], [.5, -1]], [[.1, 0], [.2, .3]]]])
    want = torch.tensor([[[1.5, 2.8, 1.8, 2.0], [5.6, 6.4, 6.15, 6.8], [0.4, 1.2, 2.5, 6.0]]])
    return torch.allclose(conv.side(x, d, 0), want, atol=1e-5)


def selector_vectors():
    s = drafter.Selector(drafter.Config(vocab=24, hidden=2, taps=(0,), target_layers=2, mask_id=0, rank=2, top_k=3, conv_group=1))
    A, B = s.predecessor_codebook.data.zero_(), s.successor_codebook.data.zero_()
    A[7], A[12] = torch.tensor([1, .5]), torch.tensor([1., 1])
    for i, v in {11: (.5, .5), 12: (1, 0), 13: (0, 1), 21: (1, 1), 22: (2, -1), 23: (0, .5)}.items():
        B[i] = torch.tensor(v, dtype=torch.float)
    s.hidden_projection.weight.data = torch.eye(2)
    one = s.scores(torch.tensor([2, 1.8, 1]), torch.tensor([11, 12, 13]), torch.tensor(7), torch.tensor([1., 1]))
    two = s.scores(torch.tensor([3, 2.9, 2]), torch.tensor([21, 22, 23]), torch.tensor(12), torch.tensor([.5, 1]))
    return torch.allclose(one, torch.tensor([2.75, 2.8, 1.5])) and torch.allclose(two, torch.tensor([4.5, 2.9, 2.5]))


def zero_selector_is_argmax():
    m = tiny_drafter()
    e = torch.randn(3, 3, 32).double()
    walk, argmax, _, _ = m.propose(e, torch.randn(3, 3, 96), torch.tensor([1, 2, 3]))
    return torch.equal(walk, argmax)


def anchors_do_not_see_each_other():
    m = tiny_drafter()
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.3)
    emb, mask, context, a = inputs([6, 11])
    both = m(emb, mask, context, a)
    alone = m(emb[:, 1:], mask, context[:, :11], a[:, 1:])                   # and nothing at or after the anchor is read
    return (both[:, 1] - alone[:, 0]).abs().max().item() < 1e-9


def window_is_exact():
    m = tiny_drafter()
    mask, rows = m.visible(torch.tensor([[12]]), 16)
    seen = [torch.nonzero(mask[0, 0, i, :16])[:, 0].tolist() for i in (0, 3)]
    return seen == [list(range(5, 12)), list(range(8, 12))] and rows.tolist() == [[12, 13, 14, 15]]


def rounding_is_stable():
    w = torch.randn(8, 64, generator=torch.Generator().manual_seed(4)) * 0.05
    once = grid.rounded(w)
    error = ((once - w).pow(2).mean().sqrt() / w.std()).item()
    return 0.05 < error < 0.1 and torch.allclose(grid.rounded(once), once, atol=1e-6)


def rows_apart():
    answers = [([1, 2], [3], 1), ([4], [5, 6], 2)]
    together, _ = rows.pack(answers, 10, 0, 9)
    apart, marks = rows.pack(answers, 10, 0, 9, apart=True)
    return len(together) == 1 and apart[:, :5].tolist() == [[1, 2, 3, 0, 9], [4, 5, 6, 0, 9]] and marks[1, :4].tolist() == [0, 2, 2, 0]


def template_equals_conversations():
    import conversations as cv
    import prompts
    rng = random.Random(2)
    for _ in range(200):
        q, calls, final, thought = cv.tool_case(rng)
        for style in ("xml", "json"):
            tools = [cv.TOOLS[n] for n in {n for n, _, _ in calls}]
            made = cv.system_with_tools(tools, style) + cv.turn("user", q) + cv.answer("\n".join(cv.call(n, a, style) for n, a, _ in calls)) + cv.tool_results([r for _, _, r in calls]) + cv.answer(final, thought)
            messages = [{"role": "user", "content": q}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a, _ in calls]},
                        *({"role": "tool", "content": r} for _, _, r in calls), {"role": "assistant", "content": final, "reasoning_content": thought}]
            if prompts.render_messages(messages, {"tools": tools, "tool_format": style}, False) != made:
                return False
    return True


CHECKS = [delta_rule_in_chunks, decoding_equals_the_pass, conv_starts_as_identity, conv_vectors, selector_vectors, zero_selector_is_argmax, anchors_do_not_see_each_other,
          window_is_exact, rounding_is_stable, rows_apart, template_equals_conversations]


def main():
    failed = 0
    for check in CHECKS:
        good = check()
        failed += not good
        print(f"{'ok    ' if good else 'FAILED'} {check.__name__.replace('_', ' ')}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
