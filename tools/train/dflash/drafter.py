"""The DFlash drafter, version 2 (grouped dynamic conv + candidate selector) and version 1 (neither), for training and for drafting.

Input: the target's residual stream after a few tapped blocks, for committed tokens 0..n-1, and the anchor (token n, not evaluated yet).
One pass over a block of B rows [anchor, MASK x (B-1)] at positions n..n+B-1 gives B-1 drafted tokens; row i predicts the token at its own
position. Context enters only as keys and values made from g(p) = norm(fc(taps of p)). The embedding and the head are the target's.

Parameter names are those of the public checkpoints (`DFlash2DraftModel`), at the top level.
"""
import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from .qwen35 import MLP, Norm, linear, rope, rope_table


@dataclass
class Config:
    vocab: int
    hidden: int
    taps: tuple                 # 0-based block ids; the output of that block
    target_layers: int
    mask_id: int
    tap_hidden: int = 0         # width of a tap; 0: hidden
    layers: int = 3
    ffn: int = 1536
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    theta: float = 1e7
    eps: float = 1e-6
    block: int = 16
    window: int = 512           # sliding window of every layer; 0: none
    version: int = 2
    conv_taps: int = 2
    conv_group: int = 64
    rank: int = 64
    top_k: int = 16
    max_pos: int = 4096
    embed_scale: float = 1.0
    logit_scale: float = 1.0

    def to_hf(self):
        more = {}
        if self.version == 2:
            more = {"projector_type": "dflash2", "conv_kernel_size": self.conv_taps, "conv_group_size": self.conv_group, "selector_rank": self.rank, "selector_top_k": self.top_k}
        if self.embed_scale != 1.0 or self.logit_scale != 1.0:
            more |= {"input_embedding_scale": self.embed_scale, "output_multiplier": self.logit_scale}
        sliding = self.window > 0
        out = {"architectures": ["DFlash2DraftModel" if self.version == 2 else "DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": self.vocab,
               "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
               "head_dim": self.head_dim, "hidden_act": "silu", "rms_norm_eps": self.eps, "max_position_embeddings": self.max_pos, "attention_bias": False, "tie_word_embeddings": False,
               "is_causal": False, "rope_theta": self.theta, "rope_parameters": {"rope_type": "default", "rope_theta": self.theta}, "use_sliding_window": sliding,
               "sliding_window": self.window if sliding else None, "layer_types": ["sliding_attention" if sliding else "full_attention"] * self.layers,
               "num_target_layers": self.target_layers, "block_size": self.block,
               "dflash_config": {"target_layer_ids": list(self.taps), "mask_token_id": self.mask_id, "block_size": self.block, **more}}
        if self.tap_hidden and self.tap_hidden != self.hidden:
            out["target_hidden_size"] = self.tap_hidden
        return out

    @staticmethod
    def from_hf(c):
        d = c["dflash_config"]
        v2 = "selector_top_k" in d
        return Config(vocab=c["vocab_size"], hidden=c["hidden_size"], taps=tuple(d["target_layer_ids"]), target_layers=c["num_target_layers"], mask_id=d["mask_token_id"],
                      tap_hidden=c.get("target_hidden_size", 0), layers=c["num_hidden_layers"], ffn=c["intermediate_size"], heads=c["num_attention_heads"],
                      kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], theta=c["rope_theta"], eps=c["rms_norm_eps"], block=d.get("block_size", 16),
                      window=c.get("sliding_window") or 0, version=2 if v2 else 1, conv_taps=d.get("conv_kernel_size", 2), conv_group=d.get("conv_group_size", 64),
                      rank=d.get("selector_rank", 64), top_k=d.get("selector_top_k", 16), max_pos=c["max_position_embeddings"],
                      embed_scale=d.get("input_embedding_scale", 1.0), logit_scale=d.get("output_multiplier", 1.0))


