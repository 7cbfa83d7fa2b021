"""Qwen3.5 text model (dense), trainable and fast on one GPU without custom kernels. Parameter names are those of Hugging Face checkpoints.

Order per block: norm -> mixer -> add, norm -> SwiGLU -> add. Every fourth mixer is full attention with an output gate, q/k norms and
partial rotary position; the others are gated DeltaNet (causal conv, gated delta rule with one state [K, V] per value head, gated norm).
Norms are zero-centred (1 + w), except the DeltaNet output norm (w). Value heads are grouped by key head. One MTP block is optional.

The delta rule runs in chunks of 64 tokens (WY form): inside a chunk everything is a batched 64x64 product, between chunks the states follow
S' = M S + N. `delta_rule` is the token-by-token definition; decoding uses it.
"""
import json
import math
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CHUNK = 64


@dataclass
class Config:
    vocab: int = 16384
    hidden: int = 512
    layers: int = 12
    ffn: int = 1280
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rot: int = 32
    theta: float = 1e7
    key_heads: int = 4
    value_heads: int = 8
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    full_every: int = 4
    eps: float = 1e-6
    mtp: bool = True
    max_pos: int = 4096

    def full(self, i):
        return (i + 1) % self.full_every == 0

    @staticmethod
    def from_hf(path):
        with open(os.path.join(path, "config.json"), encoding="utf8") as f:
            c = json.load(f)
        c = c.get("text_config", c)
        rope = c.get("rope_parameters") or {}
        factor = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25))
        return Config(vocab=c["vocab_size"], hidden=c["hidden_size"], layers=c["num_hidden_layers"], ffn=c["intermediate_size"], heads=c["num_attention_heads"],
                      kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], rot=int(c["head_dim"] * factor), theta=rope.get("rope_theta", c.get("rope_theta", 1e7)),
                      key_heads=c["linear_num_key_heads"], value_heads=c["linear_num_value_heads"], key_dim=c["linear_key_head_dim"], value_dim=c["linear_value_head_dim"],
                      conv=c["linear_conv_kernel_dim"], full_every=c.get("full_attention_interval", 4), eps=c["rms_norm_eps"], mtp=bool(c.get("mtp_num_hidden_layers", 0)),
                      max_pos=c["max_position_embeddings"])

    def to_hf(self, eos, pad):
        rope = {"rope_type": "default", "rope_theta": self.theta, "partial_rotary_factor": self.rot / self.head_dim, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
        return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16", "vocab_size": self.vocab, "hidden_size": self.hidden,
                "intermediate_size": self.ffn, "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
                "hidden_act": "silu", "rms_norm_eps": self.eps, "max_position_embeddings": self.max_pos, "tie_word_embeddings": True, "attention_bias": False, "attn_output_gate": True,
                "full_attention_interval": self.full_every, "layer_types": ["full_attention" if self.full(i) else "linear_attention" for i in range(self.layers)],
                "linear_conv_kernel_dim": self.conv, "linear_key_head_dim": self.key_dim, "linear_value_head_dim": self.value_dim, "linear_num_key_heads": self.key_heads,
                "linear_num_value_heads": self.value_heads, "partial_rotary_factor": self.rot / self.head_dim, "rope_parameters": rope, "mtp_num_hidden_layers": int(self.mtp),
                "eos_token_id": eos, "bos_token_id": pad, "pad_token_id": pad}


# ---------------------------------------------------------------- small parts

def rms(x, w, eps):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


class CentredNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        return rms(x, 1.0 + self.weight.float(), self.eps)


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return rms(x, self.weight, self.eps)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


def rope_table(pos, rot, theta):
    """cos, sin [..., rot] for integer positions of any shape"""
    f = theta ** (-torch.arange(0, rot, 2, device=pos.device, dtype=torch.float32) / rot)
    a = pos.float()[..., None] * f
    a = torch.cat((a, a), -1)
    return a.cos(), a.sin()


