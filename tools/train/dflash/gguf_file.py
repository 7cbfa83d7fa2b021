"""GGUF files of targets and drafters, through the `gguf` package: names and transforms as the readers of such files expect them."""
import json
import os

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

KINDS = {"bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "mix": gguf.LlamaFileType.MOSTLY_Q4_0}


class File:
    def __init__(self, path, arch, name, kind, licence=None):
        if kind not in KINDS:
            raise SystemExit(f"file type {kind}: expected one of {', '.join(KINDS)}")
        self.w, self.arch, self.kind, self.path, self.bytes = gguf.GGUFWriter(path, arch), arch, kind, path, 0
        self.w.add_type("model")
        self.w.add_name(name)
        if licence:
            self.w.add_license(licence)
        self.w.add_file_type(KINDS[kind])
        self.w.add_quantization_version(2)

    def key(self, name):
        return f"{self.arch}.{name}"

    def u32(self, **values):
        for k, v in values.items():
            self.w.add_uint32(self.key(k.replace("__", ".")), int(v))

    def f32(self, **values):
        for k, v in values.items():
            self.w.add_float32(self.key(k.replace("__", ".")), float(v))

    def array(self, name, values):
        self.w.add_array(self.key(name), list(values))

    def type_of(self, name, x):
        """vectors, conv kernels and routers stay float; a `mix` file keeps 8 bits except for the feed-forward matrices"""
        if x.ndim == 1 or not name.endswith(".weight") or name.endswith(("norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight")):
            return Type.F32
        if self.kind == "bf16":
            return Type.BF16
        return Type.Q4_0 if self.kind == "mix" and ".ffn_" in name and "conv" not in name else Type.Q8_0

    def tensor(self, name, x):
        x = x.detach().float().contiguous().numpy()
        t = self.type_of(name, x)
        data = x if t == Type.F32 else gguf.quants.quantize(x, t)
        self.w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=t)

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()
        print(f"{self.path}: {os.path.getsize(self.path):,} bytes", flush=True)


# ---------------------------------------------------------------- tokenizer

def tokenizer_from_json(f, path, pre, eos, pad, template, mask=None):
    with open(path, encoding="utf8") as fp:
        t = json.load(fp)
    n = max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]) + 1
    tokens, types = [f"[PAD{i}]" for i in range(n)], [gguf.TokenType.UNUSED] * n
    for k, i in t["model"]["vocab"].items():
        tokens[i], types[i] = k, gguf.TokenType.NORMAL
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    w = f.w
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_eos_token_id(eos)
    w.add_pad_token_id(pad)
    w.add_bos_token_id(pad)
    w.add_add_bos_token(False)
    if mask is not None:
        w.add_mask_token_id(mask)
    w.add_chat_template(template)


def tokenizer_from_gguf(f, reader, mask):
    """copy every tokenizer key of the target's file"""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer.") or name == "tokenizer.ggml.mask_token_id":
            continue
        main, sub = field.types[0], field.types[-1]
        f.w.add_key_value(name, field.contents(), main, sub_type=sub if main == gguf.GGUFValueType.ARRAY else None)
    f.w.add_mask_token_id(mask)


# ---------------------------------------------------------------- Qwen3.5 dense target

def tile_heads(x, dim, size, c):
    """value heads grouped by key head (checkpoint) -> tiled over key heads (file)"""
    shape, r = list(x.shape), c.value_heads // c.key_heads
    y = x.reshape(shape[:dim] + [c.key_heads, r, size] + shape[dim + 1:])
    return y.transpose(dim, dim + 1).reshape(shape).contiguous()


def qwen35_tensors(c, sd):
    out = {"token_embd.weight": sd["model.embed_tokens.weight"], "output_norm.weight": sd["model.norm.weight"].float() + 1}
    kd = 2 * c.key_heads * c.key_dim

    def block(src, i):
        g, b = lambda n: sd[f"{src}.{n}"], f"blk.{i}."
        out[b + "attn_norm.weight"] = g("input_layernorm.weight").float() + 1
        out[b + "post_attention_norm.weight"] = g("post_attention_layernorm.weight").float() + 1
        if f"{src}.self_attn.q_proj.weight" in sd:
            for a, z in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj")):
                out[f"{b}{a}.weight"] = g(f"self_attn.{z}.weight")
            for a in ("q_norm", "k_norm"):
                out[f"{b}attn_{a}.weight"] = g(f"self_attn.{a}.weight").float() + 1
        else:
            la = lambda n: g("linear_attn." + n)
            values = lambda x: torch.cat((x[:kd], tile_heads(x[kd:], 0, c.value_dim, c)))
            out[b + "attn_qkv.weight"] = values(la("in_proj_qkv.weight"))
            out[b + "attn_gate.weight"] = tile_heads(la("in_proj_z.weight"), 0, c.value_dim, c)
            out[b + "ssm_alpha.weight"] = tile_heads(la("in_proj_a.weight"), 0, 1, c)
            out[b + "ssm_beta.weight"] = tile_heads(la("in_proj_b.weight"), 0, 1, c)
            out[b + "ssm_conv1d.weight"] = values(la("conv1d.weight").squeeze(1).float())
            out[b + "ssm_dt.bias"] = tile_heads(la("dt_bias").float()[:, None], 0, 1, c)[:, 0]
            out[b + "ssm_a"] = tile_heads(-torch.exp(la("A_log").float())[:, None], 0, 1, c)[:, 0]
            out[b + "ssm_norm.weight"] = la("norm.weight")
            out[b + "ssm_out.weight"] = tile_heads(la("out_proj.weight"), 1, c.value_dim, c)
        for a, z in (("ffn_gate", "gate_proj"), ("ffn_up", "up_proj"), ("ffn_down", "down_proj")):
            out[f"{b}{a}.weight"] = g(f"mlp.{z}.weight")

    for i in range(c.layers):
        block(f"model.layers.{i}", i)
    if c.mtp:
        block("mtp.layers.0", c.layers)
        b = f"blk.{c.layers}.nextn."
        out[b + "eh_proj.weight"] = sd["mtp.fc.weight"]
        for a, z in (("enorm", "pre_fc_norm_embedding"), ("hnorm", "pre_fc_norm_hidden"), ("shared_head_norm", "norm")):
            out[f"{b}{a}.weight"] = sd[f"mtp.{z}.weight"].float() + 1
    return out