def default_taps(target_layers, n=4):
    """n block ids spread evenly from 1 to target_layers - 3"""
    last = max(1, target_layers - 3)
    return tuple(sorted({round(1 + i * (last - 1) / max(1, n - 1)) for i in range(n)}))


class GroupedConv(nn.Module):
    """causal depthwise convolution over the rows of one block; the kernel is a learnt base plus a projection of the row, per group of channels"""

    def __init__(self, c):
        super().__init__()
        self.taps, self.group, self.groups = c.conv_taps, c.conv_group, c.hidden // c.conv_group
        base = torch.zeros(2, c.conv_taps, c.hidden)                          # side (before, after the sublayer), tap, channel
        base[:, 0] = 1.0                                                      # starts as the identity
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = linear(c.hidden, 2 * c.conv_taps * self.groups)

    def side(self, x, delta, side):
        """x [N, B, H], delta [N, B, taps, groups]"""
        B = x.shape[1]
        k = self.base_kernel[side].to(x.dtype) + delta.repeat_interleave(self.group, -1)
        y = k[:, :, 0] * x
        for t in range(1, self.taps):
            y = y + k[:, :, t] * F.pad(x, (0, 0, t, 0))[:, :B]
        return y

    def prepare(self, x):
        d = self.kernel_projection(x).view(*x.shape[:2], 2, self.taps, self.groups)
        return self.side(x, d[:, :, 0], 0), d[:, :, 1]

    def finish(self, y, delta):
        return self.side(y, delta, 1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj, self.o_proj = linear(c.hidden, c.heads * c.head_dim), linear(c.heads * c.head_dim, c.hidden)
        self.k_proj, self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim), linear(c.hidden, c.kv_heads * c.head_dim)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)

    def keys(self, x, table):
        c, (B, T, _) = self.c, x.shape
        k = self.k_norm(self.k_proj(x).view(B, T, c.kv_heads, c.head_dim)).transpose(1, 2)
        return rope(k, *table), self.v_proj(x).view(B, T, c.kv_heads, c.head_dim).transpose(1, 2)

    def forward(self, x, context, row_table, context_table, mask):
        """x [B, Q, H] block rows, context [B, S, H], mask [B, 1, Q, S + Q] bool"""
        c, (B, Q, _) = self.c, x.shape
        q = rope(self.q_norm(self.q_proj(x).view(B, Q, c.heads, c.head_dim)).transpose(1, 2), *row_table)
        k, v = self.keys(x, row_table)
        kc, vc = self.keys(context, context_table)
        r = c.heads // c.kv_heads
        k, v = (torch.cat(t, 2).repeat_interleave(r, 1) for t in ((kc, k), (vc, v)))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(o.transpose(1, 2).reshape(B, Q, -1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.block = c.block
        self.self_attn, self.mlp = Attention(c), MLP(c.hidden, c.ffn)
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        if c.version == 2:
            self.attention_conv, self.mlp_conv = GroupedConv(c), GroupedConv(c)

    def forward(self, h, context, row_table, context_table, mask):
        shape = h.shape
        rows = lambda t: t.reshape(-1, self.block, shape[-1])
        x = self.input_layernorm(h)
        if hasattr(self, "attention_conv"):
            x, d = self.attention_conv.prepare(rows(x))
            y = self.self_attn(x.reshape(shape), context, row_table, context_table, mask)
            h = h + self.attention_conv.finish(rows(y), d).reshape(shape)
            x, d = self.mlp_conv.prepare(rows(self.post_attention_layernorm(h)))
            return h + self.mlp_conv.finish(self.mlp(x), d).reshape(shape)
        h = h + self.self_attn(x, context, row_table, context_table, mask)
        return h + self.mlp(self.post_attention_layernorm(h))


class Selector(nn.Module):
    """score of candidate j after token u: unary logit + sum_r A[u, r] * gate[r] * B[j, r]"""

    def __init__(self, c):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab, c.rank) * 0.1)
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab, c.rank))              # zero: starts as an exact no-op
        self.hidden_projection = linear(c.hidden, c.rank)

    def scores(self, unary, candidates, previous, e):
        """unary, candidates [..., K], previous [...], e [..., H] -> [..., K] float"""
        gate = self.hidden_projection(e).float()
        a = F.embedding(previous, self.predecessor_codebook).float()
        b = F.embedding(candidates, self.successor_codebook).float()
        return unary.float() + ((a * gate)[..., None, :] * b).sum(-1)


