"""What the trainer needs of a target: hidden states with taps, the embedding table, the head, greedy decoding. Two implementations:

Native        our own fast Qwen3.5 dense model (qwen35.py); no custom kernels needed
Transformers  any causal model of the transformers library: qwen3, qwen3_5, qwen3_moe, qwen3_5_moe, llama, ...
`load` picks Native for `model_type` qwen3_5_text with a tied head, Transformers otherwise; both are frozen.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from . import qwen35


def read_config(path):
    with open(os.path.join(path, "config.json"), encoding="utf8") as f:
        return json.load(f)


class Native:
    def __init__(self, path, device, dtype=torch.float32):
        self.c = qwen35.Config.from_hf(path)
        self.model = qwen35.Qwen35(self.c)
        weights = load_file(os.path.join(path, "model.safetensors"))
        missing, extra = self.model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
        if [k for k in missing if not k.startswith("mtp.")] or extra:
            raise SystemExit(f"{path}: weights missing {missing[:3]}, unknown {extra[:3]}")
        self.model.to(device=device, dtype=dtype).eval().requires_grad_(False)
        self.layers, self.hidden_size, self.vocab = self.c.layers, self.c.hidden, self.c.vocab
        self.theta, self.max_pos = self.c.theta, self.c.max_pos
        self.embedding = self.head = self.model.embedding

    def compile(self):
        qwen35.compile_layers()

    @torch.no_grad()
    def hidden(self, ids, taps=()):
        return self.model.hidden(ids, taps)

    def logits(self, h):
        return F.linear(h, self.head.to(h.dtype))

    @torch.no_grad()
    def greedy(self, ids, n, stop=()):
        """greedy continuation of one prompt; a list of at most n ids and the gap between the two best logits of each"""
        dev = self.embedding.device
        cache = self.model.new_cache(1, len(ids) + n, dev, self.embedding.dtype)
        h, _ = self.model.extend(torch.tensor([ids], device=dev), torch.arange(len(ids), device=dev), cache)
        out, gaps = [], []
        while True:
            v, k = self.logits(h[0, -1]).float().topk(2)
            out.append(k[0].item())
            gaps.append((v[0] - v[1]).item())
            if len(out) == n or out[-1] in stop:
                return out, gaps
            h, _ = self.model.extend(k[:1][None], torch.tensor([len(ids) + len(out) - 1], device=dev), cache)


class Transformers:
    def __init__(self, path, device, dtype=torch.bfloat16):
        from transformers import AutoModelForCausalLM
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval().requires_grad_(False)
        c = self.model.config.get_text_config()
        self.layers, self.hidden_size, self.vocab = c.num_hidden_layers, c.hidden_size, c.vocab_size
        rope = getattr(c, "rope_parameters", None) or {}
        self.theta, self.max_pos = rope.get("rope_theta", getattr(c, "rope_theta", 1e6)), c.max_position_embeddings
        self.embedding = self.model.get_input_embeddings().weight
        self.head = self.model.get_output_embeddings().weight

    def compile(self):
        pass

    @torch.no_grad()
    def hidden(self, ids, taps=()):
        """hidden_states[i + 1] is the output of block i; the last entry is after the final norm, so the last block can not be tapped"""
        if taps and max(taps) >= self.layers - 1:
            raise SystemExit(f"taps {taps}: the last block ({self.layers - 1}) can not be tapped")
        out = self.model(input_ids=ids, output_hidden_states=True, use_cache=False, logits_to_keep=1)
        return out.hidden_states[-1], [out.hidden_states[t + 1] for t in taps]

    def logits(self, h):
        return F.linear(h.to(self.head.dtype), self.head)

    @torch.no_grad()
    def greedy(self, ids, n, stop=()):
        out = self.model.generate(torch.tensor([ids], device=self.embedding.device), max_new_tokens=n, do_sample=False, eos_token_id=list(stop) or None,
                                  return_dict_in_generate=True, output_logits=True)
        gaps = []
        for lg in out.logits:
            v = lg[0].float().topk(2)[0]
            gaps.append((v[0] - v[1]).item())
        return out.sequences[0, len(ids):].tolist(), gaps


def load(path, device, dtype=None, native=None):
    c = read_config(path)
    if native is None:
        native = c.get("model_type") == "qwen3_5_text" and c.get("tie_word_embeddings", False)
    if native:
        return Native(path, device, dtype or torch.float32)
    return Transformers(path, device, dtype or torch.bfloat16)
