"""A Hugging Face directory from a GGUF file: weights dequantised, config, tokenizer and chat template, for steps 1 to 3 of the recipe.

usage: from_gguf.py MODEL.gguf OUT_DIR [--dtype bf16|f32]
For models that are only at hand as GGUF, and for drafters that should learn from the quantised weights that will be served. Architectures:
llama, qwen3. Byte-level BPE tokenizers (`tokenizer.ggml.model` gpt2) with the pre-tokenizers listed in PRE.
"""
import argparse
import json
import os

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
bytes_only = lambda regex=False: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
split = lambda expression: [pre_tokenizers.Split(Regex(expression), "isolated"), bytes_only()]
PRE = {"smollm": [pre_tokenizers.Digits(individual_digits=True), bytes_only(True)], "gpt-2": [bytes_only(True)], "qwen2": split(QWEN2), "llama-bpe": split(LLAMA3)}

BLOCK = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Source:
    def __init__(self, path):
        self.path, self.reader = path, gguf.GGUFReader(path)
        self.arch = self.value("general.architecture")
        if self.arch not in ("llama", "qwen3"):
            raise SystemExit(f"{path}: architecture {self.arch}, expected llama or qwen3")

    def value(self, key, default=None):
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def key(self, name, default=None):
        return self.value(f"{self.arch}.{name}", default)

    def name(self, tensor):
        part = tensor.split(".")
        if part[0] == "blk" and part[2] in BLOCK and part[3] == "weight":
            return f"model.layers.{part[1]}.{BLOCK[part[2]]}.weight"
        if part[0] in WHOLE and part[1] == "weight":
            return WHOLE[part[0]] + ".weight"
        raise SystemExit(f"{self.path}: tensor {tensor} has no place in a {self.arch} model")

    def weights(self, dtype):
        heads = {"attn_q": self.key("attention.head_count"), "attn_k": self.key("attention.head_count_kv")}
        out = {}
        for t in self.reader.tensors:
            if t.name == "rope_freqs.weight":
                continue
            x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
            role = t.name.split(".")[2] if t.name.startswith("blk.") else ""
            if self.arch == "llama" and role in heads:                      # rows of a head: pairs interleaved (file) -> halves (checkpoint)
                x = x.reshape(heads[role], -1, 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
            out[self.name(t.name)] = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
        return out

    def config(self, tied, dtype):
        k, hidden, heads = self.key, self.key("embedding_length"), self.key("attention.head_count")
        if self.key("rope.scaling.type") not in (None, "none"):
            raise SystemExit(f"{self.path}: scaled rotary positions ({self.key('rope.scaling.type')}) are not translated")
        llama = self.arch == "llama"
        theta = k("rope.freq_base", 10000.0)
        return {"architectures": ["LlamaForCausalLM" if llama else "Qwen3ForCausalLM"], "model_type": self.arch, "dtype": dtype, "hidden_size": hidden,
                "intermediate_size": k("feed_forward_length"), "num_hidden_layers": k("block_count"), "num_attention_heads": heads,
                "num_key_value_heads": k("attention.head_count_kv", heads), "head_dim": k("attention.key_length", hidden // heads), "hidden_act": "silu",
                "rms_norm_eps": k("attention.layer_norm_rms_epsilon"), "rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta},
                "max_position_embeddings": k("context_length"), "vocab_size": len(self.value("tokenizer.ggml.tokens")), "tie_word_embeddings": tied, "attention_bias": False,
                "bos_token_id": self.value("tokenizer.ggml.bos_token_id"), "eos_token_id": self.value("tokenizer.ggml.eos_token_id"),
                "pad_token_id": self.value("tokenizer.ggml.padding_token_id")}

    def tokenizer(self):
        pre = self.value("tokenizer.ggml.pre")
        if self.value("tokenizer.ggml.model") != "gpt2" or pre not in PRE:
            raise SystemExit(f"{self.path}: tokenizer {self.value('tokenizer.ggml.model')}, pre {pre}: expected gpt2 with one of {', '.join(PRE)}")
        tokens, types = self.value("tokenizer.ggml.tokens"), self.value("tokenizer.ggml.token_type")
        plain = {t: i for i, (t, kind) in enumerate(zip(tokens, types)) if kind == gguf.TokenType.NORMAL}
        added = [(i, t, kind) for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)]
        vocab = plain | {t: i for i, t, _ in added}
        tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in self.value("tokenizer.ggml.merges")]))
        tok.pre_tokenizer, tok.decoder = pre_tokenizers.Sequence(PRE[pre]), decoders.ByteLevel()
        for i, t, kind in added:
            special = kind == gguf.TokenType.CONTROL
            (tok.add_special_tokens if special else tok.add_tokens)([AddedToken(t, normalized=False, special=special)])
        return tok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    a = p.parse_args()
    source = Source(a.model)
    dtype, word = (torch.bfloat16, "bfloat16") if a.dtype == "bf16" else (torch.float32, "float32")
    weights = source.weights(dtype)
    os.makedirs(a.out, exist_ok=True)
    save_file(weights, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    tokens = source.value("tokenizer.ggml.tokens")
    named = {name: tokens[i] for name in ("bos", "eos", "unk", "pad") if (i := source.value(f"tokenizer.ggml.{dict(unk='unknown', pad='padding').get(name, name)}_token_id")) is not None}
    files = {"config.json": source.config("lm_head.weight" not in weights, word),
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "model_max_length": source.key("context_length"),
                                       "chat_template": source.value("tokenizer.chat_template"), **{f"{n}_token": t for n, t in named.items()}}}
    for name, content in files.items():
        with open(os.path.join(a.out, name), "w", encoding="utf8") as f:
            json.dump(content, f, indent=1)
    source.tokenizer().save(os.path.join(a.out, "tokenizer.json"))
    print(f"{a.out}: {source.arch}, {sum(x.numel() for x in weights.values()) / 1e6:.1f} M parameters, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