class Drafter(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = linear(len(c.taps) * (c.tap_hidden or c.hidden), c.hidden)
        self.hidden_norm, self.norm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        if c.version == 2:
            self.candidate_selector = Selector(c)

    def initialise(self):
        for n, p in self.named_parameters():
            if "kernel_projection" in n:
                nn.init.zeros_(p)
            elif n.endswith(("proj.weight", "fc.weight", "hidden_projection.weight")):
                out = n.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, 0.0, 0.02 / (math.sqrt(2 * self.c.layers) if out else 1))
        return self

    def use_block(self, rows):
        """draft with blocks of fewer rows than trained (anchor included)"""
        self.c = replace(self.c, block=rows)
        for layer in self.layers:
            layer.block = rows
        return self

    def context(self, taps):
        return self.hidden_norm(self.fc(torch.cat(taps, -1)))

    def visible(self, anchors, S):
        """mask [B, 1, Q, S + Q] and row positions [B, Q]: a row sees context before its anchor (strictly: the anchor's own feature does not
        exist yet when drafting) and inside the window, and all rows of its own block"""
        c, (B, N), dev = self.c, anchors.shape, anchors.device
        Q = N * c.block
        rows = (anchors[..., None] + torch.arange(c.block, device=dev)).view(B, Q)
        p = torch.arange(S, device=dev)
        context = p < anchors.repeat_interleave(c.block, 1)[..., None]
        if c.window:
            context = context & (rows[..., None] - p < c.window)
        j = torch.arange(Q, device=dev) // c.block
        own = (j[:, None] == j[None]).expand(B, Q, Q)
        return torch.cat((context, own), -1)[:, None], rows

    def forward(self, anchor_emb, mask_emb, context, anchors):
        """anchor_emb [B, N, H], mask_emb [H], context [B, S, H], anchors [B, N] -> final-normed hidden [B, N, block, H]"""
        c, (B, N, H), S = self.c, anchor_emb.shape, context.shape[1]
        x = mask_emb.to(context.dtype).expand(B, N, c.block, H).clone()
        x[:, :, 0] = anchor_emb.to(context.dtype)
        x = x.view(B, N * c.block, H) * c.embed_scale
        mask, rows = self.visible(anchors, S)
        row_table = [t[:, None] for t in rope_table(rows, c.head_dim, c.theta)]
        context_table = rope_table(torch.arange(S, device=context.device), c.head_dim, c.theta)
        for layer in self.layers:
            x = layer(x, context, row_table, context_table, mask)
        return self.norm(x).view(B, N, c.block, H)

    @torch.no_grad()
    def propose(self, e, logits, anchor_tokens):
        """e [N, R, H], logits [N, R, V], anchor_tokens [N] -> (walk, argmax [N, R], candidates [N, R, K], scores along the walk or None)"""
        unary, candidates = logits.topk(self.c.top_k, -1)
        argmax = candidates[..., 0]
        if self.c.version == 1:
            return argmax, argmax, candidates, None
        previous, walk, scores = anchor_tokens, [], []
        for i in range(e.shape[1]):
            s = self.candidate_selector.scores(unary[:, i], candidates[:, i], previous, e[:, i])
            previous = candidates[:, i].gather(-1, s.argmax(-1, keepdim=True))[:, 0]
            walk.append(previous)
            scores.append(s)
        return torch.stack(walk, 1), argmax, candidates, torch.stack(scores, 1)