def write_qwen35(path, kind, name, c, sd, tokenizer, eos, pad, template, licence=None):
    f = File(path, "qwen35", name, kind, licence)
    f.u32(block_count=c.layers + int(c.mtp), context_length=c.max_pos, embedding_length=c.hidden, feed_forward_length=c.ffn, attention__head_count=c.heads,
          attention__head_count_kv=c.kv_heads, attention__key_length=c.head_dim, attention__value_length=c.head_dim, rope__dimension_count=c.rot,
          full_attention_interval=c.full_every, ssm__conv_kernel=c.conv, ssm__state_size=c.key_dim, ssm__group_count=c.key_heads,
          ssm__time_step_rank=c.value_heads, ssm__inner_size=c.value_heads * c.value_dim)
    if c.mtp:
        f.u32(nextn_predict_layers=1)
    f.f32(attention__layer_norm_rms_epsilon=c.eps, rope__freq_base=c.theta)
    f.array("rope.dimension_sections", [6, 5, 5, 0])
    tokenizer_from_json(f, tokenizer, "qwen35", eos, pad, template)
    for n, x in qwen35_tensors(c, sd).items():
        f.tensor(n, x)
    f.close()


# ---------------------------------------------------------------- drafter

def drafter_tensors(c, sd):
    out = {"fc.weight": sd["fc.weight"], "enc.output_norm.weight": sd["hidden_norm.weight"], "output_norm.weight": sd["norm.weight"]}
    names = [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm"),
             ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
             ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")]
    if c.version == 2:
        names += [("attn_conv_proj", "attention_conv.kernel_projection"), ("ffn_conv_proj", "mlp_conv.kernel_projection")]
    for i in range(c.layers):
        for a, z in names:
            out[f"blk.{i}.{a}.weight"] = sd[f"layers.{i}.{z}.weight"]
        if c.version == 2:
            out[f"blk.{i}.attn_conv_base"] = sd[f"layers.{i}.attention_conv.base_kernel"]
            out[f"blk.{i}.ffn_conv_base"] = sd[f"layers.{i}.mlp_conv.base_kernel"]
    if c.version == 2:
        for a, z in (("predecessor", "predecessor_codebook"), ("successor", "successor_codebook"), ("hidden", "hidden_projection.weight")):
            out[f"selector_{a}.weight"] = sd["candidate_selector." + z]
    return out


def write_drafter(path, kind, name, c, sd, target_gguf, licence=None):
    """`target_gguf` gives the tokenizer and says whether the target uses sectioned (multi-axis) rotary positions"""
    reader = gguf.GGUFReader(target_gguf)
    arch = reader.fields["general.architecture"].contents()
    f = File(path, "dflash", name, kind, licence)
    f.u32(block_count=c.layers, context_length=c.max_pos, embedding_length=c.hidden, feed_forward_length=c.ffn, attention__head_count=c.heads,
          attention__head_count_kv=c.kv_heads, attention__key_length=c.head_dim, attention__value_length=c.head_dim, rope__dimension_count=c.head_dim, block_size=c.block)
    f.f32(attention__layer_norm_rms_epsilon=c.eps, rope__freq_base=c.theta)
    f.array("target_layers", [t + 1 for t in c.taps])                          # the file names the block whose input is tapped
    if c.version == 2:
        f.u32(conv_kernel_size=c.conv_taps, conv_group_size=c.conv_group, selector_rank=c.rank, selector_top_k=c.top_k)
    if c.window:
        f.u32(attention__sliding_window=c.window)
        f.w.add_array(f.key("attention.sliding_window_pattern"), [True] * c.layers)
    if f"{arch}.rope.dimension_sections" in reader.fields:
        f.array("rope.dimension_sections", [c.head_dim // 2, 0, 0, 0])
    if c.tap_hidden and c.tap_hidden != c.hidden:
        f.u32(target_hidden_size=c.tap_hidden)
    tokenizer_from_gguf(f, reader, c.mask_id)
    for n, x in drafter_tensors(c, sd).items():
        f.tensor(n, x)
    f.close()