def rope(x, cos, sin):
    """x [B, H, T, D]: rotate the first `rot` dims, halves paired (NeoX)"""
    r = cos.shape[-1]
    y, rest = x[..., :r].float(), x[..., r:]
    y = (y * cos + torch.cat((-y[..., r // 2:], y[..., :r // 2]), -1) * sin).to(x.dtype)
    return torch.cat((y, rest), -1) if rest.shape[-1] else y


class MLP(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, ffn), linear(hidden, ffn), linear(ffn, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


# ---------------------------------------------------------------- gated delta rule

def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def delta_rule(q, k, v, g, beta, state=None):
    """the recurrence in float32. q, k [B,T,Hk,K]; v [B,T,Hv,V]; g, beta [B,T,Hv]; state [B,Hv,K,V]. Returns outputs [B,T,Hv,V] and state"""
    r = v.shape[2] // q.shape[2]
    q, k = (unit(t.float()).repeat_interleave(r, 2) for t in (q, k))
    q = q * q.shape[-1] ** -0.5
    v, g, beta = v.float(), g.float(), beta.float()
    B, T, H, K = q.shape
    S = torch.zeros(B, H, K, v.shape[-1], device=q.device) if state is None else state.float()
    out = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None, None]
        d = (v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])) * beta[:, t][..., None]
        S = S + k[:, t][..., None] * d[..., None, :]
        out.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(out, 1), S


class TriangularInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower A [..., 64, 64]: Neumann product on the 16x16 diagonal blocks, then two merges"""

    @staticmethod
    def forward(ctx, A):
        n = A.shape[:-2]
        B = A.reshape(*n, 4, 16, 4, 16)
        D = torch.diagonal(B, dim1=-4, dim2=-2).permute(*range(len(n)), -1, -3, -2)
        P = D @ D
        X = torch.eye(16, device=A.device) - D
        for _ in range(3):
            X = X + X @ P
            P = P @ P
        z = torch.zeros_like(X[..., 0, :, :])
        half = []
        for a in (0, 2):
            low = -(X[..., a + 1, :, :] @ (B[..., a + 1, :, a, :] @ X[..., a, :, :]))
            half.append(torch.cat((torch.cat((X[..., a, :, :], z), -1), torch.cat((low, X[..., a + 1, :, :]), -1)), -2))
        low = -(half[1] @ (A[..., 32:, :32] @ half[0]))
        T = torch.cat((torch.cat((half[0], torch.zeros_like(low)), -1), torch.cat((low, half[1]), -1)), -2)
        ctx.save_for_backward(T)
        return T

    @staticmethod
    def backward(ctx, dT):
        T, = ctx.saved_tensors
        return -(T.mT @ dT @ T.mT)


class ChunkScan(torch.autograd.Function):
    """S_0 = 0, S_{c+1} = M_c S_c + N_c over dim 0; returns the state before every chunk, float32"""

    @staticmethod
    def forward(ctx, M, N):
        S = torch.empty_like(N)
        S[0].zero_()
        for c in range(M.shape[0] - 1):
            torch.baddbmm(N[c], M[c], S[c], out=S[c + 1])
        ctx.save_for_backward(M, S)
        return S

    @staticmethod
    def backward(ctx, dS):
        M, S = ctx.saved_tensors
        G, Mt, n = torch.zeros_like(S), M.mT, M.shape[0]
        for c in range(n - 2, -1, -1):                       # G[c] = d loss / d S_{c+1}
            if c == n - 2:
                G[c].copy_(dS[c + 1])
            else:
                torch.baddbmm(dS[c + 1], Mt[c + 1], G[c + 1], out=G[c])
        return G @ S.mT, G


def chunk_prepare(q, k, v, g, beta):
    """(M, N) for the scan and what chunk_output needs; leading dims [chunks, B * Hv]"""
    Bt, T, Hk, K = q.shape
    Hv, dt = v.shape[2], v.dtype
    r, n = Hv // Hk, T // CHUNK
    split = lambda x, H: x.reshape(Bt, n, CHUNK, H, -1).permute(1, 0, 3, 2, 4)          # [n, B, H, CHUNK, d]
    up = lambda x: x.repeat_interleave(r, 2)
    q, k, v = split((unit(q.float()) * K ** -0.5).to(dt), Hk), split(unit(k.float()).to(dt), Hk), split(v, Hv)
    b = split(g, Hv)[..., 0].float().cumsum(-1)
    be = split(beta, Hv)[..., 0].float()
    i = torch.arange(CHUNK, device=q.device)
    L = torch.exp((b[..., :, None] - b[..., None, :]).masked_fill(i[:, None] < i[None], float("-inf")))
    A = (up(k @ k.mT).float() * L * be[..., :, None]).masked_fill(i[:, None] <= i[None], 0.0)
    att = (up(q @ k.mT).float() * L).to(dt)
    inv = TriangularInverse.apply(A.flatten(1, 2)).to(dt).view(A.shape)
    kv = up(k).float()
    W = inv @ (kv * (be * b.exp())[..., None]).to(dt)
    U = inv @ (v.float() * be[..., None]).to(dt)
    Kd = (kv * (b[..., -1:] - b).exp()[..., None]).to(dt)
    M = b[..., -1].exp()[..., None, None] * torch.eye(K, device=q.device) - (Kd.mT @ W).float()
    N = (Kd.mT @ U).float()
    qd = (up(q).float() * b.exp()[..., None]).to(dt)
    return tuple(x.flatten(1, 2) for x in (M, N, qd, W, U, att))


def chunk_output(S, qd, W, U, att, Bt):
    S = S.to(qd.dtype)
    o = qd @ S + att @ (U - W @ S)
    n, BH, C, V = o.shape
    return o.view(n, Bt, BH // Bt, C, V).permute(1, 0, 3, 2, 4).reshape(Bt, n * C, BH // Bt, V)


# ---------------------------------------------------------------- mixers

class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, kd, vd = c, c.key_heads * c.key_dim, c.value_heads * c.value_dim
        self.in_proj_qkv, self.in_proj_z = linear(c.hidden, 2 * kd + vd), linear(c.hidden, vd)
        self.in_proj_b, self.in_proj_a = linear(c.hidden, c.value_heads), linear(c.hidden, c.value_heads)
        self.conv1d = nn.Conv1d(2 * kd + vd, 2 * kd + vd, c.conv, groups=2 * kd + vd, bias=False)
        self.dt_bias, self.A_log = nn.Parameter(torch.ones(c.value_heads)), nn.Parameter(torch.zeros(c.value_heads))
        self.norm, self.out_proj = Norm(c.value_dim, c.eps), linear(vd, c.hidden)

    def project(self, x, history=None):
        """projections and causal conv; history [B, conv-1, C] holds the previous conv inputs. Returns q, k, v, g, beta, z, new history"""
        c, (B, T, _) = self.c, x.shape
        u = self.in_proj_qkv(x)
        p = F.pad(u, (0, 0, c.conv - 1, 0)) if history is None else torch.cat((history.to(u.dtype), u), 1)
        w = self.conv1d.weight.squeeze(1).to(u.dtype)
        y = p[:, 0:T] * w[:, 0]
        for i in range(1, c.conv):
            y = y + p[:, i:i + T] * w[:, i]
        y, kd = F.silu(y), c.key_heads * c.key_dim
        q = y[..., :kd].reshape(B, T, c.key_heads, c.key_dim)
        k = y[..., kd:2 * kd].reshape(B, T, c.key_heads, c.key_dim)
        v = y[..., 2 * kd:].reshape(B, T, c.value_heads, c.value_dim)
        beta = torch.sigmoid(self.in_proj_b(x).float())
        g = -torch.exp(self.A_log.float()) * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return q, k, v, g, beta, self.in_proj_z(x), p[:, -(c.conv - 1):]

    def finish(self, o, z):
        B, T = z.shape[:2]
        o = self.norm(o) * F.silu(z.float()).view(B, T, self.c.value_heads, self.c.value_dim).to(o.dtype)
        return self.out_proj(o.reshape(B, T, -1).to(z.dtype))


class GatedAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj, self.o_proj = linear(c.hidden, c.heads * c.head_dim * 2), linear(c.heads * c.head_dim, c.hidden)
        self.k_proj, self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim), linear(c.hidden, c.kv_heads * c.head_dim)
        self.q_norm, self.k_norm = CentredNorm(c.head_dim, c.eps), CentredNorm(c.head_dim, c.eps)

    def project(self, x, cos, sin):
        c, (B, T, _) = self.c, x.shape
        qg = self.q_proj(x).view(B, T, c.heads, 2 * c.head_dim)
        q, gate = qg[..., :c.head_dim], qg[..., c.head_dim:].reshape(B, T, -1)
        k, v = (p(x).view(B, T, c.kv_heads, c.head_dim) for p in (self.k_proj, self.v_proj))
        return rope(self.q_norm(q).transpose(1, 2), cos, sin), rope(self.k_norm(k).transpose(1, 2), cos, sin), v.transpose(1, 2), gate

    def finish(self, o, gate):
        B, H, T, D = o.shape
        return self.o_proj(o.transpose(1, 2).reshape(B, T, H * D) * torch.sigmoid(gate))

    def forward(self, x, cos, sin):
        q, k, v, gate = self.project(x, cos, sin)
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), gate)


class Layer(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.full = full
        if full:
            self.self_attn = GatedAttention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.mlp = MLP(c.hidden, c.ffn)
        self.input_layernorm, self.post_attention_layernorm = CentredNorm(c.hidden, c.eps), CentredNorm(c.hidden, c.eps)

    # three graphs that `compile_layers` compiles; the scan between the two halves stays eager

    def delta_front(self, x):
        q, k, v, g, beta, z, _ = self.linear_attn.project(self.input_layernorm(x))
        with torch.autocast(x.device.type, enabled=False):
            return (z,) + chunk_prepare(q, k, v, g, beta)

    def delta_back(self, x, z, S, qd, W, U, att):
        with torch.autocast(x.device.type, enabled=False):
            o = chunk_output(S, qd, W, U, att, x.shape[0])
        x = x + self.linear_attn.finish(o, z)
        return x + self.mlp(self.post_attention_layernorm(x))

    def attention_block(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x, cos, sin):
        if self.full:
            return self.attention_block(x, cos, sin)
        T = x.shape[1]
        xp = F.pad(x, (0, 0, 0, -T % CHUNK)) if T % CHUNK else x
        z, M, N, *rest = self.delta_front(xp)
        with torch.autocast(x.device.type, enabled=False):
            S = ChunkScan.apply(M.contiguous(), N.contiguous())
        return self.delta_back(xp, z, S, *rest)[:, :T]


def compile_layers():
    """one graph per kind of layer, shared by all layers"""
    import torch._dynamo
    torch._dynamo.config.cache_size_limit = 64
    for name in ("delta_front", "delta_back", "attention_block"):
        setattr(Layer, name, torch.compile(getattr(Layer, name), dynamic=False))


# ---------------------------------------------------------------- the model

class Backbone(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c, c.full(i)) for i in range(c.layers))
        self.norm = CentredNorm(c.hidden, c.eps)


class Mtp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc, self.layers = linear(2 * c.hidden, c.hidden), nn.ModuleList([Layer(c, True)])
        self.norm, self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = (CentredNorm(c.hidden, c.eps) for _ in range(3))


class Qwen35(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.model = c, Backbone(c)
        if c.mtp:
            self.mtp = Mtp(c)

    def initialise(self):
        c = self.c
        for n, p in self.named_parameters():
            if n.endswith("norm.weight") or "norm_" in n or n.endswith(("dt_bias", "A_log")):
                continue
            if "conv1d" in n:
                nn.init.uniform_(p, -0.5, 0.5)
            else:
                out = n.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, 0.0, 0.02 / (math.sqrt(2 * c.layers) if out else 1))
        for m in self.modules():
            if isinstance(m, GatedDeltaNet):
                m.A_log.data = torch.empty(c.value_heads).uniform_(1, 16).log()
                dt = torch.exp(torch.rand(c.value_heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
                m.dt_bias.data = dt + torch.log(-torch.expm1(-dt))
        return self

    @property
    def embedding(self):
        return self.model.embed_tokens.weight

    def hidden(self, ids, taps=()):
        """final-normed hidden states [B, T, H] and the outputs of the tapped blocks (0-based)"""
        x = self.model.embed_tokens(ids)
        if ids.is_cuda:
            x = x.to(torch.bfloat16)
        cos, sin = rope_table(torch.arange(ids.shape[1], device=ids.device), self.c.rot, self.c.theta)
        kept = {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin)
            if i in taps:
                kept[i] = x
        return self.model.norm(x), [kept[i] for i in taps]

    def logits(self, h):
        return F.linear(h, self.embedding.to(h.dtype))

    def mtp_hidden(self, ids, h):
        """row t predicts token t + 2 from the final-normed hidden of t and token t + 1"""
        m = self.mtp
        e = self.model.embed_tokens(ids[:, 1:]).to(h.dtype)
        x = m.fc(torch.cat((m.pre_fc_norm_embedding(e), m.pre_fc_norm_hidden(h[:, :-1])), -1))
        cos, sin = rope_table(torch.arange(x.shape[1], device=ids.device), self.c.rot, self.c.theta)
        return m.norm(m.layers[0](x, cos, sin))

    # ---- decoding with caches; all sequences of a batch are at the same position

    def new_cache(self, B, length, device, dtype):
        c, cache = self.c, []
        for i in range(c.layers):
            if c.full(i):
                cache.append([torch.zeros(B, c.kv_heads, length, c.head_dim, device=device, dtype=dtype) for _ in range(2)])
            else:
                channels = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim
                cache.append([torch.zeros(B, c.value_heads, c.key_dim, c.value_dim, device=device), torch.zeros(B, c.conv - 1, channels, device=device, dtype=dtype)])
        return cache

    def extend(self, ids, pos, cache, taps=()):
        """evaluate ids [B, T] at positions pos [T]; updates the cache in place. Returns final-normed hidden [B, T, H] and taps"""
        c = self.c
        x = self.model.embed_tokens(ids).to(self.model.layers[0].mlp.up_proj.weight.dtype)
        cos, sin = rope_table(pos, c.rot, c.theta)
        kept = {}
        for i, (layer, st) in enumerate(zip(self.model.layers, cache)):
            h = layer.input_layernorm(x)
            if layer.full:
                q, k, v, gate = layer.self_attn.project(h, cos, sin)
                st[0].index_copy_(2, pos, k)
                st[1].index_copy_(2, pos, v)
                y = layer.self_attn.finish(self.attend(q, st[0], st[1], pos), gate)
            else:
                q, k, v, g, beta, z, history = layer.linear_attn.project(h, st[1])
                o, S = delta_rule(q, k, v, g, beta, st[0])
                st[0].copy_(S)
                st[1].copy_(history)
                y = layer.linear_attn.finish(o.to(x.dtype), z)
            x = x + y
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if i in taps:
                kept[i] = x
        return self.model.norm(x), [kept[i] for i in taps]

    def attend(self, q, k, v, pos):
        """q [B, H, T, D] over the cache [B, Hkv, L, D], keys at most at the row's own position"""
        B, H, T, D = q.shape
        qg = q.reshape(B, k.shape[1], -1, D)                                  # rows of one group share a K/V head
        seen = torch.arange(k.shape[2], device=q.device)[None] <= pos[:, None]           # [T, L]
        score = (qg @ k.transpose(-1, -2)).float().view(B, H, T, -1) * D ** -0.5
        p = score.masked_fill(~seen, -1e30).softmax(-1).to(q.dtype)
        return (p.view(B, k.shape[1], -1, k.shape[2]) @ v).view(B, H, T, D)
