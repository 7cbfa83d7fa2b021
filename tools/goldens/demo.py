"""Reference results of the demo pair from its own GGUF files: float32 on the CPU, by the training code (PyTorch), not by the engine.

usage: demo.py TARGET.gguf DRAFTER.gguf PROMPTS.json OUT_DIR [--reference BF16.gguf] [--new 256]
Any file types work: weights are dequantised; in a file stamped `onebit.hadamard_q4_0` = 32 the rotated Q4_0 matrices are rotated back, so the
results are those of exact arithmetic on the stored weights. Needs the packages of tools/train/requirements.txt; a few minutes.

golden.json         per prompt of GOLDEN: text, prompt, greedy64, top2_gap (of each greedy token), prefill_argmax over prompt + 64,
                    nll_prompt_mean, mtp_argmax_from_prompt_end (row t predicts token t + 2), reference_logit_rms (against --reference, last
                    prompt token), proposals at three contexts: committed n, anchor, walk, argmax, candidates [15][16], accepted
golden.safetensors  NAME.logits_last_prompt, .logits_last, .taps_last_prompt [taps, H], .context_feature_last_prompt, .hidden_last_prompt,
                    .mtp_logits_last_prompt; per context n .draft_hidden_n [15, H], .draft_unary_n [15, 16], .draft_scores_n [15, 16]
acceptance.json     every prompt: greedy text (at most --new tokens), top2_gap, and for argmax, selector and selector_8 (blocks of 8 rows)
                    rounds, tokens, tokens_per_step, accepted per round; the first six drafts of the selector
"""
import argparse
import json
import os
import re
import sys
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from dflash import drafter, qwen35, verify        # noqa: E402

GOLDEN = ["code", "prose", "short", "chat-code", "tool-xml", "thinking"]
STAMP = "onebit.hadamard_q4_0"
STOP_NAMES = ("<|endoftext|>", "<|im_end|>")


# ---------------------------------------------------------------- reading GGUF

def hadamard(n):
    h = np.ones((1, 1), np.float32)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.float32(np.sqrt(n))


class Gguf:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.arch = self.value("general.architecture")
        self.stamp = self.value(STAMP, 0)
        if self.stamp not in (0, 32):
            raise SystemExit(f"{path}: {STAMP} is {self.stamp}, expected 32")
        self.tensors = {t.name: t for t in self.reader.tensors}

    def value(self, key, default=None):
        f = self.reader.fields.get(key)
        return default if f is None else f.contents()

    def key(self, name, default=None):
        return self.value(f"{self.arch}.{name}", default)

    def tensor(self, name):
        """float32 in row-major order, outermost dimension first"""
        t = self.tensors[name]
        shape = tuple(int(x) for x in reversed(t.shape))
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        if self.stamp and t.tensor_type == gguf.GGMLQuantizationType.Q4_0 and re.fullmatch(r"blk\.\d+\..*", name):
            x = (x.reshape(-1, self.stamp) @ hadamard(self.stamp)).reshape(shape)           # the rotation is its own inverse
        return torch.from_numpy(np.ascontiguousarray(x))


def untile(x, dim, size, c):
    """value heads tiled over key heads (file) -> grouped by key head (model)"""
    shape, r = list(x.shape), c.value_heads // c.key_heads
    y = x.reshape(shape[:dim] + [r, c.key_heads, size] + shape[dim + 1:])
    return y.transpose(dim, dim + 1).reshape(shape).contiguous()


def load_target(g):
    if g.arch != "qwen35":
        raise SystemExit(f"target: architecture {g.arch}, expected qwen35")
    mtp, k = g.key("nextn_predict_layers", 0), g.key
    layers = k("block_count") - mtp
    c = qwen35.Config(vocab=len(g.value("tokenizer.ggml.tokens")), hidden=k("embedding_length"), layers=layers, ffn=k("feed_forward_length"), heads=k("attention.head_count"),
                      kv_heads=k("attention.head_count_kv"), head_dim=k("attention.key_length"), rot=k("rope.dimension_count"), theta=k("rope.freq_base"),
                      key_heads=k("ssm.group_count"), value_heads=k("ssm.time_step_rank"), key_dim=k("ssm.state_size"), value_dim=k("ssm.inner_size") // k("ssm.time_step_rank"),
                      conv=k("ssm.conv_kernel"), full_every=k("full_attention_interval", 4), eps=k("attention.layer_norm_rms_epsilon"), mtp=bool(mtp), max_pos=k("context_length"))
    sd = {"model.embed_tokens.weight": g.tensor("token_embd.weight"), "model.norm.weight": g.tensor("output_norm.weight") - 1}
    kd = 2 * c.key_heads * c.key_dim
    values = lambda x: torch.cat((x[:kd], untile(x[kd:], 0, c.value_dim, c)))

    def block(i, dst):
        t = lambda n: g.tensor(f"blk.{i}.{n}")
        sd[dst + "input_layernorm.weight"], sd[dst + "post_attention_layernorm.weight"] = t("attn_norm.weight") - 1, t("post_attention_norm.weight") - 1
        for a, z in (("ffn_gate", "gate_proj"), ("ffn_up", "up_proj"), ("ffn_down", "down_proj")):
            sd[f"{dst}mlp.{z}.weight"] = t(a + ".weight")
        if f"blk.{i}.attn_q.weight" in g.tensors:
            for a, z in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")):
                sd[f"{dst}self_attn.{z}.weight"] = t(a + ".weight")
            for a in ("q_norm", "k_norm"):
                sd[f"{dst}self_attn.{a}.weight"] = t(f"attn_{a}.weight") - 1
            return
        la = dst + "linear_attn."
        sd[la + "in_proj_qkv.weight"], sd[la + "in_proj_z.weight"] = values(t("attn_qkv.weight")), untile(t("attn_gate.weight"), 0, c.value_dim, c)
        sd[la + "in_proj_a.weight"], sd[la + "in_proj_b.weight"] = untile(t("ssm_alpha.weight"), 0, 1, c), untile(t("ssm_beta.weight"), 0, 1, c)
        sd[la + "conv1d.weight"] = values(t("ssm_conv1d.weight"))[:, None]
        sd[la + "dt_bias"] = untile(t("ssm_dt.bias")[:, None], 0, 1, c)[:, 0]
        sd[la + "A_log"] = untile(torch.log(-t("ssm_a"))[:, None], 0, 1, c)[:, 0]
        sd[la + "norm.weight"], sd[la + "out_proj.weight"] = t("ssm_norm.weight"), untile(t("ssm_out.weight"), 1, c.value_dim, c)

    for i in range(layers):
        block(i, f"model.layers.{i}.")
    if mtp:
        block(layers, "mtp.layers.0.")
        b = f"blk.{layers}.nextn."
        sd["mtp.fc.weight"] = g.tensor(b + "eh_proj.weight")
        for a, z in (("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("shared_head_norm", "norm")):
            sd[f"mtp.{z}.weight"] = g.tensor(f"{b}{a}.weight") - 1
    model = qwen35.Qwen35(c)
    model.load_state_dict(sd)
    return model.eval().requires_grad_(False)


def load_drafter(g, target):
    if g.arch != "dflash":
        raise SystemExit(f"drafter: architecture {g.arch}, expected dflash")
    k = g.key
    version = 2 if "selector_hidden.weight" in g.tensors else 1
    c = drafter.Config(vocab=target.c.vocab, hidden=k("embedding_length"), taps=tuple(int(x) - 1 for x in k("target_layers")), target_layers=target.c.layers,
                       mask_id=g.value("tokenizer.ggml.mask_token_id"), layers=k("block_count"), ffn=k("feed_forward_length"), heads=k("attention.head_count"),
                       kv_heads=k("attention.head_count_kv"), head_dim=k("attention.key_length"), theta=k("rope.freq_base"), eps=k("attention.layer_norm_rms_epsilon"),
                       block=k("block_size"), window=k("attention.sliding_window", 0), version=version, conv_taps=k("conv_kernel_size", 2), conv_group=k("conv_group_size", 64),
                       rank=k("selector_rank", 64), top_k=k("selector_top_k", 16), max_pos=k("context_length"))
    model = drafter.Drafter(c)
    from dflash.gguf_file import drafter_tensors
    names = {n: n for n in model.state_dict()}
    model.load_state_dict({hf: g.tensor(file) for file, hf in drafter_tensors(c, names).items()})
    return model.eval().requires_grad_(False)


# ---------------------------------------------------------------- running

class Target:
    """what dflash.verify needs of a target"""

    def __init__(self, model):
        self.model, self.embedding = model, model.embedding

    def hidden(self, ids, taps=()):
        return self.model.hidden(ids, taps)

    def logits(self, h):
        return F.linear(h, self.embedding)

    def greedy(self, ids, n, stop=()):
        """greedy text and the gap between the two best logits of every token"""
        cache = self.model.new_cache(1, len(ids) + n, "cpu", torch.float32)
        h, _ = self.model.extend(torch.tensor([ids]), torch.arange(len(ids)), cache)
        out, gaps = [], []
        while True:
            v, k = self.logits(h[0, -1]).topk(2)
            out.append(k[0].item())
            gaps.append(round((v[0] - v[1]).item(), 5))
            if len(out) == n or out[-1] in stop:
                return out, gaps
            h, _ = self.model.extend(k[:1][None], torch.tensor([len(ids) + len(out) - 1]), cache)


def golden(target, model, prompt, reference, tensors):
    ids, name = prompt["ids"], prompt["name"]
    text, gaps = target.greedy(ids, 64)
    full, n = torch.tensor([ids + text]), len(ids)
    h, taps = target.hidden(full, model.c.taps)
    logits, context = target.logits(h)[0], model.context(taps)
    mtp = target.logits(target.model.mtp_hidden(full, h))[0]
    if logits[n - 1:-1].argmax(-1).tolist() != text:
        print(f"{name}: the chunked pass and decoding part at a near-tie, smallest gap {min(gaps)}")
    for key, value in (("logits_last_prompt", logits[n - 1]), ("logits_last", logits[-1]), ("taps_last_prompt", torch.stack([t[0, n - 1] for t in taps])),
                       ("context_feature_last_prompt", context[0, n - 1]), ("hidden_last_prompt", h[0, n - 1]), ("mtp_logits_last_prompt", mtp[n - 1])):
        tensors[f"{name}.{key}"] = value.clone()
    out = {"name": name, "text": prompt["text"], "prompt": ids, "greedy64": text, "top2_gap": gaps, "prefill_argmax": logits.argmax(-1).tolist(),
           "nll_prompt_mean": round(F.cross_entropy(logits[:n - 1], full[0, 1:n]).item(), 6), "mtp_argmax_from_prompt_end": mtp[n - 1:n + 7].argmax(-1).tolist(), "proposals": []}
    if reference is not None:
        ref = reference.logits(reference.hidden(full)[0])[0, n - 1]
        out["reference_logit_rms"] = round((ref - logits[n - 1]).pow(2).mean().sqrt().item(), 5)
    everything = ids + text
    for k in (n, n + 17, n + 40):
        walk, argmax, candidates, scores, e, lg = verify.draft(target, model, context, everything, k, model.c.block - 1)
        for key, value in (("hidden", e), ("unary", lg.topk(model.c.top_k, -1)[0]), ("scores", scores[0] if scores is not None else None)):
            if value is not None:
                tensors[f"{name}.draft_{key}_{k}"] = value.clone()
        out["proposals"].append({"committed": k, "anchor": everything[k], "walk": walk, "argmax": argmax, "candidates": candidates,
                                 "accepted": verify.accepted(walk, everything, k, len(everything))})
    return out


def acceptance(target, model, prompt, new, stop):
    text, gaps = target.greedy(prompt["ids"], new, stop)
    ids, n = prompt["ids"] + text, len(prompt["ids"])
    out = {"name": prompt["name"], "kind": prompt["kind"], "prompt": prompt["ids"], "greedy": text, "top2_gap": gaps, "min_margin": min(gaps)}
    context, block = verify.context_of(target, model, ids), model.c.block
    for label, kind, rows in (("argmax", "argmax", block), ("selector", "selector", block), ("selector_8", "selector", 8)):
        r = verify.replay(target, model.use_block(rows), ids, n, kinds=(kind,), context=context)[kind]
        out[label] = {"rounds": len(r), "tokens": len(text) - 1, "tokens_per_step": verify.tokens_per_step(r), "accepted": [x[2] for x in r]}
        if label == "selector":
            out["proposals"] = [{"n": x[0], "draft": x[1], "accepted": x[2]} for x in r[:6]]
    model.use_block(block)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target")
    p.add_argument("drafter")
    p.add_argument("prompts")
    p.add_argument("out")
    p.add_argument("--reference")
    p.add_argument("--new", type=int, default=256)
    a = p.parse_args()
    torch.set_grad_enabled(False)
    torch.set_flush_denormal(True)
    os.makedirs(a.out, exist_ok=True)
    file = Gguf(a.target)
    target = Target(load_target(file))
    model = load_drafter(Gguf(a.drafter), target.model)
    reference = Target(load_target(Gguf(a.reference))) if a.reference else None
    tokens = file.value("tokenizer.ggml.tokens")
    stop = {tokens.index(s) for s in STOP_NAMES if s in tokens}
    with open(a.prompts, encoding="utf8") as f:
        prompts = json.load(f)
    tensors, began = {}, time.time()
    goldens = [golden(target, model, q, reference, tensors) for q in prompts if q["name"] in GOLDEN]
    with open(os.path.join(a.out, "golden.json"), "w", encoding="utf8") as f:
        json.dump(goldens, f)
    save_file({k: v.float().contiguous() for k, v in tensors.items()}, os.path.join(a.out, "golden.safetensors"))
    for g in goldens:
        print(g["name"], "accepted", [x["accepted"] for x in g["proposals"]], "smallest gap", min(g["top2_gap"]), "rms to reference", g.get("reference_logit_rms"), flush=True)
    rows = []
    print(f"{'prompt':16s} {'kind':9s} {'tokens':>6s} {'argmax':>7s} {'selector':>8s} {'of 8':>6s}")
    for q in prompts:
        r = acceptance(target, model, q, a.new, stop)
        rows.append(r)
        t = [r[k]["tokens_per_step"] for k in ("argmax", "selector", "selector_8")]
        print(f"{r['name']:16s} {r['kind']:9s} {len(r['greedy']):6d} {t[0]:7.2f} {t[1]:8.2f} {t[2]:6.2f}", flush=True)
    with open(os.path.join(a.out, "acceptance.json"), "w", encoding="utf8") as f:
        json.dump(rows, f)
    mean = [np.mean([r[k]["tokens_per_step"] for r in rows]) for k in ("argmax", "selector", "selector_8")]
    print(f"{'mean':33s} {mean[0]:7.2f} {mean[1]:8.2f} {mean[2]:6.2f}   {time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
